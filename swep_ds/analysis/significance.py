"""Is the difference between two methods larger than chance? Intervals for rows of runs, over the seeds in common.

There are two kinds. The crossed interval (`crossed.py`) says what other seeds and other questions would give. The
question bootstrap says what other questions would give for these trained models; it knows nothing of other seeds.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from swep_ds.analysis.crossed import LEVEL, MIN_SEEDS, MIN_TEXTS, Estimate, estimate
from swep_ds.analysis.questions import QuestionScores, note_on_shared_ids
from swep_ds.analysis.runs import Run
from swep_ds.data.splits import effective_clusters
from swep_ds.evaluation.calibration import MIN_CLUSTERS

RESAMPLES = 10_000
ELEMENTS = 2**22  # of the bootstrap's counts that are in memory at a time
Rows = Mapping[str, Sequence[Run]]


class Difference(NamedTuple):
    """The difference of a row to the base, in points: EM and F1 [2]."""

    crossed: Estimate | None  # None: fewer than `MIN_SEEDS` seeds in common, or `MIN_TEXTS` paragraphs in a set
    bootstrap: np.ndarray | None  # [2, 2]: low and high; None: fewer than `MIN_CLUSTERS` paragraphs in a set


class SetDifference(NamedTuple):
    """Of one data set: values [S, Q, 2], each question's cluster [Q], and the resampled means [RESAMPLES, 2]."""

    values: np.ndarray
    clusters: np.ndarray
    samples: np.ndarray


def common_seeds(runs: Sequence[Run], base: Sequence[Run]) -> list[int]:
    return sorted({run.ref.seed for run in runs} & {run.ref.seed for run in base})


def compare(rows: Rows, base: str, columns: Sequence[str], scores: QuestionScores) -> dict[str, dict]:
    """Differences of rows to the row `base`, seed by seed and question by question.

    Args:
        rows: runs by row.
        columns: the data sets, the source domain first.

    Returns:
        By row, then by data set (None: the mean over all but the first), a `Difference`. What could not be read or
        compared is missing, and named in the notes of `scores`.
    """
    by_row: dict[str, dict[str, SetDifference]] = {name: {} for name in rows if name != base}
    for column in columns:
        differences = question_differences(rows, base, column, scores)
        if not differences:
            continue
        clusters = scores.questions(rows[base][0].recipe, column).clusters
        means = np.concatenate([values_SQ2.mean(0) for values_SQ2 in differences.values()], axis=1)
        samples = np.split(resampled_means(means, clusters, column), len(differences), axis=1)
        for (name, values_SQ2), row_samples in zip(differences.items(), samples, strict=True):
            by_row[name][column] = SetDifference(values_SQ2, clusters, row_samples)
    shifted = list(columns[1:])
    compared = {name: [column for column in shifted if column in sets] for name, sets in by_row.items()}
    if any(compared.values()):
        questions = {column: scores.questions(rows[base][0].recipe, column) for column in shifted}
        for note in note_on_shared_ids({name: found.golds for name, found in questions.items() if found}):
            scores.note(note)
    result: dict[str, dict[str | None, Difference]] = {}
    for name, sets in by_row.items():
        result[name] = {column: _difference([difference]) for column, difference in sets.items()}
        if shifted and compared[name] == shifted:
            result[name][None] = _difference([sets[column] for column in shifted])
    return result


def _difference(sets: Sequence[SetDifference]) -> Difference:
    """The difference on one data set, or the mean over several."""
    texts = min(effective_clusters(difference.clusters) for difference in sets)
    crossed = bootstrap = None
    if len(sets[0].values) >= MIN_SEEDS and texts >= MIN_TEXTS:
        crossed = estimate([(np.moveaxis(difference.values, -1, 0), difference.clusters) for difference in sets])
    if texts >= MIN_CLUSTERS:
        bootstrap = interval(np.mean([difference.samples for difference in sets], axis=0))
    return Difference(crossed, bootstrap)


def question_differences(rows: Rows, base: str, column: str, scores: QuestionScores) -> dict[str, np.ndarray]:
    """By row, [S, Q, 2]: EM and F1 of the runs less those of the base's run with the same seed, in points.

    The order is that of the seeds in common, and of the questions of the base's first run. Rows without a seed in
    common, or whose runs answered other questions than the base's, are missing; all are if a run of the base cannot be
    read.
    """
    base_scores = {run.ref.seed: scores.of(run, column) for run in rows[base]}
    if not base_scores or any(frame is None for frame in base_scores.values()):
        return {}
    ids = base_scores[rows[base][0].ref.seed].index
    differences = {}
    for name, runs in rows.items():
        seeds = common_seeds(runs, rows[base])
        row_scores = {run.ref.seed: scores.of(run, column) for run in runs}
        if name == base or not seeds or any(row_scores[seed] is None for seed in seeds):
            continue
        paired = [run for run in (*runs, *rows[base]) if run.ref.seed in seeds]
        others = [run for run in paired if set(scores.of(run, column).index) != set(ids)]
        if others:
            scores.note(
                f"No interval for {name} on {column}: {others[0].ref.folder} answered other questions than "
                f"{rows[base][0].ref.folder}, so the difference would not be that of the methods alone."
            )
            continue
        by_seed = [row_scores[seed].loc[ids] - base_scores[seed].loc[ids] for seed in seeds]
        differences[name] = np.stack([frame.to_numpy() for frame in by_seed])
    return differences


def resampled_means(values: np.ndarray, clusters: np.ndarray, data_set: str) -> np.ndarray:
    """Means over questions if clusters of them are drawn with replacement; all columns share the draws.

    Args:
        values: [Q, k].
        clusters: each question's cluster [Q], numbered from 0.
        data_set: seeds the draws.

    Returns:
        [RESAMPLES, k].
    """
    sums = np.stack([np.bincount(clusters, column) for column in (*values.T, np.ones(len(values)))], axis=1)
    number = len(sums)
    rng = np.random.default_rng(zlib.crc32(data_set.encode()))
    chunk = max(1, ELEMENTS // number)
    means = []
    for begin in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - begin)
        drawn = rng.integers(number, size=(size, number)) + number * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * number).reshape(size, number)
        totals = counts.astype(float) @ sums
        means.append(totals[:, :-1] / totals[:, -1:])
    return np.concatenate(means)


def interval(samples: np.ndarray) -> np.ndarray:
    """The percentile interval of `LEVEL` percent of each column: [2, k], low and high."""
    tail = (100 - LEVEL) / 2
    return np.percentile(samples, [tail, 100 - tail], axis=0)
