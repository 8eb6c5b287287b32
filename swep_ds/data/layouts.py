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
from swep_ds.data.answers import answer_pairs, check_possible, find_answer, mrqa_span, occurrences, squad_span
from swep_ds.data.example import Example
from swep_ds.data.fields import at, excerpt, field, id_field, is_missing, require_text, text_field, whole_number

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


class _Row(NamedTuple):
    """A question of any layout, unchecked."""

    place: str  # in its file, such as "row 7" or "data[0].paragraphs[1].qas[2]"
    fields: dict[str, Any]  # id, title, question, context and labels
    is_mrqa: bool = False


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
    """The questions of a file's items, each an article {title, paragraphs}, a paragraph {context, qas} or a row.

    Args:
        source: the file's name. The last part begins the id of a question that has none.
        items: each with its place in the file, such as "row 7"; its numbers end such an id.

    Raises InputError: an item is none of these, or questions have faults (one message for all of a file).
    """
    faults: list[tuple[str, InputError]] = []
    for row in _rows(source, items):
        label = row.place
        try:
            id_ = _id(row, Path(source).name)
            label = excerpt(id_)
            yield _example(id_, row, wanted)
        except InputError as error:
            faults.append((label, error))
    if faults:
        raise InputError(_report(faults))


def _report(faults: list[tuple[str, InputError]]) -> str:
    """The first fault and the other questions that have faults."""
    (label, first), *others = faults
    message = f"question {label}: {first}"
    if others:
        named = ", ".join(label for label, _ in others[:MAX_NAMED])
        message += f"; {len(others)} more of this file's questions have faults: {named}"
    if len(others) > MAX_NAMED:
        message += f" and {len(others) - MAX_NAMED} others"
    return message


def _rows(source: str, items: Iterable[tuple[str, Any]]) -> Iterator[_Row]:
    contexts: dict[str, str] = {}  # rows repeat their paragraph: memory holds one copy of it
    untitled: dict[str, str] = {}  # context -> the name of its article, if that has no title
    for place, item in items:
        if isinstance(item, dict) and "paragraphs" in item:
            with at(place):
                paragraphs = field(item, "paragraphs", list)
            title = _title(item) or _name_of_untitled(paragraphs, f"{source}: {place}", untitled)
            for p, paragraph in enumerate(paragraphs):
                yield from _paragraph_rows(f"{place}.paragraphs[{p}]", paragraph, title)
        elif isinstance(item, dict) and "qas" in item:
            yield from _paragraph_rows(place, item, _title(item))
        else:
            with at(place):
                fields = _with_known_names(item)
            context = fields.get("context")
            if isinstance(context, str):
                fields["context"] = contexts.setdefault(context, context)
            yield _Row(place, fields)


def _name_of_untitled(paragraphs: list[dict[str, Any]], name: str, known: dict[str, str]) -> str:
    """The name of a known article that shares a context, else `name`; adds the contexts to the known ones."""
    contexts = [paragraph.get("context") for paragraph in paragraphs]
    name = next((known[context] for context in contexts if context in known), name)
    for context in contexts:
        known.setdefault(context, name)
    return name


def _paragraph_rows(place: str, paragraph: Any, title: str) -> Iterator[_Row]:
    """The questions about one context. MRQA's have a `qid`."""
    with at(place):
        context = text_field(paragraph, "context")
        qas = field(paragraph, "qas", list)
    is_mrqa = any("qid" in qa or "detected_answers" in qa for qa in qas)
    if is_mrqa:
        # as many blanks as the marker has characters, so that every offset holds
        context = _MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), context)
    for q, qa in enumerate(qas):
        yield _Row(f"{place}.qas[{q}]", {**qa, "context": context, "title": title}, is_mrqa)


def _with_known_names(row: Any) -> dict[str, Any]:
    """A row whose names may be in upper case, with those of `COLUMNS`."""
    if not isinstance(row, dict):
        raise InputError(f"expected an object, found {excerpt(row)}")
    renamed = {column_of(name): value for name, value in row.items()}
    if len(renamed) < len(row):
        raise InputError(f"has a field twice (found: {excerpt(list(row))}); keep one")
    if "detected_answers" in renamed:
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


def _id(row: _Row, file: str) -> str:
    if row.is_mrqa:
        return id_field(row.fields, "qid")
    return id_field(row.fields, "id", f"{file}-{'.'.join(re.findall('[0-9]+', row.place))}")


def _example(id_: str, row: _Row, wanted: LabelOptions) -> Example:
    question, context = text_field(row.fields, "question"), text_field(row.fields, "context")
    answers, span = (), None
    if wanted.labels:
        answers, span = _labels(row, context, wanted)
    return Example(id_, question, context, answers, span, _title(row.fields) or context)


def _labels(row: _Row, context: str, wanted: LabelOptions) -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """The accepted texts and the training span."""
    pairs = answer_pairs(row.fields, context)
    check_possible(row.fields, bool(pairs))
    if not pairs:
        if wanted.unanswerable:
            return (), None
        raise InputError("has no answer; give it, or set data.unanswerable to drop such questions or to train on them")
    texts = tuple(require_text(text, "an answer") for text, _ in pairs)
    if not wanted.spans:
        return texts, None
    if row.is_mrqa:
        return texts, mrqa_span(context, row.fields)
    start = whole_number(pairs[0][1], "answer_start")
    if start is None:
        return texts, find_answer(context, texts[0], repeated=wanted.repeated)
    return texts, squad_span(context, texts[0], start)


def _title(fields: dict[str, Any]) -> str:
    """The title, which may be a number; "" if there is none: no such field, null, "" or NaN."""
    title = fields.get("title")
    return "" if is_missing(title) else require_text(str(title), "title")
