"""Is the difference between two methods larger than chance? Intervals for rows of runs, over the seeds in common.

There are two kinds. The crossed interval (`crossed.py`) says what other seeds and other questions would give. The
question bootstrap says what other questions would give for these trained models; it knows nothing of other seeds.
"""

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from swep_ds.analysis.crossed import LEVEL, MIN_SEEDS, MIN_TEXTS, estimate
from swep_ds.analysis.runs import Run
from swep_ds.common.errors import InputError
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.calibration import MIN_CLUSTERS
from swep_ds.evaluation.results import METRICS, OUT_OF_DOMAIN, read_predictions
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.examples import check_unchanged, reported_examples, source_of_test_set
from swep_ds.pipeline.recipe import HOLDOUT, Recipe

RESAMPLES = 10_000
ELEMENTS = 2**22  # of the bootstrap's counts that are in memory at a time
ROUNDING = 0.01  # points by which scores computed again may differ from those in results.json
Rows = Mapping[str, Sequence[Run]]
Differences = dict[str, dict[str, dict[str, Any]]]  # by data set or `OUT_OF_DOMAIN`, then by metric: figures


# The scores of each question


class Questions(NamedTuple):
    """The questions of a test set: accepted answers by id, and each question's cluster by number."""

    golds: dict[str, tuple[str, ...]]
    clusters: np.ndarray


def note_on_shared_ids(ids: Mapping[str, Collection[str]]) -> list[str]:
    """A line if two data sets have more than half of their question ids in common, such as translations of one set.

    Args:
        ids: of the questions, by data set, of sets whose mean has an interval.
    """
    parallel = []
    for name, other in combinations(ids, 2):
        shared = len(set(ids[name]) & set(ids[other]))
        if 2 * shared > min(len(ids[name]), len(ids[other])):
            parallel += [name, other]
    if not parallel:
        return []
    return [
        f"{', '.join(dict.fromkeys(parallel))} share question ids. The interval of the mean over data sets takes their "
        "questions as unrelated: if they are the same questions, it is too narrow, so read one of these sets."
    ]


class QuestionScores:
    """EM and F1 of each question of each run, from its `predictions/` and the gold answers of its recipe's data.

    `notes` collects, a line each, what could not be read or compared.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._questions: dict[str, Questions | None] = {}  # by data set and the settings that decide its questions
        self._scores: dict[tuple[Path, str], pd.DataFrame | None] = {}

    def note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)

    def of(self, run: Run, data_set: str) -> pd.DataFrame | None:
        """Columns exact_match and f1, in percent, by question id; 0 without a prediction.

        None if data or predictions cannot be read, have changed since the run, or do not give the scores in the
        results.
        """
        key = (run.folder, data_set)
        if key not in self._scores:
            self._scores[key] = None
            if self.questions(run.recipe, data_set):
                try:
                    self._scores[key] = self._read(run, data_set)
                except InputError as error:
                    self.note(f"No interval with {error}.")
        return self._scores[key]

    def questions(self, recipe: Recipe, data_set: str) -> Questions | None:
        """Reads the questions once for all runs that are tested on the same ones; None if they cannot be read."""
        data = recipe.data
        source = data.eval.get(data_set)
        if data_set == HOLDOUT:
            source = [data.train, data.holdout_fraction, data.repeated_answers]
        half = recipe.validation_set == data_set
        key = json.dumps([data_set, source, data.max_eval_examples, data.unanswerable, half])
        if key not in self._questions:
            self._questions[key] = None
            try:
                examples = reported_examples(recipe, data_set)
                golds = {example.id: example.answers for example in examples}
                self._questions[key] = Questions(golds, clusters(examples))
            except InputError as error:
                self.note(f"No intervals on {data_set}: its questions cannot be read ({error}).")
        return self._questions[key]

    def _read(self, run: Run, data_set: str) -> pd.DataFrame:
        golds = self.questions(run.recipe, data_set).golds
        check_unchanged(run.recipe, run.folder, [source_of_test_set(data_set)])
        predictions = read_predictions(run.folder, data_set)
        file = run.folder / "predictions" / f"{data_set}.json"
        by_question = Scorer(run.recipe.eval.answer_language(data_set)).by_question(predictions, golds)
        scores = pd.DataFrame(100 * np.array([*by_question.values()]), index=list(by_question), columns=list(METRICS))
        means = scores.mean()
        reported = run.results.eval[data_set]
        if not np.allclose(means, (reported.exact_match, reported.f1), atol=ROUNDING):
            raise InputError(
                f"{file}: it scores {means['exact_match']:.2f} / {means['f1']:.2f} on today's data, and "
                f"{reported.exact_match:.2f} / {reported.f1:.2f} in results.json"
            )
        return scores


# Differences


class SetDifference(NamedTuple):
    """Of one data set: values [S, Q, 2], each question's cluster [Q], and the resampled means [RESAMPLES, 2]."""

    values: np.ndarray
    clusters: np.ndarray
    samples: np.ndarray


def common_seeds(runs: Sequence[Run], base: Sequence[Run]) -> list[int]:
    return sorted({run.seed for run in runs} & {run.seed for run in base})


def compare(rows: Rows, base: str, columns: Sequence[str], scores: QuestionScores) -> dict[str, Differences]:
    """Differences to the row `base` of the rows with seeds in common, in points, over these seeds.

    Args:
        rows: runs by row.
        columns: the data sets, the source domain first.
        scores: gets notes on what could not be read or compared.

    Returns:
        By row, data set and metric {"mean", "std": from seed to seed, or None (one seed), "n": seeds, "low", "high"
        and "p": of the crossed interval, "no_difference": whether it is smaller than `MARGIN` by its test,
        "bootstrap_low", "bootstrap_high"}; None where there is no interval. Two or more shifted sets also have their
        mean, `OUT_OF_DOMAIN`.
    """
    shifted = list(columns[1:])
    compared = [name for name, runs in rows.items() if name != base and common_seeds(runs, rows[base])]
    by_row: dict[str, dict[str, SetDifference]] = {name: {} for name in compared}
    ids = {}
    for column in columns:
        differences = question_differences(rows, base, column, scores)
        if not differences:
            continue
        questions = scores.questions(rows[base][0].recipe, column)
        means = np.concatenate([values_SQ2.mean(0) for values_SQ2 in differences.values()], axis=1)
        samples = np.split(resampled_means(means, questions.clusters, column), len(differences), axis=1)
        for (name, values_SQ2), row_samples in zip(differences.items(), samples, strict=True):
            by_row[name][column] = SetDifference(values_SQ2, questions.clusters, row_samples)
        if column in shifted:
            ids[column] = questions.golds
    for note in note_on_shared_ids(ids):
        scores.note(note)
    parts = {column: [column] for column in columns}
    if len(shifted) > 1:
        parts[OUT_OF_DOMAIN] = shifted
    result: dict[str, Differences] = {name: {} for name in compared}
    for name, sets in by_row.items():
        for column, data_sets in parts.items():
            known = [sets[data_set] for data_set in data_sets if data_set in sets]
            figures = [_seed_figures(rows[name], rows[base], data_sets, metric) for metric in METRICS]
            if len(known) == len(data_sets):
                _add_intervals(figures, known)
            result[name][column] = dict(zip(METRICS, figures, strict=True))
    return result


def _seed_figures(runs: Sequence[Run], base: Sequence[Run], data_sets: Sequence[str], metric: str) -> dict[str, Any]:
    """The difference in the mean over data sets, from the scores of the runs."""

    def by_seed(of_row: Sequence[Run]) -> dict[int, float]:
        scores = {run.seed: [run.results.scores[data_set][metric] for data_set in data_sets] for run in of_row}
        return {seed: sum(values) / len(values) for seed, values in scores.items()}

    scores, base_scores = by_seed(runs), by_seed(base)
    each = [scores[seed] - base_scores[seed] for seed in common_seeds(runs, base)]
    std = float(np.std(each, ddof=1)) if len(each) > 1 else None
    absent = dict.fromkeys(("low", "high", "p", "no_difference", "bootstrap_low", "bootstrap_high"))
    return {"mean": float(np.mean(each)), "std": std, "n": len(each), **absent}


def _add_intervals(figures: Sequence[dict[str, Any]], sets: Sequence[SetDifference]) -> None:
    """Adds the intervals to the figures of each metric, for the difference in the mean over data sets."""
    texts = min(effective_clusters(each.clusters) for each in sets)
    if texts >= MIN_CLUSTERS:
        low_2, high_2 = interval(np.mean([each.samples for each in sets], axis=0)).tolist()
        for entry, low, high in zip(figures, low_2, high_2, strict=True):
            entry |= {"bootstrap_low": low, "bootstrap_high": high}
    if len(sets[0].values) >= MIN_SEEDS and texts >= MIN_TEXTS:
        crossed = estimate([(np.moveaxis(each.values, -1, 0), each.clusters) for each in sets])
        low_2, high_2 = crossed.interval()
        columns = (low_2.tolist(), high_2.tolist(), crossed.p().tolist(), crossed.within().tolist())
        for entry, low, high, p, within in zip(figures, *columns, strict=True):
            entry |= {"low": low, "high": high, "p": p, "no_difference": within}


def question_differences(rows: Rows, base: str, column: str, scores: QuestionScores) -> dict[str, np.ndarray]:
    """By row, [S, Q, 2]: EM and F1 of the runs less those of the base's run with the same seed, in points.

    The order is that of the seeds in common, and of the questions of the base's first run. Rows without a seed in
    common, or whose runs answered other questions than the base's, are missing; all are if a run of the base cannot be
    read.
    """
    base_scores = {run.seed: scores.of(run, column) for run in rows[base]}
    if not base_scores or any(frame is None for frame in base_scores.values()):
        return {}
    first = rows[base][0]
    ids = base_scores[first.seed].index
    differences = {}
    for name, runs in rows.items():
        seeds = common_seeds(runs, rows[base])
        row_scores = {run.seed: scores.of(run, column) for run in runs}
        if name == base or not seeds or any(row_scores[seed] is None for seed in seeds):
            continue
        paired = [run for run in (*runs, *rows[base]) if run.seed in seeds]
        others = [run for run in paired if set(scores.of(run, column).index) != set(ids)]
        if others:
            scores.note(
                f"No interval for {name} on {column}: {others[0].folder} answered other questions than "
                f"{first.folder}, so the difference would not be that of the methods alone."
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
