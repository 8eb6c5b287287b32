"""A run's answers, question by question, with the accepted ones and another run's."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from swep_ds.data.readers import Example
from swep_ds.errors import InputError
from swep_ds.evaluation.scores import Scorer
from swep_ds.files import read_json
from swep_ds.pipeline.examples import reported_examples
from swep_ds.recipe import Recipe


@dataclass(frozen=True)
class Answered:
    """A question with its predicted answer, and another run's answer or None; F1 in percent."""

    example: Example
    predicted: str
    right: bool
    f1: float
    other: str | None = None
    other_f1: float = 0.0

    @property
    def gain(self) -> float:
        """F1 less that of the other run."""
        return self.f1 - self.other_f1


def read_predictions(folder: Path, name: str) -> dict[str, str]:
    """A run's answers by question id.

    Raises:
        InputError: the file is missing, or is no JSON object of strings.
    """
    file = folder / "predictions" / f"{name}.json"
    answers = read_json(file)
    if not isinstance(answers, dict) or not all(isinstance(text, str) for text in answers.values()):
        raise InputError(f"{file}: no JSON object of question ids and answers")
    return answers


def read_answered(folder: Path, recipe: Recipe, name: str, against: Path | None = None) -> list[Answered]:
    """The questions of a test set that the run in `folder` answered, in the order of their source, read again.

    Args:
        against: another run's folder.

    Raises:
        InputError: the questions or the answers cannot be read.
    """
    answers = read_predictions(folder, name)
    others = read_predictions(against, name) if against and (against / f"predictions/{name}.json").is_file() else {}
    examples, scorer = reported_examples(recipe, [name])[name], Scorer(recipe.eval.answer_language(name))
    golds = {example.id: example.answers for example in examples}
    scores, other_scores = (scorer.by_question(texts, golds) for texts in (answers, others))
    answered = [
        Answered(
            example,
            answers[example.id],
            bool(scores[example.id][0]),
            100 * scores[example.id][1],
            others.get(example.id),
            100 * other_scores[example.id][1],
        )
        for example in examples
        if example.id in answers
    ]
    if not answered:
        raise InputError("its source holds none of the questions that were answered")
    return answered


def fixed_choice(answered: Sequence[Answered]) -> list[Answered]:
    """All of them, ordered by a hash of their ids: the same questions come first in every run's report."""
    return sorted(answered, key=lambda item: crc32(item.example.id.encode()))


def worst(answered: Sequence[Answered], count: int) -> list[Answered]:
    """The wrong answers with the lowest F1, the lowest first."""
    return sorted((item for item in fixed_choice(answered) if not item.right), key=lambda item: item.f1)[:count]


def most_changed(answered: Sequence[Answered], count: int) -> tuple[list[Answered], list[Answered]]:
    """(gained, lost) against the other run, the largest difference in F1 first."""
    both = [item for item in fixed_choice(answered) if item.other is not None]
    gained = sorted((item for item in both if item.gain > 0), key=lambda item: -item.gain)
    lost = sorted((item for item in both if item.gain < 0), key=lambda item: item.gain)
    return gained[:count], lost[:count]
