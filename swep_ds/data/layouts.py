"""The layouts of question-answering data: SQuAD's articles, paragraphs with their questions (simpletransformers, MRQA),
and rows.

Faults of single questions are collected and reported together at the end of their file.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

from swep_ds.common.errors import InputError
from swep_ds.data.answers import (
    answer_pairs,
    check_possible,
    find_answer,
    mrqa_span,
    occurrences,
    require_answers,
    squad_span,
)
from swep_ds.data.example import Example
from swep_ds.data.fields import excerpt, field, id_field, is_missing, require_text, text_field, whole_number

# Several MRQA sets put [SEP] after titles.
_MRQA_MARKER = re.compile(r"\[(?:TLE|PAR|DOC|SEP)\]")
MAX_NAMED = 100  # questions of a file that a message names
COLUMNS = ("id", "title", "question", "context", "answers", "answer", "answer_start", "is_impossible")
COLUMNS += ("detected_answers",)  # tells MRQA's rows
LABELS = {"answers", "answer", "is_impossible", "detected_answers"}


class LabelOptions(NamedTuple):
    """What a reader takes from a question's labels."""

    spans: bool  # the place of the first answer, to train on
    unanswerable: bool = False  # questions without an answer, too
    repeated: bool = False  # questions whose answer has no offset and occurs several times, too, without a span
    labels: bool = True  # False: only questions and contexts, with or without answers


class _Faults:
    """Collects the unusable questions of a file: `with faults.of(place): ...` around each question."""

    def __init__(self, source: str):
        self.source, self.first, self.labels, self.count = source, None, [], 0

    @contextmanager
    def of(self, place: str) -> Iterator[None]:
        self.label, self.count = place, self.count + 1
        try:
            yield
        except InputError as error:
            self.first = self.first or error
            self.labels.append(self.label)

    def name(self, id_: str) -> str:
        """Calls the question by its id from now on; returns how messages name it."""
        self.label = excerpt(id_)
        return f"{self.source}: question {self.label}"

    def report(self) -> None:
        """Raises InputError with the first fault and the other questions that have faults."""
        if self.first is None:
            return
        _, *others = self.labels
        if not others:
            raise self.first
        if len(others) >= MAX_NAMED and len(self.labels) == self.count:
            raise InputError(f"{self.first}; all other {len(others)} questions of this file have faults, too") from None
        named = ", ".join(others[:MAX_NAMED])
        rest = f" and {len(others) - MAX_NAMED} others" if len(others) > MAX_NAMED else ""
        raise InputError(
            f"{self.first}; {len(others)} more of this file's questions have faults: {named}{rest}"
        ) from None


def settle_repeated(examples: list[Example], choice: Literal["error", "first", "drop"]) -> tuple[list[Example], int]:
    """What `data.repeated_answers` makes of training examples that were read with `repeated`: those whose answer occurs
    several times get its first place ("first") or are left out ("drop"). Also returns their number."""
    settled, count = [], 0
    for example in examples:
        if example.answers and example.span is None:
            count += 1
            if choice == "drop":
                continue
            text = example.answers[0].strip()
            start = next(occurrences(example.context, text))
            example = replace(example, span=(start, start + len(text)))
        settled.append(example)
    return settled, count


def read_items(source: str, items: Iterable[tuple[str, Any]], wanted: LabelOptions) -> Iterator[Example]:
    """The questions of a source's items, each an article {title, paragraphs}, a paragraph {context, qas} or a row.

    Args:
        items: each with its place in the source, such as "row 7"; its number becomes part of an id that is missing.

    Raises InputError: an item is none of these, or questions have faults (one message for all of a source).
    """
    faults, name = _Faults(source), Path(source).name
    contexts: dict[str, str] = {}  # rows repeat their paragraph: memory holds one copy of it
    untitled: dict[str, str] = {}  # context -> its article, which takes in later ones that share a context with it
    for place, item in items:
        id_prefix = f"{name}-{re.search('[0-9]+', place)[0]}"
        if isinstance(item, dict) and "paragraphs" in item:
            paragraphs = field(item, "paragraphs", list, f"{source}: {place}")
            title = _title(item, f"{source}: {place}") or _title_of_untitled(paragraphs, f"{source}: {place}", untitled)
            for p, paragraph in enumerate(paragraphs):
                where = f"{place}.paragraphs[{p}]"
                yield from _paragraph(faults, where, f"{id_prefix}.{p}", paragraph, wanted, title)
        elif isinstance(item, dict) and "qas" in item:
            yield from _paragraph(faults, place, id_prefix, item, wanted, "")
        else:
            yield from _row(faults, place, id_prefix, item, wanted, contexts)
    faults.report()


def _title_of_untitled(paragraphs: list[Any], where: str, untitled: dict[str, str]) -> str:
    values = [paragraph.get("context") for paragraph in paragraphs if isinstance(paragraph, dict)]
    contexts = [text for text in values if isinstance(text, str)]
    title = next((untitled[text] for text in contexts if text in untitled), where)
    untitled |= {text: untitled.get(text, title) for text in contexts}
    return title


def _paragraph(
    faults: _Faults, place: str, id_prefix: str, paragraph: Any, wanted: LabelOptions, title: str
) -> Iterator[Example]:
    """The questions about one context. MRQA's have a `qid`."""
    where = f"{faults.source}: {place}"
    raw_context = context = text_field(paragraph, "context", where)
    qas = field(paragraph, "qas", list, where)
    is_mrqa = any(isinstance(qa, dict) and {"qid", "detected_answers"} & qa.keys() for qa in qas)
    if is_mrqa:
        # as many blanks as the marker has characters, so that every offset holds
        context = _MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), raw_context)
    article = title or _title(paragraph, where) or context
    for q, qa in enumerate(qas):
        with faults.of(f"{place}.qas[{q}]"):
            id_ = id_field(qa, "qid", where) if is_mrqa else id_field(qa, "id", f"{where}.qas[{q}]", f"{id_prefix}.{q}")
            where_q = faults.name(id_)
            question = text_field(qa, "question", where_q)
            if is_mrqa:
                answers, _ = _answers(where_q, qa, context, wanted._replace(spans=False))
                span = mrqa_span(where_q, raw_context, qa) if wanted.spans and answers else None
            else:
                answers, span = _answers(where_q, qa, context, wanted)
            yield Example(id_, question, context, answers, span, article)


def _row(
    faults: _Faults, place: str, otherwise: str, row: Any, wanted: LabelOptions, contexts: dict[str, str]
) -> Iterator[Example]:
    """The question of a row (id, title, question, context, answers), whose names may be in upper case."""
    if isinstance(row, dict):
        names = list(row)
        row = {column_of(name): value for name, value in row.items()}
        if len(row) < len(names):
            raise InputError(f"{faults.source}: {place}: has a field twice (found: {excerpt(names)}); keep one")
        if "detected_answers" in row:
            raise InputError(
                f"{faults.source}: has MRQA's column detected_answers; MRQA's contexts may have markers such as [SEP], "
                "which are no text: name the file of the shared task (.jsonl.gz)"
            )
    with faults.of(place):
        id_ = id_field(row, "id", f"{faults.source}: {place}", otherwise)
        where = faults.name(id_)
        question, context = text_field(row, "question", where), text_field(row, "context", where)
        answers, span = _answers(where, row, context, wanted)
        context = contexts.setdefault(context, context)
        yield Example(id_, question, context, answers, span, _title(row, where) or context)


@lru_cache(256)  # the rows of a file have the same names
def column_of(name: Any) -> Any:
    """The one of `COLUMNS` that a name stands for, in any case and with spaces or a byte-order mark; else the name."""
    column = str(name).strip(" \t\ufeff").lower()
    return column if column in COLUMNS else name


def _answers(
    where: str, question: dict[str, Any], context: str, wanted: LabelOptions
) -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """The accepted texts and the training span."""
    if not wanted.labels:
        return (), None
    pairs = answer_pairs(where, question, context)
    check_possible(where, question, bool(pairs))
    if wanted.unanswerable and not pairs:
        return (), None
    texts = require_answers(where, [text for text, _ in pairs])
    if not wanted.spans:
        return texts, None
    start = whole_number(pairs[0][1], "answer_start", where)
    if start is None:
        return texts, find_answer(where, context, texts[0], repeated=wanted.repeated)
    return texts, squad_span(where, context, texts[0], start)


def _title(mapping: dict[str, Any], where: str) -> str:
    """The title, a text or a number; "" if there is none: no such field, null, "" or NaN."""
    title = mapping.get("title")
    if is_missing(title):
        return ""
    if isinstance(title, bool) or not isinstance(title, str | Real):
        raise InputError(f"{where}: title is {excerpt(title)}: give a text or a number, or leave it out")
    return require_text(str(title), "title", where)
