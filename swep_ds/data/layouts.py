"""The layouts of question-answering data: SQuAD's articles, paragraphs with their questions (simpletransformers, MRQA),
and rows.

All become rows first. Faults of single questions are collected and reported together at the end of their file.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from swep_ds.common.errors import InputError
from swep_ds.data.answers import answer_pairs, find_answer, mrqa_span, occurrences, squad_span
from swep_ds.data.example import Example
from swep_ds.data.fields import at, excerpt, field, is_missing, text_field, whole_number

MRQA_COLUMN = "detected_answers"
# Several MRQA sets put [SEP] after titles.
_MRQA_MARKER = re.compile(r"\[(?:TLE|PAR|DOC|SEP)\]")
MAX_NAMED = 100  # questions of a file that a message names
COLUMNS = ("id", "title", "question", "context", "answers", "answer", "answer_start", "is_impossible", MRQA_COLUMN)


class LabelOptions(NamedTuple):
    """What a reader takes from a question's labels."""

    spans: bool  # the place of the first answer, to train on
    unanswerable: bool  # questions without an answer, too
    repeated: bool  # questions whose answer has no offset and occurs several times, too, without a span
    labels: bool  # False: only questions and contexts, with or without answers


def settle_repeated(examples: list[Example], choice: Literal["error", "first", "drop"]) -> tuple[list[Example], int]:
    """What `data.repeated_answers` makes of training examples that were read with `repeated`: those whose answer occurs
    several times get its first place ("first") or are left out ("drop"). Also returns their number."""
    settled = []
    count = 0
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
    """The questions of a file's items, each an article {title, paragraphs}, a paragraph {context, qas} or a row.

    Args:
        source: the file's name. The last part begins the id of a question that has none.
        items: each with its place in the file, such as "row 7"; its numbers end such an id.

    Raises InputError: an item is none of these, or questions have faults (one message for all of a file).
    """
    faults: list[str] = []
    faulty: list[str] = []  # ids
    for place, fields in _rows(source, items):
        id_ = _name(fields.get("id")) or f"{Path(source).name}-{'.'.join(re.findall('[0-9]+', place))}"
        try:
            yield _example(id_, fields, wanted)
        except InputError as error:
            faults.append(f"question {excerpt(id_)}: {error}")
            faulty.append(excerpt(id_))
    if len(faults) > 1:
        faults[0] += f"; {len(faults) - 1} more of this file's questions have faults: {', '.join(faulty[1:MAX_NAMED])}"
    if faults:
        raise InputError(faults[0])


def _rows(source: str, items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the unchecked fields of each question."""
    contexts: dict[str, str] = {}  # rows repeat their paragraph: memory holds one copy of it
    untitled: dict[str, str] = {}  # first context of an article without a title -> the article's name
    for place, item in items:
        if isinstance(item, dict) and "paragraphs" in item:
            title = _name(item.get("title"))
            with at(place):
                paragraphs = field(item, "paragraphs", list)
            for number, paragraph in enumerate(paragraphs):
                if not title:
                    title = untitled.setdefault(paragraph.get("context"), f"{source}: {place}")
                yield from _paragraph_rows(f"{place}.paragraphs[{number}]", paragraph, title)
        elif isinstance(item, dict) and "qas" in item:
            yield from _paragraph_rows(place, item, _name(item.get("title")))
        else:
            with at(place):
                fields = _with_known_names(item)
            context = fields.get("context")
            if isinstance(context, str):
                fields["context"] = contexts.setdefault(context, context)
            yield place, fields


def _paragraph_rows(place: str, paragraph: dict[str, Any], title: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The questions about one context. MRQA's have a `qid`."""
    with at(place):
        context = text_field(paragraph, "context")
        qas = field(paragraph, "qas", list)
    if any("qid" in qa or MRQA_COLUMN in qa for qa in qas):
        # as many blanks as the marker has characters, so that every offset holds
        context = _MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), context)
    for number, qa in enumerate(qas):
        fields = {**qa, "context": context, "title": title}
        fields["id"] = qa.get("qid", qa.get("id"))
        yield f"{place}.qas[{number}]", fields


def _with_known_names(row: Any) -> dict[str, Any]:
    """A row whose names may be in upper case, with those of `COLUMNS`."""
    if not isinstance(row, dict):
        raise InputError(f"expected an object, found {excerpt(row)}")
    renamed = {column_of(name): value for name, value in row.items()}
    if len(renamed) < len(row):
        raise InputError(f"has a field twice (found: {excerpt(list(row))}); keep one")
    if MRQA_COLUMN in renamed:
        raise InputError(
            "has MRQA's column detected_answers; MRQA's contexts may have markers such as [SEP], which are no text: "
            "name the file of the shared task (.jsonl.gz)"
        )
    return renamed


@lru_cache(256)  # the rows of a file have the same names
def column_of(name: Any) -> Any:
    """The one of `COLUMNS` that a name stands for, in any case and with spaces or a byte-order mark; else the name."""
    column = str(name).strip(" \t\ufeff").lower()
    return column if column in COLUMNS else name


def _name(value: Any) -> str:
    """An id or a title, which may be a number; "" for none. pandas makes 7.0 of the number 7 in a column with gaps."""
    if is_missing(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def _example(id_: str, fields: dict[str, Any], wanted: LabelOptions) -> Example:
    question = text_field(fields, "question")
    context = text_field(fields, "context")
    try:
        f"{id_}{question}{context}".encode()
    except UnicodeEncodeError:  # a run would end where it writes its predictions
        raise InputError("holds half of a surrogate pair, which is not text; remove or complete it") from None
    article = _name(fields.get("title")) or context
    if not wanted.labels:
        return Example(id_, question, context, (), None, article)
    pairs = answer_pairs(fields, context)
    if not pairs and not wanted.unanswerable:
        raise InputError("has no answer; give it, or set data.unanswerable to drop such questions or to train on them")
    texts = tuple(text for text, _ in pairs)
    span = None
    if pairs and wanted.spans:
        span = _training_span(fields, context, *pairs[0], repeated=wanted.repeated)
    return Example(id_, question, context, texts, span, article)


def _training_span(
    fields: dict[str, Any], context: str, text: str, given_start: Any, *, repeated: bool
) -> tuple[int, int] | None:
    if MRQA_COLUMN in fields:
        return mrqa_span(context, field(fields, MRQA_COLUMN, list))
    start = whole_number(given_start, "answer_start")
    if start is None:
        return find_answer(context, text, repeated=repeated)
    return squad_span(context, text, start)
