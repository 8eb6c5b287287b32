"""The layouts of question-answering data: SQuAD documents, MRQA lines, rows of the `datasets` layout.

Faults of single questions are collected and reported together at the end of their file.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swep_ds.data.answers import mrqa_span, require_answers, squad_span
from swep_ds.data.fields import excerpt, field, id_field, require_text, text_field
from swep_ds.errors import InputError

# [SEP] follows titles in several MRQA sets, and a BERT tokenizer would read it as its own separator.
_MRQA_MARKER = re.compile(r"\[(?:TLE|PAR|DOC|SEP)\]")
MOST_NAMED = 100  # questions of a file that a message names


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one context.

    `answers` are the accepted texts for scoring, at least one. `span` is the training answer as characters
    [start, end) of `context`, None when read for evaluation. `article` is its title where the source has one:
    questions of one article are to be kept on one side of a split of the data.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    span: tuple[int, int] | None
    article: str


class _Faults:
    """The questions of a file that cannot be used."""

    def __init__(self):
        self.first: InputError | None = None
        self.labels: list[str] = []

    def add(self, error: InputError, label: str) -> None:
        self.first = self.first or error
        self.labels.append(label)

    def report(self) -> None:
        """Raises InputError with the first fault and the other questions that have any."""
        if self.first is None:
            return
        _, *others = self.labels
        if not others:
            raise self.first
        named = ", ".join(others[:MOST_NAMED])
        more = f" and {len(others) - MOST_NAMED} others" if len(others) > MOST_NAMED else ""
        raise InputError(
            f"{self.first}; {len(others)} more of this file's questions have faults: {named}{more}"
        ) from None


def squad(source: str, document: dict[str, Any], training: bool) -> Iterator[Example]:
    """The questions of a SQuAD v1.1 document."""
    faults = _Faults()
    for a, article in enumerate(field(document, "data", list, source)):
        where = f"{source}: data[{a}]"
        paragraphs = field(article, "paragraphs", list, where)
        title = _title(article, where)
        for p, paragraph in enumerate(paragraphs):
            where = f"{source}: data[{a}].paragraphs[{p}]"
            context = text_field(paragraph, "context", where)
            for q, qa in enumerate(field(paragraph, "qas", list, where)):
                label = f"data[{a}].paragraphs[{p}].qas[{q}]"
                try:
                    id_ = id_field(qa, "id", f"{source}: {label}", otherwise=f"{Path(source).name}-{a}.{p}.{q}")
                    label = excerpt(id_)
                    example = _squad_question(f"{source}: question {label}", id_, context, qa, title, training)
                except InputError as error:
                    faults.add(error, label)
                else:
                    yield example
    faults.report()


def _squad_question(where: str, id_: str, context: str, qa: dict[str, Any], title: str, training: bool) -> Example:
    question = text_field(qa, "question", where)
    answers = field(qa, "answers", list, where)
    texts = require_answers(where, [field(answer, "text", str, f"{where}: answers") for answer in answers])
    span = None
    if training:
        start = field(answers[0], "answer_start", int, f"{where}: answers")
        span = squad_span(where, context, texts[0], start)
    return Example(id_, question, context, texts, span, title)


def rows(source: str, labelled: Iterable[tuple[str, Any]], training: bool) -> Iterator[Example]:
    """The questions of rows (id, title, question, context, answers{text, answer_start}), each with its place."""
    faults = _Faults()
    contexts: dict[str, str] = {}  # rows repeat their paragraph: one copy in memory serves them all
    for label, row in labelled:
        try:
            id_ = id_field(row, "id", f"{source}: {label}", otherwise=f"{Path(source).name}-{label.split()[1]}")
            label = excerpt(id_)
            example = _row(f"{source}: question {label}", id_, row, contexts, training)
        except InputError as error:
            faults.add(error, label)
        else:
            yield example
    faults.report()


def _row(where: str, id_: str, row: dict[str, Any], contexts: dict[str, str], training: bool) -> Example:
    question, context = text_field(row, "question", where), text_field(row, "context", where)
    answers = row.get("answers")
    if not isinstance(answers, dict):
        state = f"is {excerpt(answers)}" if "answers" in row else f"is missing (there: {excerpt(list(row))})"
        raise InputError(
            f"{where}: field 'answers' {state}; expected an object with two lists, text and answer_start "
            "(characters of the context, from 0)"
        )
    texts = require_answers(where, field(answers, "text", list, f"{where}: answers"))
    span = None
    if training:
        starts = field(answers, "answer_start", list, f"{where}: answers")
        if not starts or type(starts[0]) is not int:
            there = excerpt(starts)
            raise InputError(f"{where}: answers.answer_start holds no offset ({there}); give one integer for each text")
        span = squad_span(where, context, texts[0], starts[0])
    context = contexts.setdefault(context, context)
    return Example(id_, question, context, texts, span, _title(row, context))


def mrqa(source: str, lines: Iterator[tuple[int, Any]], training: bool) -> Iterator[Example]:
    """The questions of MRQA lines, without the header, each line with its number."""
    faults = _Faults()
    for line, row in lines:
        where = f"{source}: line {line}"
        raw_context = text_field(row, "context", where)
        # as many blanks as the marker has characters, so that every offset holds
        context = _MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), raw_context)
        for qa in field(row, "qas", list, where):
            label = f"one of line {line}"
            try:
                id_ = id_field(qa, "qid", where)
                label = excerpt(id_)
                where_q = f"{source}: question {label}"
                question = text_field(qa, "question", where_q)
                texts = require_answers(where_q, field(qa, "answers", list, where_q))
                span = mrqa_span(where_q, raw_context, qa) if training else None
            except InputError as error:
                faults.add(error, label)
            else:
                yield Example(id_, question, context, texts, span, context)
    faults.report()


def _title(mapping: dict[str, Any], otherwise: str) -> str:
    return require_text(str(mapping["title"]), "title", otherwise[:200]) if mapping.get("title") else otherwise
