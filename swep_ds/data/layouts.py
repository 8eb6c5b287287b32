"""The layouts of question-answering data: SQuAD documents, MRQA lines, rows of the `datasets` layout.

Faults of single questions are collected and reported together at the end of their file.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from swep_ds.data.answers import find_answer, mrqa_span, require_answers, squad_span
from swep_ds.data.fields import excerpt, field, id_field, require_text, text_field
from swep_ds.errors import InputError

# Several MRQA sets put [SEP] after titles.
_MRQA_MARKER = re.compile(r"\[(?:TLE|PAR|DOC|SEP)\]")
MAX_NAMED = 100  # questions of a file that a message names


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one context.

    `answers` are the accepted texts for scoring; none = the context does not answer the question. `span` is the
    training answer as characters [start, end) of `context`, None without an answer or when read for evaluation.
    `article` is its title where the source has one: a split of the data must keep the questions of one article on one
    side.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    span: tuple[int, int] | None
    article: str


class LabelOptions(NamedTuple):
    """What a reader takes from a question's labels."""

    spans: bool  # the place of the first answer, to train on
    unanswerable: bool = False  # questions without an answer, too
    labels: bool = True  # False: questions and contexts alone, with or without answers


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


def squad(source: str, document: dict[str, Any], wanted: LabelOptions) -> Iterator[Example]:
    """The questions of a SQuAD document, v1.1 or v2.0."""
    faults, name = _Faults(source), Path(source).name
    untitled: dict[str, str] = {}  # context -> its article, which takes in later ones that share a context with it
    for a, article in enumerate(field(document, "data", list, source)):
        where = f"{source}: data[{a}]"
        paragraphs = field(article, "paragraphs", list, where)
        title = _title(article, where, otherwise="")
        if not title:
            values = [paragraph.get("context") for paragraph in paragraphs if isinstance(paragraph, dict)]
            contexts = [text for text in values if isinstance(text, str)]
            title = next((untitled[text] for text in contexts if text in untitled), where)
            untitled |= {text: untitled.get(text, title) for text in contexts}
        for p, paragraph in enumerate(paragraphs):
            where = f"{source}: data[{a}].paragraphs[{p}]"
            context = text_field(paragraph, "context", where)
            for q, qa in enumerate(field(paragraph, "qas", list, where)):
                place = f"data[{a}].paragraphs[{p}].qas[{q}]"
                with faults.of(place):
                    id_ = id_field(qa, "id", f"{source}: {place}", otherwise=f"{name}-{a}.{p}.{q}")
                    where_q = faults.name(id_)
                    question = text_field(qa, "question", where_q)
                    pairs = []
                    if wanted.labels:
                        pairs = [
                            (field(answer, "text", str, f"{where_q}: answers"), answer.get("answer_start"))
                            for answer in field(qa, "answers", list, where_q)
                        ]
                        _check_possible(where_q, qa, pairs)
                    yield Example(id_, question, context, *_answers(where_q, context, pairs, wanted), title)
    faults.report()


def rows(
    source: str,
    labelled: Iterable[tuple[str, Any]],
    wanted: LabelOptions,
    parse_answers: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda _, row: row,
) -> Iterator[Example]:
    """The questions of rows (id, title, question, context, answers), each with its place.

    Args:
        parse_answers: gives a row its answers in a form of `_row_answers`; takes the question's name, for messages.
    """
    faults, name = _Faults(source), Path(source).name
    contexts: dict[str, str] = {}  # rows repeat their paragraph: memory holds one copy of it
    for place, row in labelled:
        if isinstance(row, dict) and "detected_answers" in row:
            raise InputError(
                f"{source}: has MRQA's column detected_answers; MRQA's contexts may have markers such as [SEP], which "
                "are no text: name the file of the shared task (.jsonl.gz)"
            )
        with faults.of(place):
            id_ = id_field(row, "id", f"{source}: {place}", otherwise=f"{name}-{place.split()[1]}")
            where = faults.name(id_)
            question, context = text_field(row, "question", where), text_field(row, "context", where)
            pairs = []
            if wanted.labels:
                pairs = _row_answers(where, parse_answers(where, row))
                _check_possible(where, row, pairs)
            answers, span = _answers(where, context, pairs, wanted)
            context = contexts.setdefault(context, context)
            yield Example(id_, question, context, answers, span, _title(row, where, otherwise=context))
    faults.report()


def _row_answers(where: str, row: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The answers of a row as (text, offset or None).

    `answers` is {text: [...], answer_start: [...]}, whose second list may be missing, or a list of texts; without it,
    `answer` is one text. Beside these two, `answer_start` has their offset or a list of offsets, or is missing. None or
    an empty list = the question has no answer.
    """
    texts = row.get("answers")
    if isinstance(texts, dict):
        starts, texts = texts.get("answer_start"), field(texts, "text", list, f"{where}: answers")
    else:
        if not texts and "answer" in row:
            texts = [] if row["answer"] is None else [row["answer"]]
        elif texts is None and "answers" in row:
            texts = []
        elif not isinstance(texts, list):
            state = f"is {excerpt(texts)}" if "answers" in row else f"is missing (there: {excerpt(list(row))})"
            raise InputError(
                f"{where}: field 'answers' {state}; expected an object with two lists, text and answer_start "
                "(characters of the context, from 0), or a list of texts; or give one text in a field 'answer'"
            )
        starts = row.get("answer_start") if texts else None
        starts = starts if starts is None or isinstance(starts, list) else [starts]
    if starts is None:
        starts = [None] * len(texts)
    if not (isinstance(starts, list) and len(starts) == len(texts)):
        raise InputError(f"{where}: answer_start is {excerpt(starts)}; give one whole number for each text")
    return list(zip(texts, starts, strict=True))


def _check_possible(where: str, question: dict[str, Any], answers: list[tuple[Any, Any]]) -> None:
    """Raises InputError: `is_impossible` contradicts the answers: it is true beside answers, such as SQuAD v2.0's
    plausible ones, or false without any."""
    said = str(question.get("is_impossible")).lower()
    if answers and said in ("true", "1", "1.0"):
        raise InputError(
            f"{where}: is_impossible is true, but it has answers: empty its answers, or set is_impossible to false"
        )
    if not answers and said in ("false", "0", "0.0"):
        raise InputError(
            f"{where}: is_impossible is false, but it has no answers: give its answers, or set is_impossible to true"
        )


def _answers(
    where: str, context: str, pairs: list[tuple[Any, Any]], wanted: LabelOptions
) -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """The accepted texts and the training span. `pairs`: each answer's text and its offset, None if it has none."""
    if not wanted.labels or (wanted.unanswerable and not pairs):
        return (), None
    texts, start = require_answers(where, [text for text, _ in pairs]), pairs[0][1]
    if not wanted.spans:
        return texts, None
    if start is None:
        return texts, find_answer(where, context, texts[0])
    if type(start) is not int:
        raise InputError(f"{where}: answer_start is {excerpt(start)}; expected a whole number of characters, from 0")
    return texts, squad_span(where, context, texts[0], start)


def mrqa(source: str, lines: Iterator[tuple[int, Any]], wanted: LabelOptions) -> Iterator[Example]:
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
                pairs = [(text, None) for text in field(qa, "answers", list, where_q)] if wanted.labels else []
                texts, _ = _answers(where_q, context, pairs, wanted._replace(spans=False))
                span = mrqa_span(where_q, raw_context, qa) if wanted.spans and texts else None
                yield Example(id_, question, context, texts, span, context)
    faults.report()


def _title(mapping: dict[str, Any], where: str, otherwise: str) -> str:
    """The title, a text or a number, or `otherwise` if there is none: no such field, null, "" or NaN."""
    title = mapping.get("title")
    if title is None or title == "" or (isinstance(title, Real) and math.isnan(title)):
        return otherwise
    if isinstance(title, bool) or not isinstance(title, str | Real):
        raise InputError(f"{where}: title is {excerpt(title)}: give a text or a number, or leave it out")
    return require_text(str(title), "title", where)
