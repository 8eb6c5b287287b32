"""The questions of a file's items, each read and judged by the choices of a recipe."""

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from swep_ds.common.errors import InputError, as_input_error, at, excerpt
from swep_ds.data.annotations import annotated_rows
from swep_ds.data.answers import (
    MRQA_COLUMN,
    answer_pairs,
    field,
    is_blank,
    is_missing,
    listed,
    says_impossible,
    says_none,
    text_field,
)
from swep_ds.data.choices import Choices, LeftOut, Remark
from swep_ds.data.columns import ANSWERED, Columns, check_names, known_fields, name_of
from swep_ds.data.example import Example
from swep_ds.data.formats import Items
from swep_ds.data.places import occurs_as_words, training_place

Fields = dict[str, Any]
MRQA_MARKER = re.compile(r"\[(?:TLE|PAR|DOC|SEP)\]")  # several of its sets put [SEP] after titles

# names of documents: the suffixes of `texts/documents.py`, which a test compares, and others that people have
FILE_NAME = re.compile(r".+\.(pdf|docx?|odt|x?html?|epub|pptx?|txt|md|xlsx|ods)", re.IGNORECASE)


class Judged(NamedTuple):
    """A question of a file, and what is wrong with it."""

    id: str
    example: Example | None  # None: it cannot be read
    fault: str = ""
    remark: str = ""  # why it is left out, moved or doubtful
    left_out: bool = False
    is_silent: bool = False  # it has no answer, and its row does not say that there is none
    passage: str = ""  # as of a `Remark`


def judged_items(
    source: str,
    items: Items,
    choices: Choices,
    *,
    training: bool,
    labels: bool | None,
    remark: Callable[[Remark], None] = lambda _: None,
) -> Iterator[Judged]:
    """The questions of a file's items, with the options of `read_examples`. A missing id is made of the last part of
    `source` and the numbers of the question's place. `remark` is called for questions whose annotation is left out."""

    def id_of(given: Any, place: str) -> str:
        return name_of(given) or f"{Path(source).name}-{'.'.join(re.findall('[0-9]+', place))}"

    unmet = {name for _, name in choices.columns if name}  # that no item has had so far
    read_fields = partial(known_fields, columns=choices.columns, unmet=unmet)
    items = annotated_rows(
        items,
        rename=lambda row: row | read_fields(row),
        remark=lambda given, place, reason, left_out: remark(Remark(id_of(given, place), reason, left_out)),
        labels=bool(labels),
    )
    for place, fields in _rows(source, items, labels, choices, read_fields):
        id_ = id_of(fields.get("id"), place)
        try:
            yield _judged(id_, fields, choices, training=training, labels=labels)
        except LeftOut as reason:
            yield Judged(id_, None, remark=str(reason), left_out=True, passage=reason.passage)
        except InputError as error:
            yield Judged(id_, None, fault=str(error))
    if unmet:
        names = ", ".join(map(excerpt, sorted(unmet)))
        remark(Remark(None, f"data.columns: {Path(source).name} has no {names}: read by the usual names", False))


def _rows(source: str, items: Items, labels: bool | None, choices: Choices, read_fields: Callable) -> Items:
    """The place and the unchecked fields of each question."""
    columns = choices.columns
    untitled: dict[str, str] = {}  # first context of an article without a title -> the article's name
    for place, item in items:
        with at(place):
            fields = read_fields(item)
        title = name_of(fields.get("title"))
        if "paragraphs" in fields:
            with at(place):
                paragraphs = listed(fields["paragraphs"])
            for number, paragraph in enumerate(paragraphs):
                of_paragraph = f"{place}.paragraphs[{number}]"
                with at(of_paragraph):
                    parts = read_fields(paragraph)
                    title = title or untitled.setdefault(str(parts.get("context")), f"{source}: {place}")
                yield from _paragraph_rows(of_paragraph, parts, title, columns, read_fields)
        elif "qas" in fields:
            yield from _paragraph_rows(place, fields, title, columns, read_fields)
        else:
            with at(place):
                check_names(tuple(item), columns, bool(labels), choices.locate is not None)
            if isinstance(fields.get("context"), str):
                fields["context"] = sys.intern(fields["context"])  # rows repeat their paragraph
            yield place, fields


def _paragraph_rows(place: str, paragraph: Fields, title: str, columns: Columns, read_fields: Callable) -> Items:
    """The questions about one context. MRQA's have a `qid`."""
    with at(place):
        context = field(paragraph, "context")
        qas = field(paragraph, "qas", list)
    if any("qid" in qa or MRQA_COLUMN in qa for qa in qas):
        # as many blanks as the marker has characters, so that every offset holds
        context = MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), context)
    for number, qa in enumerate(qas):
        with at(f"{place}.qas[{number}]"):
            fields = read_fields(qa)
        if "qid" in qa and ("id", None) not in columns:
            fields["id"] = qa["qid"]
        yield f"{place}.qas[{number}]", {**fields, "context": context, "title": title}


def _judged(id_: str, fields: Fields, choices: Choices, *, training: bool, labels: bool | None) -> Judged:
    """Raises InputError: the question is faulty. LeftOut: a choice leaves it out."""
    impossible = says_impossible(fields)
    unanswerable = choices.unanswerable
    is_located = choices.locate is not None and labels is not False
    if is_located and is_missing(fields.get("context")) and not is_missing(fields.get("document")):
        return _about_document(id_, fields, choices, training=training, labels=labels)
    if labels and unanswerable != "error":
        for name in ("question", "context"):
            value = field(fields, name)
            if is_missing(value) or (isinstance(value, str) and is_blank(value)):
                return Judged(id_, None, remark=f"the {name} is empty: left out", left_out=True, is_silent=True)
    question = text_field(fields, "question")
    context = text_field(fields, "context") if labels or fields.get("context") else ""
    with as_input_error("holds half of a surrogate pair, which is not text", "remove or complete it"):
        f"{id_}{question}{context}".encode()  # a run would end where it writes its predictions
    article = name_of(fields.get("title")) or context
    if labels is None:
        labels = not ANSWERED.isdisjoint(fields)
        if says_none(fields):
            unanswerable = "train"
    if not labels:
        return Judged(id_, Example(id_, question, context, (), None, article))
    if ANSWERED.isdisjoint(fields) and not training:  # as in test sets whose answers are not published
        example = Example(id_, question, context, (), None, article)
        return Judged(id_, example, fault=f"has none of the fields {', '.join(sorted(ANSWERED))}", is_silent=True)
    if FILE_NAME.fullmatch(context.strip()):
        fix = "give its text, or name it in a column document and its folder in data.texts"
        raise InputError(f"context is {excerpt(context)}, the name of a file: {fix}")
    pairs = answer_pairs(fields, context)
    answers = tuple(text for text, _ in pairs)
    if training and pairs and not impossible:
        begin, end, remark = training_place(fields, context, pairs, choices)
        return Judged(id_, Example(id_, question, context, answers, (begin, end), article), remark=remark)
    judged = Judged(id_, Example(id_, question, context, answers, None, article))
    if not pairs or impossible:
        return _without_answer(judged, impossible, unanswerable, training=training)
    if MRQA_COLUMN not in fields and not any(occurs_as_words(context, text) for text in answers):
        return judged._replace(remark="no accepted answer occurs in the context as words")
    return judged


def _about_document(id_: str, fields: Fields, choices: Choices, *, training: bool, labels: bool | None) -> Judged:
    """The judgement of a question that names its document in place of a context. Raises as `_judged`."""
    answers = [text for text, _ in answer_pairs(fields, "")] if training or not ANSWERED.isdisjoint(fields) else []
    located, remark = choices.locate(name_of(fields["document"]), text_field(fields, "question"), answers)
    judged = _judged(id_, fields | located, choices, training=training, labels=labels)
    if judged.remark or not remark:
        return judged
    return judged._replace(remark=remark, passage=located["context"])


def _without_answer(judged: Judged, impossible: bool | None, unanswerable: str, *, training: bool) -> Judged:
    """The judgement of a question without an answer, or of one that should have none. Where its fields contradict each
    other, the question is not trained on, and tests go by the answers, as the official scorer of SQuAD v2.0 does."""
    answers = judged.example.answers
    contradiction = ""
    if answers:
        contradiction = "is_impossible is true, but it has answers"
    elif impossible is False:
        contradiction = "is_impossible is false, but it has no answers"
    judged = judged._replace(is_silent=not answers and not impossible)
    if unanswerable == "error" and contradiction:
        fix = "correct one of the two, or set data.unanswerable to drop such questions"
        return judged._replace(fault=f"{contradiction}: {fix}")
    if unanswerable == "error":
        fault = "has no answer; give it, or set data.unanswerable to drop such questions or to train on them"
        return judged._replace(fault=fault)
    if contradiction and (training or unanswerable == "drop"):
        return judged._replace(remark=f"{contradiction}: left out", left_out=True)
    if contradiction:
        return judged._replace(remark=f"{contradiction}: scored by its answers")
    if unanswerable == "drop":
        return judged._replace(remark="no answer: left out (data.unanswerable)", left_out=True)
    return judged
