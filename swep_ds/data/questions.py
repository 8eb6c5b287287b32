"""The questions of a file's items, each read and judged by the choices of a recipe."""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from swep_ds.common.errors import InputError, as_input_error, at, excerpt
from swep_ds.data.annotations import Item, annotated_rows
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
    source: str, items: Items, choices: Choices, *, training: bool, labels: bool | None
) -> tuple[list[Judged], list[Remark]]:
    """The questions of a file's items, with the options of `read_examples`, and what is to say of an export's
    annotations and of columns that the file lacks. A missing id is made of the last part of `source` and the numbers of
    the question's place."""

    def id_of(given: Any, place: str) -> str:
        return name_of(given) or f"{Path(source).name}-{'.'.join(re.findall('[0-9]+', place))}"

    unmet = {name for _, name in choices.columns if name}  # that no item has had so far
    untitled: dict[str, str] = {}  # first context of an article without a title -> the article's name
    judged, remarks = [], []
    for item in annotated_rows(items, choices.columns, unmet, labels=bool(labels)):
        if item.remark:
            remarks.append(Remark(id_of(item.row.get("id"), item.place), item.remark, item.left_out))
        if item.left_out:
            continue
        for place, fields in _rows(source, item, choices, unmet, untitled, labels=labels):
            id_ = id_of(fields.get("id"), place)
            try:
                fields, remark = _with_passage(fields, choices, training=training, labels=labels)
                question = _judged(id_, fields, choices, training=training, labels=labels)
                if remark and not question.remark:
                    question = question._replace(remark=remark, passage=fields["context"])
            except LeftOut as reason:
                question = Judged(id_, None, remark=str(reason), left_out=True, passage=reason.passage)
            except InputError as error:
                question = Judged(id_, None, fault=str(error))
            judged.append(question)
    if unmet:
        names = ", ".join(map(excerpt, sorted(unmet)))
        reason = f"data.columns: {Path(source).name} has no {names}: read by the usual names"
        remarks.append(Remark(None, reason, left_out=False))
    return judged, remarks


def _rows(
    source: str, item: Item, choices: Choices, unmet: set[str], untitled: dict[str, str], *, labels: bool | None
) -> Items:
    """The place and the unchecked fields of each question of an item."""
    columns = choices.columns
    place = item.place
    with at(place):
        fields = known_fields(item.row, columns, unmet)
        if fields.keys().isdisjoint(("paragraphs", "qas")):
            check_names(tuple(item.row), columns, bool(labels), choices.locate is not None)
    title = name_of(fields.get("title"))
    if "paragraphs" in fields:
        for number, paragraph in enumerate(listed(fields["paragraphs"])):
            of_paragraph = f"{place}.paragraphs[{number}]"
            with at(of_paragraph):
                parts = known_fields(paragraph, columns, unmet)
                title = title or untitled.setdefault(str(parts.get("context")), f"{source}: {place}")
            yield from _paragraph_rows(of_paragraph, parts, title, columns, unmet)
    elif "qas" in fields:
        yield from _paragraph_rows(place, fields, title, columns, unmet)
    else:
        if isinstance(fields.get("context"), str):
            fields["context"] = sys.intern(fields["context"])  # rows repeat their paragraph
        yield place, fields


def _paragraph_rows(place: str, paragraph: Fields, title: str, columns: Columns, unmet: set[str]) -> Items:
    """The questions about one context. MRQA's have a `qid`."""
    with at(place):
        context = field(paragraph, "context")
        qas = field(paragraph, "qas", list)
    if any("qid" in qa or MRQA_COLUMN in qa for qa in qas):
        # as many blanks as the marker has characters, so that every offset holds
        context = MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), context)
    for number, qa in enumerate(qas):
        with at(f"{place}.qas[{number}]"):
            fields = known_fields(qa, columns, unmet)
        if "qid" in qa and ("id", None) not in columns:
            fields["id"] = qa["qid"]
        yield f"{place}.qas[{number}]", {**fields, "context": context, "title": title}


def _with_passage(fields: Fields, choices: Choices, *, training: bool, labels: bool | None) -> tuple[Fields, str]:
    """The fields, with a passage as the context where they name a document in place of one, and what is to say of it.
    Raises as `_judged`."""
    is_located = choices.locate is not None and labels is not False
    if not is_located or not is_missing(fields.get("context")) or is_missing(fields.get("document")):
        return fields, ""
    answers = []
    if training or not ANSWERED.isdisjoint(fields):
        answers = [text for text, _ in answer_pairs(fields, "")]
    located, remark = choices.locate(name_of(fields["document"]), text_field(fields, "question"), answers)
    return fields | located, remark


def _judged(id_: str, fields: Fields, choices: Choices, *, training: bool, labels: bool | None) -> Judged:
    """Raises InputError: the question is faulty. LeftOut: a choice leaves it out."""
    impossible = says_impossible(fields)
    unanswerable = choices.unanswerable
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
