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

from swep_ds.analysis.runs import Run
from swep_ds.errors import InputError
from swep_ds.evaluation.scores import exact_match, f1
from swep_ds.recipe import Recipe

RESAMPLES = 10_000
LEVEL = 95  # percent, of the intervals
ELEMENTS = 2**22  # of the matrix of counts that is made at a time
Golds = dict[str, tuple[str, ...]]  # accepted answers by question id


def per_question(predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]]) -> np.ndarray:
    """EM and F1 of each question in percent, (questions, 2), in the order of `golds`; 0 without a prediction."""
    found = [
        (exact_match(predictions[id_], answers), f1(predictions[id_], answers)) if id_ in predictions else (0.0, 0.0)
        for id_, answers in golds.items()
    ]
    return 100 * np.array(found)


def resampled_means(values: np.ndarray, name: str) -> np.ndarray:
    """Means over questions drawn with replacement, as many as there are; the same draws for every column.

    Args:
        values: (questions, k).
        name: of the data set; it seeds the draws.

    Returns:
        (RESAMPLES, k).
    """
    questions = len(values)
    dice = np.random.default_rng(zlib.crc32(name.encode()))
    at_a_time = max(1, ELEMENTS // questions)
    means = []
    for begin in range(0, RESAMPLES, at_a_time):
        rows = min(at_a_time, RESAMPLES - begin)
        drawn = dice.integers(questions, size=(rows, questions)) + questions * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * questions).reshape(rows, questions)
        means.append(times.astype(float) @ values / questions)
    return np.concatenate(means)


def interval(samples: np.ndarray) -> np.ndarray:
    """The percentile interval of LEVEL percent of each column: (2, k), low and high."""
    beyond = (100 - LEVEL) / 2
    return np.percentile(samples, [beyond, 100 - beyond], axis=0)


class QuestionScores:
    """EM and F1 of each question of each run, from its `predictions/` and the gold answers of its recipe's data.

    `notes` collects, a line each, what could not be read.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._golds: dict[str, dict[str, Golds] | None] = {}  # by data configuration
        self._scores: dict[tuple[Path, str], np.ndarray | None] = {}

    def of(self, run: Run, data_set: str) -> np.ndarray | None:
        """(questions, 2) in percent; None where data or predictions cannot be read or are not those of the results."""
        key = (run.place.folder, data_set)
        if key not in self._scores:
            self._scores[key] = self._read(run, data_set)
        return self._scores[key]

    def _read(self, run: Run, data_set: str) -> np.ndarray | None:
        data = self._data(run.recipe)
        if data is None:
            return None
        file, golds = run.place.folder / "predictions" / f"{data_set}.json", data[data_set]
        try:
            predictions = json.loads(file.read_text())
            lacking = [id_ for id_ in golds if id_ not in predictions]
            scores = per_question(predictions, golds)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            return self._note(f"No interval with {file}: cannot be read ({error}).")
        if lacking:
            self._note(f"{file}: no answer to {len(lacking)} of {len(golds)} questions, such as {lacking[0]}: wrong.")
        reported = run.results.eval[data_set]
        if not np.allclose(scores.mean(axis=0), (reported.exact_match, reported.f1), atol=0.01):
            found = " / ".join(f"{value:.2f}" for value in scores.mean(axis=0))
            return self._note(
                f"No interval with {file}: it scores {found} on the data of today, and {reported.exact_match:.2f} / "
                f"{reported.f1:.2f} in results.json."
            )
        return scores

    def _data(self, recipe: Recipe) -> dict[str, Golds] | None:
        """By data set; read once for all runs that are tested on the same."""
        data = recipe.data
        source = data.train if data.holdout_fraction else None
        key = json.dumps([data.eval, source, data.holdout_fraction, data.max_eval_examples, recipe.eval.select_on])
        if key not in self._golds:
            from swep_ds.examples import reported_examples  # takes seconds

            try:
                tests = reported_examples(recipe)
                self._golds[key] = {name: {one.id: one.answers for one in several} for name, several in tests.items()}
            except InputError as error:
                self._golds[key] = self._note(f"No intervals: the questions cannot be read ({error}).")
        return self._golds[key]

    def _note(self, line: str) -> None:
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
    """By row, (questions, 2): the mean over its runs less that over the base's."""
    means = {}
    for name, runs in rows.items():
        each = [scores.of(run, column) for run in runs]
        means[name] = None if not each or any(one is None for one in each) else np.mean(each, axis=0)
    if means[base] is None:
        return
    for name, own in means.items():
        if name != base and own is not None:
            yield name, own - means[base]
