"""EM and F1 of each question of each run, and which questions belong together."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from swep_ds.analysis.runs import Run
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.data.splits import clusters
from swep_ds.evaluation.results import METRICS, read_predictions
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.recipe import HOLDOUT, Recipe

ROUNDING = 0.01  # points by which scores computed again may differ from those in results.json


@dataclass(frozen=True)
class Questions:
    """The questions of a test set: accepted answers by id, and each question's cluster by number."""

    golds: dict[str, tuple[str, ...]]
    clusters: np.ndarray

    @classmethod
    def of(cls, examples: Sequence[Example]) -> "Questions":
        return cls({example.id: example.answers for example in examples}, clusters(examples))


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
        key = (run.ref.folder, data_set)
        if key not in self._scores:
            try:
                self._scores[key] = self._read(run, data_set)
            except InputError as error:
                self._scores[key] = self.note(f"No interval with {error}.")
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
            from swep_ds.pipeline.examples import reported_examples  # takes seconds

            try:
                self._questions[key] = Questions.of(reported_examples(recipe, data_set))
            except InputError as error:
                self._questions[key] = self.note(f"No intervals on {data_set}: its questions cannot be read ({error}).")
        return self._questions[key]

    def _read(self, run: Run, data_set: str) -> pd.DataFrame | None:
        from swep_ds.pipeline.inputs import check_unchanged, source_of_test_set  # takes seconds

        questions = self.questions(run.recipe, data_set)
        if questions is None:
            return None
        check_unchanged(run.recipe, run.ref.folder, [source_of_test_set(data_set)])
        predictions = read_predictions(run.ref.folder, data_set)
        file = run.ref.folder / "predictions" / f"{data_set}.json"
        if unanswered := [id_ for id_ in questions.golds if id_ not in predictions]:
            self.note(
                f"{file}: no answer to {len(unanswered)} of {len(questions.golds)} questions, such as {unanswered[0]}: "
                "they count as wrong."
            )
        scorer = Scorer(run.recipe.eval.answer_language(data_set))
        by_question = scorer.by_question(predictions, questions.golds)
        scores = pd.DataFrame(100 * np.array([*by_question.values()]), index=list(by_question), columns=list(METRICS))
        means, reported = scores.mean(), run.results.eval[data_set]
        if not np.allclose(means, (reported.exact_match, reported.f1), atol=ROUNDING):
            return self.note(
                f"No interval with {file}: it scores {means['exact_match']:.2f} / {means['f1']:.2f} on today's "
                f"data, and {reported.exact_match:.2f} / {reported.f1:.2f} in results.json."
            )
        return scores

    def note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)
