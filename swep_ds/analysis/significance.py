"""Paired bootstrap over questions: is the difference between two methods larger than sampling noise?

A question's score is its mean over a method's seeds, and two methods are compared on the same questions. The interval
says what other questions of the same kind would give, for these trained models. It does not say what other seeds would
give: the table shows the differences seed by seed for that.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from swep_ds.analysis.answers import read_predictions
from swep_ds.analysis.runs import Run
from swep_ds.errors import InputError
from swep_ds.evaluation.scores import exact_match, f1
from swep_ds.recipe import HOLDOUT, Recipe

RESAMPLES = 10_000
LEVEL = 95  # percent, of the intervals
ELEMENTS = 2**22  # of the bootstrap's counts that are in memory at a time
Golds = dict[str, tuple[str, ...]]  # accepted answers by question id


def per_question(predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Columns exact_match and f1, in percent, by question id in the order of `golds`; 0 without a prediction."""
    scores = [
        (exact_match(predictions[id_], answers), f1(predictions[id_], answers)) if id_ in predictions else (0.0, 0.0)
        for id_, answers in golds.items()
    ]
    return pd.DataFrame(100 * np.array(scores), index=list(golds), columns=["exact_match", "f1"])


def resampled_means(values: np.ndarray, data_set: str) -> np.ndarray:
    """Means over as many questions, drawn with replacement; all columns share their draws, which `data_set` seeds.

    Args:
        values: (questions, k).

    Returns:
        (RESAMPLES, k).
    """
    questions = len(values)
    rng = np.random.default_rng(zlib.crc32(data_set.encode()))
    chunk = max(1, ELEMENTS // questions)
    means = []
    for begin in range(0, RESAMPLES, chunk):
        rows = min(chunk, RESAMPLES - begin)
        drawn = rng.integers(questions, size=(rows, questions)) + questions * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * questions).reshape(rows, questions)
        means.append(counts.astype(float) @ values / questions)
    return np.concatenate(means)


def interval(samples: np.ndarray) -> np.ndarray:
    """The percentile interval of `LEVEL` percent of each column: (2, k), low and high."""
    tail = (100 - LEVEL) / 2
    return np.percentile(samples, [tail, 100 - tail], axis=0)


class QuestionScores:
    """EM and F1 of each question of each run, from its `predictions/` and the gold answers of its recipe's data.

    `notes` collects, a line each, what could not be read or compared.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._golds: dict[str, Golds | None] = {}  # by data set and the settings that decide its questions
        self._scores: dict[tuple[Path, str], pd.DataFrame | None] = {}

    def of(self, run: Run, data_set: str) -> pd.DataFrame | None:
        """`per_question`, or None if data or predictions cannot be read or do not give the scores in the results."""
        key = (run.ref.folder, data_set)
        if key not in self._scores:
            self._scores[key] = self._read(run, data_set)
        return self._scores[key]

    def _read(self, run: Run, data_set: str) -> pd.DataFrame | None:
        golds = self._questions(run.recipe, data_set)
        if golds is None:
            return None
        try:
            predictions = read_predictions(run.ref.folder, data_set)
        except InputError as error:
            return self.note(f"No interval with {error}.")
        file = run.ref.folder / "predictions" / f"{data_set}.json"
        if unanswered := [id_ for id_ in golds if id_ not in predictions]:
            self.note(
                f"{file}: no answer to {len(unanswered)} of {len(golds)} questions, such as {unanswered[0]}: they "
                "count as wrong."
            )
        scores = per_question(predictions, golds)
        means, reported = scores.mean(), run.results.eval[data_set]
        if not np.allclose(means, (reported.exact_match, reported.f1), atol=0.01):
            return self.note(
                f"No interval with {file}: it scores {' / '.join(f'{value:.2f}' for value in means)} on today's "
                f"data, and {reported.exact_match:.2f} / {reported.f1:.2f} in results.json."
            )
        return scores

    def _questions(self, recipe: Recipe, data_set: str) -> Golds | None:
        """Reads the questions once for all runs that are tested on the same ones."""
        data = recipe.data
        source = [data.train, data.holdout_fraction] if data_set == HOLDOUT else data.eval.get(data_set)
        key = json.dumps([data_set, source, data.max_eval_examples, recipe.eval.select_on == data_set])
        if key not in self._golds:
            from swep_ds.pipeline.examples import reported_examples  # takes seconds

            try:
                examples = reported_examples(recipe, [data_set])[data_set]
                self._golds[key] = {example.id: example.answers for example in examples}
            except InputError as error:
                self._golds[key] = self.note(f"No intervals on {data_set}: its questions cannot be read ({error}).")
        return self._golds[key]

    def note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)


def intervals(
    rows: Mapping[str, Sequence[Run]], base: str, columns: Sequence[str], scores: QuestionScores
) -> dict[str, dict[str | None, np.ndarray]]:
    """Intervals of the differences to the row `base`, in percentage points.

    Args:
        rows: runs by row.
        columns: the data sets, the source domain first.

    Returns:
        By row and data set (None: the mean over all but the first) an array (2, 2): low and high of EM and F1.
    """
    result: dict[str, dict[str | None, np.ndarray]] = {name: {} for name in rows if name != base}
    shifted: dict[str, list[np.ndarray]] = {name: [] for name in result}
    for number, column in enumerate(columns):
        differences = question_differences(rows, base, column, scores)
        if not differences:
            continue
        samples = resampled_means(np.concatenate(list(differences.values()), axis=1), column)
        for name, row_samples in zip(differences, np.split(samples, len(differences), axis=1), strict=True):
            result[name][column] = interval(row_samples)
            if number:
                shifted[name].append(row_samples)
    for name, samples in shifted.items():
        if samples and len(samples) == len(columns) - 1:
            result[name][None] = interval(np.mean(samples, axis=0))
    return result


def question_differences(
    rows: Mapping[str, Sequence[Run]], base: str, column: str, scores: QuestionScores
) -> dict[str, np.ndarray]:
    """By row, (questions, 2): the mean score of its runs less that of the base's, question by question."""
    frames = {name: [scores.of(run, column) for run in runs] for name, runs in rows.items()}
    if not frames[base] or any(frame is None for frame in frames[base]):
        return {}
    ids = frames[base][0].index
    means = {}
    for name, row_frames in frames.items():
        if not row_frames or any(frame is None for frame in row_frames):
            continue
        others = [run for run, frame in zip(rows[name], row_frames, strict=True) if set(frame.index) != set(ids)]
        if others:
            scores.note(
                f"No interval for {name} on {column}: {others[0].ref.folder} answered other questions than "
                f"{rows[base][0].ref.folder}, so the difference would not be that of the methods alone."
            )
            continue
        means[name] = np.mean([frame.loc[ids].to_numpy() for frame in row_frames], axis=0)
    return {name: mean - means[base] for name, mean in means.items() if base in means and name != base}
