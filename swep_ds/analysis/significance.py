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
Figures = dict[str, Any]
Differences = dict[tuple[str, str, str], Figures]  # by row, data set or `OUT_OF_DOMAIN`, and metric


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

    def of(self, run: Run, data_set: str) -> pd.DataFrame | None:
        """Columns exact_match and f1, in percent, by question id; 0 without a prediction.

        None if data or predictions cannot be read, have changed since the run, or do not give the scores in the
        results.
        """
        key = (run.folder, data_set)
        if key not in self._scores:
            self._scores[key] = None
            questions = self.questions(run.recipe, data_set)
            try:
                if questions:
                    self._scores[key] = _read(run, data_set, questions.golds)
            except InputError as error:
                self.notes.append(f"No interval with {error}.")
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
                self.notes.append(f"No intervals on {data_set}: its questions cannot be read ({error}).")
        return self._questions[key]


def _read(run: Run, data_set: str, golds: Mapping[str, tuple[str, ...]]) -> pd.DataFrame:
    check_unchanged(run.recipe, run.folder, [source_of_test_set(data_set)])
    predictions = read_predictions(run.folder, data_set)
    by_question = Scorer(run.recipe.eval.answer_language(data_set)).by_question(predictions, golds)
    scores = pd.DataFrame(100 * np.array([*by_question.values()]), index=list(by_question), columns=list(METRICS))
    means = scores.mean()
    reported = run.results.eval[data_set]
    if not np.allclose(means, (reported.exact_match, reported.f1), atol=ROUNDING):
        raise InputError(
            f"{run.folder / 'predictions' / data_set}.json: it scores {means['exact_match']:.2f} / {means['f1']:.2f} "
            f"on today's data, and {reported.exact_match:.2f} / {reported.f1:.2f} in results.json"
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


def compare(rows: Rows, base: str, columns: Sequence[str], scores: QuestionScores) -> Differences:
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
        if column != columns[0]:
            ids[column] = questions.golds
    scores.notes += note_on_shared_ids(ids)
    parts = {column: [column] for column in columns}
    if len(columns) > 2:
        parts[OUT_OF_DOMAIN] = list(columns[1:])
    result: Differences = {}
    for name, sets in by_row.items():
        for column, data_sets in parts.items():
            figures = [_seed_figures(rows[name], rows[base], data_sets, metric) for metric in METRICS]
            if all(data_set in sets for data_set in data_sets):
                _add_intervals(figures, [sets[data_set] for data_set in data_sets])
            for metric, entry in zip(METRICS, figures, strict=True):
                result[name, column, metric] = entry
    return result


def _seed_figures(runs: Sequence[Run], base: Sequence[Run], data_sets: Sequence[str], metric: str) -> Figures:
    """The difference in the mean over data sets, from the scores of the runs."""

    def by_seed(of_row: Sequence[Run]) -> dict[int, float]:
        scores = {run.seed: [run.results.scores[data_set][metric] for data_set in data_sets] for run in of_row}
        return {seed: sum(values) / len(values) for seed, values in scores.items()}

    scores = by_seed(runs)
    base_scores = by_seed(base)
    each = [scores[seed] - base_scores[seed] for seed in common_seeds(runs, base)]
    absent = dict.fromkeys(("std", "low", "high", "p", "no_difference", "bootstrap_low", "bootstrap_high"))
    figures = absent | {"mean": float(np.mean(each)), "n": len(each)}
    if len(each) > 1:
        figures["std"] = float(np.std(each, ddof=1))
    return figures


def _add_intervals(figures: Sequence[Figures], sets: Sequence[SetDifference]) -> None:
    """Adds the intervals to the figures of each metric, for the difference in the mean over data sets."""
    texts = min(effective_clusters(each.clusters) for each in sets)
    bounds = {}
    if texts >= MIN_CLUSTERS:
        low_2, high_2 = interval(np.mean([each.samples for each in sets], axis=0))
        bounds |= {"bootstrap_low": low_2, "bootstrap_high": high_2}
    if len(sets[0].values) >= MIN_SEEDS and texts >= MIN_TEXTS:
        crossed = estimate([(np.moveaxis(each.values, -1, 0), each.clusters) for each in sets])
        low_2, high_2 = crossed.interval()
        bounds |= {"low": low_2, "high": high_2, "p": crossed.p(), "no_difference": crossed.within()}
    for number, entry in enumerate(figures):
        entry |= {name: values[number].item() for name, values in bounds.items()}


def question_differences(rows: Rows, base: str, column: str, scores: QuestionScores) -> dict[str, np.ndarray]:
    """By row, [S, Q, 2]: EM and F1 of the runs less those of the base's run with the same seed, in points.

    The order is that of the seeds in common, and of the questions of the base's first run. Rows without a seed in
    common, or that cannot be read, are missing; all are if a run of the base cannot be read.
    """
    base_scores = {run.seed: scores.of(run, column) for run in rows[base]}
    if any(frame is None for frame in base_scores.values()):
        return {}
    ids = next(iter(base_scores.values())).index
    differences = {}
    for name, runs in rows.items():
        seeds = common_seeds(runs, rows[base])
        row_scores = {run.seed: scores.of(run, column) for run in runs}
        if name == base or not seeds or any(row_scores[seed] is None for seed in seeds):
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
