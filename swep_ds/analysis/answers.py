"""A run's answers, question by question: with the accepted ones, another run's, and what is wrong with them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise, product
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import read_json
from swep_ds.data.example import Example
from swep_ds.evaluation.results import read_predictions
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.examples import reported_examples
from swep_ds.pipeline.inputs import check_unchanged, source_of_test_set
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
MAX_PLACES = 50  # at most so many occurrences of one text in another are examined


@dataclass(frozen=True)
class Answered:
    """A question with its predicted answer, and another run's answer or None; F1 in percent.

    confidence: the answer's probability in [0, 1]; None where the run wrote none.
    calibrated: how likely the answer is exactly right, by the run's calibrator; None without one.
    span: characters [start, end) of the text that the run pointed at; None where it wrote none.
    """

    example: Example
    predicted: str
    right: bool
    f1: float
    confidence: float | None = None
    other: str | None = None
    other_right: bool = False
    other_f1: float = 0.0
    calibrated: float | None = None
    span: tuple[int, int] | None = None

    @property
    def gain(self) -> float:
        """F1 less that of the other run."""
        return self.f1 - self.other_f1

    @cached_property
    def kind(self) -> str:
        """A key of `KINDS`. Where an answer is not in the text, as a generated one may be, shared words decide."""
        if self.right:
            return "right"
        if not self.example.answers:
            return "unanswerable"
        if not self.predicted.strip():
            return "none"
        (accepted_begin, accepted_end), (begin, end) = self.places
        if accepted_begin == accepted_end or begin == end:
            return "boundary" if self.f1 > 0 else "other"
        return "boundary" if max(accepted_begin, begin) < min(accepted_end, end) else "other"

    @cached_property
    def places(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Characters [start, end) of the accepted and of the predicted answer in the text; (0, 0) if it is not there.

        Accepted answers are texts without a place, and so is a predicted one without `span`. Where they occur more than
        once, the two places nearest to each other count.
        """
        context = self.example.context
        accepted = [span for answer in self.example.answers for span in _places(answer, context)]
        predicted = [self.span] if self.span else [*_places(self.predicted, context)]
        if accepted and predicted:
            pairs = product(accepted, predicted)
            return min(pairs, key=lambda pair: max(pair[0][0], pair[1][0]) - min(pair[0][1], pair[1][1]))
        return (accepted or [(0, 0)])[0], (predicted or [(0, 0)])[0]


def read_confidences(folder: Path, name: str, kind: str = "confidence") -> dict[str, float]:
    """The probabilities of a run's answers by question id; empty for a run that wrote none.

    Args:
        kind: "confidence" for the softmax's, "calibrated" for the calibrator's.

    Raises:
        InputError: the file is not a JSON object of numbers from 0 to 1.
    """
    file = folder / kind / f"{name}.json"
    if not file.is_file():
        return {}
    values = read_json(file)
    if not isinstance(values, dict) or not all(
        type(value) in (int, float) and 0 <= value <= 1 for value in values.values()
    ):
        raise InputError(f"{file}: is not a JSON object of question ids and numbers from 0 to 1")
    return values


def read_spans(folder: Path, name: str) -> dict[str, tuple[int, int]]:
    """Characters [start, end) of the text that a run's answers are, by question id; without those of declined
    questions, and empty for a run that generates.

    Raises:
        InputError: the file of the n best answers is not what a run writes.
    """
    file = folder / "n_best" / f"{name}.json"
    if not file.is_file():
        return {}
    spans = {}
    with as_input_error(f"{file}: is damaged", "test the model again"):
        for id_, answers in read_json(file, unique_keys=False).items():
            if answers and answers[0].get("start") is not None:
                spans[id_] = (int(answers[0]["start"]), int(answers[0]["end"]))
    return spans


def read_answered(folder: Path, recipe: Recipe, name: str, against: Path | None = None) -> list[Answered]:
    """The questions of a test set that the run in `folder` answered, in the order of their source, read again.

    Args:
        against: another run's folder.

    Raises:
        InputError: the questions or the answers cannot be read, or the questions have changed since the run.
    """
    check_unchanged(recipe, folder, [source_of_test_set(name)])
    answers, confidences = read_predictions(folder, name), read_confidences(folder, name)
    calibrated, spans = read_confidences(folder, name, "calibrated"), read_spans(folder, name)
    others = read_predictions(against, name) if against and (against / f"predictions/{name}.json").is_file() else {}
    examples, scorer = reported_examples(recipe, name), Scorer(recipe.eval.answer_language(name))
    golds = {example.id: example.answers for example in examples}
    scores, other_scores = (scorer.by_question(texts, golds) for texts in (answers, others))
    answered = [
        Answered(
            example,
            answers[example.id],
            bool(scores[example.id][0]),
            100 * scores[example.id][1],
            confidences.get(example.id),
            others.get(example.id),
            bool(other_scores[example.id][0]),
            100 * other_scores[example.id][1],
            calibrated.get(example.id),
            _span_in(example.context, answers[example.id], spans.get(example.id)),
        )
        for example in examples
        if example.id in answers
    ]
    if not answered:
        raise InputError("its source holds none of the questions that were answered")
    return answered


def _span_in(context: str, answer: str, span: tuple[int, int] | None) -> tuple[int, int] | None:
    """The span, if the text there is the answer: a run may have read another version of the data."""
    return span if span and context[slice(*span)] == answer else None


def in_fixed_order(answered: Sequence[Answered]) -> list[Answered]:
    """All of them, ordered by a hash of their ids: the same questions come first in every run's report."""
    return sorted(answered, key=lambda item: crc32(item.example.id.encode()))


def by_kind(answered: Sequence[Answered]) -> dict[str, list[Answered]]:
    """All of them by what is wrong (`KINDS`), in the order of `in_fixed_order`."""
    ordered = in_fixed_order(answered)
    return {kind: [item for item in ordered if item.kind == kind] for kind in KINDS}


def worst(answered: Sequence[Answered], count: int) -> list[Answered]:
    """The wrong answers with the lowest F1, the lowest first."""
    return sorted((item for item in in_fixed_order(answered) if not item.right), key=lambda item: item.f1)[:count]


def most_changed(answered: Sequence[Answered], count: int) -> tuple[list[Answered], list[Answered]]:
    """(gained, lost) against the other run, the largest difference in F1 first."""
    both = [item for item in in_fixed_order(answered) if item.other is not None]
    gained = sorted((item for item in both if item.gain > 0), key=lambda item: -item.gain)
    lost = sorted((item for item in both if item.gain < 0), key=lambda item: item.gain)
    return gained[:count], lost[:count]


class Piece(NamedTuple):
    """A stretch of a text; `cut` where text before it is left out."""

    text: str
    accepted: bool
    predicted: bool
    cut: bool = False


def excerpt(item: Answered) -> list[Piece]:
    """The text around the places of the accepted and of the predicted answer, cut where either begins or ends."""
    context, spans = item.example.context, item.places
    (gold_begin, gold_end), (begin, end) = spans
    marked = [span for span in spans if span[0] < span[1]] or [(0, 0)]
    cuts = {gold_begin, gold_end, begin, end}
    pieces: list[Piece] = []
    for first, last in _merged([_widened(span, context) for span in marked]):
        edges = [first, *sorted(cut for cut in cuts if first < cut < last), last]
        for k, (left, right) in enumerate(pairwise(edges)):
            inside = (gold_begin <= left and right <= gold_end, begin <= left and right <= end)
            pieces.append(Piece(context[left:right], *inside, cut=k == 0 and left > 0))
    if pieces and last < len(context):
        pieces.append(Piece("", False, False, cut=True))
    return pieces


def _places(text: str, context: str) -> Iterator[tuple[int, int]]:
    if text.strip():
        matches = re.finditer(re.escape(text.strip()), context, re.IGNORECASE)
        yield from (match.span() for match in islice(matches, MAX_PLACES))


def _widened(span: tuple[int, int], context: str) -> tuple[int, int]:
    """The span with `AROUND` characters on both sides, up to a space if there is one near."""
    begin, end = max(0, span[0] - AROUND), min(len(context), span[1] + AROUND)
    space_before = context.rfind(" ", max(0, begin - MAX_WORD), begin) if begin else -1
    space_after = context.find(" ", end, end + MAX_WORD)
    if end + MAX_WORD >= len(context) and space_after < 0:
        space_after = len(context)
    return space_before + 1 if space_before >= 0 or begin <= MAX_WORD else begin, max(end, space_after)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, with those that touch or overlap as one."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
