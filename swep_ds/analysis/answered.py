"""A run's answers, question by question: with the accepted ones, another run's, and what is wrong with them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice, product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json
from swep_ds.data.example import Example
from swep_ds.evaluation.predictions import Marking
from swep_ds.evaluation.results import read_predictions
from swep_ds.pipeline.examples import answered_examples
from swep_ds.pipeline.recipe import Recipe

# in this order: the answer overlaps an accepted one in the text; it does not; its question has no answer; the answer is
# empty; its exact match is 1
KINDS = {
    "boundary": "Boundary wrong",
    "other": "Another answer",
    "unanswerable": "Should have been declined",
    "none": "Not answered",
    "right": "Right",
}
AROUND = 110  # characters of the text that are shown before and after an answer
MAX_WORD = 30  # characters; text may have no spaces
MAX_PLACES = 50  # occurrences of one text in another that are examined


@dataclass
class Answered:
    """A question with a run's answer. What the run did not write is None."""

    example: Example
    predicted: str
    right: bool
    f1: float  # in percent
    confidence: float | None = None  # the answer's probability in [0, 1]
    calibrated: float | None = None  # how likely the answer is exactly right, by the run's calibrator
    place: range | None = None  # the characters of the text that the run pointed at
    other: "Answered | None" = None  # another run's

    @property
    def gain(self) -> float:
        """F1 less that of the other run."""
        return self.f1 - self.other.f1

    @cached_property
    def kind(self) -> str:
        """A key of `KINDS`. Where an answer is not in the text, as a generated one may be, shared words decide."""
        if self.right:
            return "right"
        if not self.example.answers:
            return "unanswerable"
        if not self.predicted.strip():
            return "none"
        overlaps = self.f1 > 0
        if all(self.places):
            overlaps = _distance(self.places) < 0
        if overlaps:
            return "boundary"
        return "other"

    @cached_property
    def places(self) -> tuple[range, range]:
        """The characters of the accepted and of the predicted answer; empty if it is not in the text.

        Accepted answers are texts without a place, and so is a predicted one without `place`. Where they occur more
        than once, the two places nearest to each other count.
        """
        context = self.example.context
        accepted = [place for answer in self.example.answers for place in _occurrences(answer, context)]
        predicted = [self.place]
        if not self.place:
            predicted = _occurrences(self.predicted, context)
        return min(product(accepted or [range(0)], predicted or [range(0)]), key=_distance)

    @property
    def excerpt(self) -> list[tuple[str, bool, bool]]:
        """The text around the places of the accepted and of the predicted answer, in pieces that are in none, one or
        both of them: (text, whether accepted, whether predicted). A piece … is in place of what is left out."""
        context = self.example.context
        accepted, predicted = self.places
        near = [_widened(place, context) for place in self.places if place] or [_widened(range(0), context)]

        def marks(at: int) -> tuple[bool, bool, bool]:
            return any(at in part for part in near), at in accepted, at in predicted

        pieces = []
        for (is_near, in_accepted, in_predicted), places in groupby(range(len(context)), marks):
            text = "".join(context[at] for at in places) if is_near else " … "
            pieces.append((text, in_accepted, in_predicted))
        return pieces


def _distance(places: tuple[range, range]) -> int:
    """Characters between two places; below 0 where they overlap."""
    return max(place.start for place in places) - min(place.stop for place in places)


def _occurrences(text: str, context: str) -> list[range]:
    """The first places of a text in another, whatever their case; no two overlap."""
    if not text.strip():
        return []
    matches = re.finditer(re.escape(text.strip()), context, re.IGNORECASE)
    return [range(*match.span()) for match in islice(matches, MAX_PLACES)]


def _widened(place: range, context: str) -> range:
    """The place with `AROUND` characters on both sides, and with the rest of a word that they cut if it is short."""
    before = re.search(rf"(?s)\S{{0,{MAX_WORD}}}.{{0,{AROUND}}}\Z", context[: place.start][-AROUND - MAX_WORD :])
    after = re.match(rf"(?s).{{0,{AROUND}}}\S{{0,{MAX_WORD}}}", context[place.stop :])
    return range(place.start - len(before.group()), place.stop + len(after.group()))


def read_answered(folder: Path, recipe: Recipe, name: str, against: Path | None = None) -> list[Answered]:
    """The questions of a test set that the run in `folder` answered, in the order of their source, read again; with the
    answers of the run in `against`. Raises InputError: the questions or the answers cannot be read, or the questions
    have changed since the run."""
    examples = answered_examples(recipe, folder, name)
    answers = read_predictions(folder, name)
    wrote = {kind: _read_if_any(folder, kind, name) for kind in ("confidence", "calibrated", "n_best")}
    marking = Marking(examples, recipe.eval.scorer_of(name))
    others = {}
    if against and (others := _read_if_any(against, "predictions", name)):
        others = scored(others, examples, marking.read(against, name))
    answered = scored(answers, examples, marking.read(folder, name))
    for id_, item in answered.items():
        item.confidence = wrote["confidence"].get(id_)
        item.calibrated = wrote["calibrated"].get(id_)
        item.other = others.get(id_)
        best = wrote["n_best"].get(id_)
        if best and best[0].get("start") is not None:  # else it is declined, or generated
            place = range(best[0]["start"], best[0]["end"])
            if item.example.context[place.start : place.stop] == item.predicted:  # else the run read other data
                item.place = place
    if not answered:
        raise InputError("its source holds none of the questions that were answered")
    return list(answered.values())


def scored(predictions: Mapping[str, str], examples: Sequence[Example], scores_2Q: np.ndarray) -> dict[str, Answered]:
    """By id, the questions that have a prediction, with the scores of `Marking`."""
    answered = {}
    for example, exact_match, f1 in zip(examples, *scores_2Q.tolist(), strict=True):
        if example.id in predictions:
            answered[example.id] = Answered(example, predictions[example.id], bool(exact_match), 100 * f1)
    return answered


def _read_if_any(folder: Path, kind: str, name: str) -> dict[str, Any]:
    """`<kind>/<name>.json`, by question id; empty for a run that wrote none."""
    file = folder / kind / f"{name}.json"
    if not file.is_file():
        return {}
    return read_json(file, unique_keys=False)


def in_fixed_order(answered: Sequence[Answered]) -> list[Answered]:
    """All of them, ordered by a hash of their ids: the same questions come first in every run's report."""
    return sorted(answered, key=lambda item: crc32(item.example.id.encode()))


def by_kind(answered: Sequence[Answered]) -> dict[str, list[Answered]]:
    """All of them by what is wrong (`KINDS`), in the order of `in_fixed_order`."""
    ordered = in_fixed_order(answered)
    return {kind: [item for item in ordered if item.kind == kind] for kind in KINDS}


def most_changed(answered: Sequence[Answered], count: int) -> tuple[list[Answered], list[Answered]]:
    """(gained, lost) against the other run, the largest difference in F1 first."""
    both = [item for item in in_fixed_order(answered) if item.other is not None]
    gained = sorted((item for item in both if item.gain > 0), key=lambda item: -item.gain)
    lost = sorted((item for item in both if item.gain < 0), key=lambda item: item.gain)
    return gained[:count], lost[:count]
