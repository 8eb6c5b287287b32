"""Answers: when two texts are the same answer, and where the training answer is in its context."""

import re
import string
from functools import lru_cache
from typing import Any

from swep_ds.data.fields import excerpt, field, require_text
from swep_ds.errors import InputError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(2**16)  # the golds of a data set meet each run and both metrics
def normalize_answer(text: str) -> str:
    """Lower-cases, drops ASCII punctuation, then a, an, the as whole words, then spare white space.

    Punctuation leaves no space behind, so "well-known" becomes "wellknown". Unicode's other dashes and
    quotation marks stay.
    """
    text = text.lower().translate(_DROP_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def require_answers(where: str, answers: list[Any]) -> tuple[str, ...]:
    """The accepted texts of a question.

    Raises:
        InputError: there is none, or one is not text.
    """
    if not answers:
        raise InputError(
            f"{where}: has no answer; every question of SQuAD v1.1 has one, leave unanswerable questions out"
        )
    for answer in answers:
        if not isinstance(answer, str):
            raise InputError(f"{where}: the answer {excerpt(answer)} is not text; give a string")
        require_text(answer, "an answer", where)
    return tuple(answers)


def squad_span(where: str, context: str, text: str, start: int) -> tuple[int, int]:
    """Characters [start, end) of the answer `text`.

    Raises:
        InputError: the answer is blank or stands somewhere else.
    """
    end = start + len(text)
    if not text.strip():
        raise InputError(f"{where}: its answer is blank; give the answer's text or leave the question out")
    if start < 0 or context[start:end] != text:
        there = excerpt(context[start:end]) if 0 <= start < len(context) else "no text"
        raise InputError(
            f"{where}: the answer {excerpt(text)} is not at answer_start {excerpt(start)} of its context, where "
            f"{there} stands; correct the offset (it counts characters, from 0)"
        )
    return start, end


def mrqa_span(where: str, context: str, qa: dict[str, Any]) -> tuple[int, int]:
    """Characters [start, end) of the first detected answer's first occurrence, as the file gives them.

    The shared task looked answers up by SQuAD's normalisation and in detokenised text: where white space, case,
    punctuation and articles are all that differs, it is the same answer.

    Raises:
        InputError: there is no detected answer, or it stands somewhere else.
    """
    detected = field(qa, "detected_answers", list, where)
    if not detected:
        raise InputError(f"{where}: no detected_answers to train on; leave the question out")
    text = field(detected[0], "text", str, f"{where}: detected_answers")
    spans = field(detected[0], "char_spans", list, f"{where}: detected_answers")
    match spans:
        case [[int(start), int(last)], *_] if not {type(start), type(last)} & {bool}:
            there = context[start : last + 1] if 0 <= start <= last < len(context) else ""
        case _:
            raise InputError(f"{where}: char_spans is {excerpt(spans)}; expected [[first, last], ...], characters")
    if not _same_answer(there, text):
        raise InputError(
            f"{where}: the answer {excerpt(text)} is not at char_spans {excerpt([start, last])} of its context, where "
            f"{excerpt(there)} stands; correct the offsets (characters, from 0, the last one included)"
        )
    return start, last + 1


def _same_answer(one: str, other: str) -> bool:
    """Whether two texts differ in white space and case alone, or else in punctuation and articles too.

    Texts that normalise to nothing ("the", "?!") are compared in the first way only.
    """
    plain = ["".join(text.split()).casefold() for text in (one, other)]
    if plain[0] == plain[1]:
        return plain[0] != ""
    bare = ["".join(normalize_answer(text).split()) for text in (one, other)]
    return bare[0] == bare[1] != ""
