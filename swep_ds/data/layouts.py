"""The layouts of question-answering data: SQuAD documents, MRQA lines, rows of the `datasets` layout.

Faults of single questions are collected and reported together at the end of their file.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swep_ds.data.answers import mrqa_span, require_answers, squad_span
from swep_ds.data.fields import excerpt, field, id_field, require_text, text_field
from swep_ds.errors import InputError

# Several MRQA sets put [SEP] after titles, which a BERT tokenizer would read as its own separator.
_MRQA_MARKER = re.compile(r"\[(?:TLE|PAR|DOC|SEP)\]")
MOST_NAMED = 100  # questions of a file that a message names


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one context.

    `answers` are the accepted texts for scoring, at least one. `span` is the training answer as characters
    [start, end) of `context`, None when read for evaluation. `article` is its title where the source has one:
    a split of the data must keep the questions of one article on one side.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    span: tuple[int, int] | None
    article: str


class _Faults:
    """Collects the unusable questions of a file: `with faults.of(place): ...` around each question."""

    def __init__(self, source: str):
        self.source, self.first, self.labels = source, None, []

    @contextmanager
    def of(self, place: str) -> Iterator[None]:
        self.label = place
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
        named = ", ".join(others[:MOST_NAMED])
        rest = f" and {len(others) - MOST_NAMED} others" if len(others) > MOST_NAMED else ""
        raise InputError(
            f"{self.first}; {len(others)} more of this file's questions have faults: {named}{rest}"
        ) from None


def squad(source: str, document: dict[str, Any], training: bool) -> Iterator[Example]:
    """The questions of a SQuAD v1.1 document."""
    faults, name = _Faults(source), Path(source).name
    for a, article in enumerate(field(document, "data", list, source)):
        where = f"{source}: data[{a}]"
        paragraphs = field(article, "paragraphs", list, where)
        title = _title(article, where, otherwise=where)
        for p, paragraph in enumerate(paragraphs):
            where = f"{source}: data[{a}].paragraphs[{p}]"
            context = text_field(paragraph, "context", where)
            for q, qa in enumerate(field(paragraph, "qas", list, where)):
                place = f"data[{a}].paragraphs[{p}].qas[{q}]"
                with faults.of(place):
                    id_ = id_field(qa, "id", f"{source}: {place}", otherwise=f"{name}-{a}.{p}.{q}")
                    where_q = faults.name(id_)
                    question = text_field(qa, "question", where_q)
                    answers = field(qa, "answers", list, where_q)
                    in_answers = f"{where_q}: answers"
                    texts = require_answers(where_q, [field(answer, "text", str, in_answers) for answer in answers])
                    span = None
                    if training:
                        start = field(answers[0], "answer_start", int, in_answers)
                        span = squad_span(where_q, context, texts[0], start)
                    yield Example(id_, question, context, texts, span, title)
    faults.report()


def rows(source: str, labelled: Iterable[tuple[str, Any]], training: bool) -> Iterator[Example]:
    """The questions of rows (id, title, question, context, answers{text, answer_start}), each with its place."""
    faults, name = _Faults(source), Path(source).name
    contexts: dict[str, str] = {}  # rows repeat their paragraph: memory holds one copy of it
    for place, row in labelled:
        with faults.of(place):
            id_ = id_field(row, "id", f"{source}: {place}", otherwise=f"{name}-{place.split()[1]}")
            where = faults.name(id_)
            question, context = text_field(row, "question", where), text_field(row, "context", where)
            answers, in_answers = row.get("answers"), f"{where}: answers"
            if not isinstance(answers, dict):
                state = f"is {excerpt(answers)}" if "answers" in row else f"is missing (there: {excerpt(list(row))})"
                raise InputError(
                    f"{where}: field 'answers' {state}; expected an object with two lists, text and answer_start "
                    "(characters of the context, from 0)"
                )
            texts = require_answers(where, field(answers, "text", list, in_answers))
            span = None
            if training:
                starts = field(answers, "answer_start", list, in_answers)
                if not starts or type(starts[0]) is not int:
                    raise InputError(
                        f"{in_answers}.answer_start holds no offset ({excerpt(starts)}); give one integer for each text"
                    )
                span = squad_span(where, context, texts[0], starts[0])
            context = contexts.setdefault(context, context)
            yield Example(id_, question, context, texts, span, _title(row, where, otherwise=context))
    faults.report()


def mrqa(source: str, lines: Iterator[tuple[int, Any]], training: bool) -> Iterator[Example]:
    """The questions of MRQA lines, without the header, each line with its number."""
    faults = _Faults(source)
    for line, row in lines:
        where = f"{source}: line {line}"
        raw_context = text_field(row, "context", where)
        # as many blanks as the marker has characters, so that every offset holds
        context = _MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), raw_context)
        for qa in field(row, "qas", list, where):
            with faults.of(f"one of line {line}"):
                id_ = id_field(qa, "qid", where)
                where_q = faults.name(id_)
                question = text_field(qa, "question", where_q)
                texts = require_answers(where_q, field(qa, "answers", list, where_q))
                span = mrqa_span(where_q, raw_context, qa) if training else None
                yield Example(id_, question, context, texts, span, context)
    faults.report()


def _title(mapping: dict[str, Any], where: str, otherwise: str) -> str:
    return require_text(str(mapping["title"]), "title", where) if mapping.get("title") else otherwise
