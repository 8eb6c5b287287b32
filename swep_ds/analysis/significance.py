"""Whether a method differs from another one beyond chance: the chance of the questions, by a paired bootstrap.

A question's score is its mean over a method's seeds, and the two methods are compared on the same questions. An
interval says what other questions of the same kind would have given, for the models that were trained; what other
seeds would have given is shown by the differences seed by seed, which stand beside it in the table.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
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
ELEMENTS = 2**22  # of the matrix of counts that is made at a time
Golds = dict[str, tuple[str, ...]]  # accepted answers by question id


def per_question(predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Columns exact_match and f1, in percent, by question id in the order of `golds`; 0 without a prediction."""
    found = [
        (exact_match(predictions[id_], answers), f1(predictions[id_], answers)) if id_ in predictions else (0.0, 0.0)
        for id_, answers in golds.items()
    ]
    return pd.DataFrame(100 * np.array(found), index=list(golds), columns=["exact_match", "f1"])


def resampled_means(values: np.ndarray, name: str) -> np.ndarray:
    """Means over questions drawn with replacement, as many as there are; the same draws for every column.

    Args:
        values: (questions, k).
        name: of the data set; it seeds the draws.

    Returns:
        (RESAMPLES, k).
    """
    questions = len(values)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    at_a_time = max(1, ELEMENTS // questions)
    means = []
    for begin in range(0, RESAMPLES, at_a_time):
        rows = min(at_a_time, RESAMPLES - begin)
        drawn = rng.integers(questions, size=(rows, questions)) + questions * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * questions).reshape(rows, questions)
        means.append(times.astype(float) @ values / questions)
    return np.concatenate(means)


def interval(samples: np.ndarray) -> np.ndarray:
    """The percentile interval of LEVEL percent of each column: (2, k), low and high."""
    beyond = (100 - LEVEL) / 2
    return np.percentile(samples, [beyond, 100 - beyond], axis=0)


class QuestionScores:
    """EM and F1 of each question of each run, from its `predictions/` and the gold answers of its recipe's data.

    `notes` collects, a line each, what could not be read or compared.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._golds: dict[str, Golds | None] = {}  # by data set and what decides its questions
        self._scores: dict[tuple[Path, str], pd.DataFrame | None] = {}

    def of(self, run: Run, data_set: str) -> pd.DataFrame | None:
        """`per_question`; None where data or predictions cannot be read or are not those of the results."""
        key = (run.place.folder, data_set)
        if key not in self._scores:
            self._scores[key] = self._read(run, data_set)
        return self._scores[key]

    def _read(self, run: Run, data_set: str) -> pd.DataFrame | None:
        golds = self._questions(run.recipe, data_set)
        if golds is None:
            return None
        try:
            predictions = read_predictions(run.place.folder, data_set)
        except InputError as error:
            return self.note(f"No interval with {error}.")
        file = run.place.folder / "predictions" / f"{data_set}.json"
        if lacking := [id_ for id_ in golds if id_ not in predictions]:
            self.note(f"{file}: no answer to {len(lacking)} of {len(golds)} questions, such as {lacking[0]}: wrong.")
        scores = per_question(predictions, golds)
        means, reported = scores.mean(), run.results.eval[data_set]
        if not np.allclose(means, (reported.exact_match, reported.f1), atol=0.01):
            found = " / ".join(f"{value:.2f}" for value in means)
            return self.note(
                f"No interval with {file}: it scores {found} on the data of today, and {reported.exact_match:.2f} / "
                f"{reported.f1:.2f} in results.json."
            )
        return scores

    def _questions(self, recipe: Recipe, data_set: str) -> Golds | None:
        """Read once for all runs that are tested on the same."""
        data = recipe.data
        source = [data.train, data.holdout_fraction] if data_set == HOLDOUT else data.eval.get(data_set)
        key = json.dumps([data_set, source, data.max_eval_examples, recipe.eval.select_on == data_set])
        if key not in self._golds:
            from swep_ds.pipeline.examples import reported_examples  # takes seconds

            try:
                asked = reported_examples(recipe, [data_set])[data_set]
                self._golds[key] = {one.id: one.answers for one in asked}
            except InputError as error:
                self._golds[key] = self.note(f"No intervals on {data_set}: its questions cannot be read ({error}).")
        return self._golds[key]

    def note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)


def intervals(
    rows: Mapping[str, Sequence[Run]], base: str, columns: Sequence[str], scores: QuestionScores
) -> dict[str, dict[str, np.ndarray]]:
    """Intervals of the differences to the row `base`, in percentage points: by row and data set (2, 2), low and high of
    EM and F1.

    Args:
        rows: runs by row; `columns`: the data sets, the source domain first. The mean of the others is named None.
    """
    found: dict[str, dict[str | None, np.ndarray]] = {name: {} for name in rows if name != base}
    shifted: dict[str, list[np.ndarray]] = {name: [] for name in found}
    for number, column in enumerate(columns):
        differences = dict(_differences(rows, base, column, scores))
        if not differences:
            continue
        samples = resampled_means(np.concatenate(list(differences.values()), axis=1), column)
        for name, own in zip(differences, np.split(samples, len(differences), axis=1), strict=True):
            found[name][column] = interval(own)
            if number:
                shifted[name].append(own)
    for name, several in shifted.items():
        if several and len(several) == len(columns) - 1:
            found[name][None] = interval(np.mean(several, axis=0))
    return found


def _differences(
    rows: Mapping[str, Sequence[Run]], base: str, column: str, scores: QuestionScores
) -> Iterator[tuple[str, np.ndarray]]:
    """By row, (questions, 2): the mean over its runs less that over the base's, question by question."""
    read = {name: [scores.of(run, column) for run in runs] for name, runs in rows.items()}
    if not read[base] or any(one is None for one in read[base]):
        return
    asked = read[base][0].index
    means = {}
    for name, each in read.items():
        if not each or any(one is None for one in each):
            continue
        others = [r for r, one in zip(rows[name], each, strict=True) if set(one.index) != set(asked)]
        if others:
            scores.note(
                f"No interval for {name} on {column}: {others[0].place.folder} answered other questions than "
                f"{rows[base][0].place.folder}, so that the difference is not of the methods alone."
            )
            continue
        means[name] = np.mean([one.loc[asked].to_numpy() for one in each], axis=0)
    for name in means:
        if base in means and name != base:
            yield name, means[name] - means[base]
