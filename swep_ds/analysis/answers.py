"""What a run answered, question by question, beside what was accepted and what another run answered."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from swep_ds.data.readers import Example
from swep_ds.errors import InputError
from swep_ds.evaluation.scores import exact_match, f1
from swep_ds.files import read_json
from swep_ds.pipeline.examples import reported_examples
from swep_ds.recipe import Recipe


@dataclass(frozen=True)
class Answered:
    """A question with its predicted answer; `f1` in percent. `other` is another run's answer, None without one."""

    example: Example
    predicted: str
    right: bool
    f1: float
    other: str | None = None
    other_f1: float = 0.0

    @property
    def gain(self) -> float:
        """F1 over the other run's."""
        return self.f1 - self.other_f1


def read_predictions(folder: Path, name: str) -> dict[str, str]:
    """A run's answers by question id.

    Raises:
        InputError: the file is gone, or no JSON object of texts.
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
        InputError: the questions or the answers cannot be read any more.
    """
    answers = read_predictions(folder, name)
    others = read_predictions(against, name) if against and (against / f"predictions/{name}.json").is_file() else {}
    asked = [example for example in reported_examples(recipe, [name])[name] if example.id in answers]
    if not asked:
        raise InputError("its source holds none of the questions that were answered")
    return [_answered(example, answers[example.id], others.get(example.id)) for example in asked]


def _answered(example: Example, predicted: str, other: str | None) -> Answered:
    golds = example.answers
    own = (bool(exact_match(predicted, golds)), 100 * f1(predicted, golds))
    return Answered(example, predicted, *own, other, 100 * f1(other, golds) if other is not None else 0.0)


def fixed_choice(answered: Sequence[Answered]) -> list[Answered]:
    """All of them in an order that only their ids decide: the same questions come first in every run's report."""
    return sorted(answered, key=lambda one: crc32(one.example.id.encode()))


def worst(answered: Sequence[Answered], count: int) -> list[Answered]:
    """The lowest F1 first, none of the right ones."""
    return sorted((one for one in fixed_choice(answered) if not one.right), key=lambda one: one.f1)[:count]


def most_changed(answered: Sequence[Answered], count: int) -> tuple[list[Answered], list[Answered]]:
    """(gained, lost) against the other run, the largest difference in F1 first."""
    both = [one for one in fixed_choice(answered) if one.other is not None]
    gained = sorted((one for one in both if one.gain > 0), key=lambda one: -one.gain)
    lost = sorted((one for one in both if one.gain < 0), key=lambda one: one.gain)
    return gained[:count], lost[:count]
