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
ELEMENTS = 2**22  # so many of the bootstrap's counts are in memory at a time
Rows = Mapping[str, Sequence[Run]]


class Difference(NamedTuple):
    """The difference of a row to the base, in points: EM and F1 [2]."""

    crossed: Estimate | None  # None: fewer than `MIN_SEEDS` seeds in common, or `MIN_TEXTS` paragraphs in a set
    bootstrap: np.ndarray | None  # [2, 2]: low and high; None: fewer than `MIN_CLUSTERS` paragraphs in a set


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
    result: dict[str, dict[str | None, Difference]] = {name: {} for name in rows if name != base}
    shifted: dict[str, list] = {name: [] for name in result}
    for number, column in enumerate(columns):
        differences = question_differences(rows, base, column, scores)
        if not differences:
            continue
        clusters = scores.questions(rows[base][0].recipe, column).clusters.to_numpy()
        means = np.concatenate([values_SQ2.mean(0) for values_SQ2 in differences.values()], axis=1)
        samples = np.split(resampled_means(means, clusters, column), len(differences), axis=1)
        for (name, values_SQ2), row_samples in zip(differences.items(), samples, strict=True):
            result[name][column] = _difference([(values_SQ2, clusters)], row_samples)
            if number:
                shifted[name].append((values_SQ2, clusters, row_samples))
    if any(shifted.values()):
        questions = {column: scores.questions(rows[base][0].recipe, column) for column in columns[1:]}
        for note in note_on_shared_ids({name: found.golds for name, found in questions.items() if found}):
            scores.note(note)
    for name, parts in shifted.items():
        if parts and len(parts) == len(columns) - 1:
            mean_samples = np.mean([samples for _, _, samples in parts], axis=0)
            result[name][None] = _difference([part[:2] for part in parts], mean_samples)
    return result


def _difference(sets: Sequence[tuple[np.ndarray, np.ndarray]], samples: np.ndarray) -> Difference:
    """From the values [S, Q, 2] and the clusters of one data set or several, and the resampled means."""
    fewest = min(effective_clusters(clusters) for _, clusters in sets)
    crossed = None
    if len(sets[0][0]) >= MIN_SEEDS and fewest >= MIN_TEXTS:
        crossed = estimate([(np.moveaxis(values_SQ2, -1, 0), clusters) for values_SQ2, clusters in sets])
    return Difference(crossed, interval(samples) if fewest >= MIN_CLUSTERS else None)


def question_differences(rows: Rows, base: str, column: str, scores: QuestionScores) -> dict[str, np.ndarray]:
    """By row, [S, Q, 2]: EM and F1 of the runs less those of the base's run with the same seed, in points.

    The order is that of the seeds in common, and of the questions of the base's first run. Rows without a seed in
    common, or whose runs answered other questions than the base's, are missing; all are if a run of the base cannot be
    read.
    """
    frames = {name: {run.ref.seed: scores.of(run, column) for run in runs} for name, runs in rows.items()}
    if not rows[base] or any(frame is None for frame in frames[base].values()):
        return {}
    ids = frames[base][rows[base][0].ref.seed].index
    differences = {}
    for name, runs in rows.items():
        seeds = common_seeds(runs, rows[base])
        if name == base or not seeds or any(frames[name][seed] is None for seed in seeds):
            continue
        paired = [run for row in (name, base) for run in rows[row] if run.ref.seed in seeds]
        others = [run for run in paired if set(scores.of(run, column).index) != set(ids)]
        if others:
            scores.note(
                f"No interval for {name} on {column}: {others[0].ref.folder} answered other questions than "
                f"{rows[base][0].ref.folder}, so the difference would not be that of the methods alone."
            )
            continue
        differences[name] = np.stack(
            [(frames[name][seed].loc[ids] - frames[base][seed].loc[ids]).to_numpy() for seed in seeds]
        )
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
