"""Answers: whether two texts are the same answer, and where the training answer is in its context."""

import re
import string
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from swep_ds.data.fields import excerpt, field, is_blank, require_text
from swep_ds.errors import InputError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Scripts that put no space between words: Thai, Lao, Myanmar, Khmer, kana and Han
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


@lru_cache(2**16)  # both metrics of every evaluation normalise the same gold answers
def normalize_answer(text: str) -> str:
    """SQuAD's normalisation: lower case, without ASCII punctuation, the words a, an, the and extra white space.

    Punctuation leaves no space, so "well-known" becomes "wellknown". Other dashes and quotation marks of Unicode stay.
    """
    text = text.lower().translate(_DROP_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def require_answers(where: str, answers: list[Any]) -> tuple[str, ...]:
    """The accepted texts of a question. Raises InputError: it has no answer, blank ones alone, or one that is not
    text."""
    if not answers:
        raise InputError(
            f"{where}: has no answer; give it, or set data.unanswerable to drop such questions or to train on them"
        )
    for answer in answers:
        if not isinstance(answer, str):
            raise InputError(f"{where}: the answer {excerpt(answer)} is not text; give a string")
        require_text(answer, "an answer", where)
    if all(map(is_blank, answers)):
        raise InputError(f"{where}: its answer is blank; give the answer's text, or no answer: null or an empty list")
    return tuple(answers)


def squad_span(where: str, context: str, text: str, start: int) -> tuple[int, int]:
    """Characters [start, end) of the answer `text`, without white space at its ends.

    Raises InputError: the answer is blank or not at `start`.
    """
    end = start + len(text)
    if is_blank(text):
        raise InputError(f"{where}: its answer is blank; give the answer's text or leave the question out")
    if start < 0 or context[start:end] != text:
        actual = excerpt(context[start:end]) if 0 <= start < len(context) else "no text"
        raise InputError(
            f"{where}: the answer {excerpt(text)} is not at answer_start {excerpt(start)} of its context, which has "
            f"{actual} there; correct the offset (it counts characters, from 0)"
        )
    return _bare(text, start)


def _bare(text: str, start: int) -> tuple[int, int]:
    """Characters [start, end) of the text at `start`, without white space at its ends: a token may begin with the space
    before its word, so a blank at the end would add the next word's token."""
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def find_answer(where: str, context: str, text: str) -> tuple[int, int]:
    """Characters [start, end) of the answer `text`, which the file gives without an offset.

    Raises InputError: the answer is blank, or the context does not hold it exactly once as whole words.
    """
    text = text.strip()
    if is_blank(text):
        raise InputError(f"{where}: its answer is blank; give the answer's text or leave the question out")
    starts = list(occurrences(context, text))
    if len(starts) != 1:
        count = f"occurs {len(starts)} times in" if starts else "does not occur in"
        fix = "give its answer_start (in characters, from 0)" if starts else "correct it, or leave the question out"
        raise InputError(f"{where}: the answer {excerpt(text)} {count} its context; {fix}")
    return starts[0], starts[0] + len(text)


def occurrences(context: str, text: str) -> Iterator[int]:
    """Where `text`, which is not empty, begins in `context` as whole words. Between characters of a script without
    spaces any place may end a word."""
    at = context.find(text)
    while at >= 0:
        if not (_splits_a_word(context, at) or _splits_a_word(context, at + len(text))):
            yield at
        at = context.find(text, at + 1)


def _splits_a_word(context: str, at: int) -> bool:
    """Whether the character at `at` and the one before belong to one word."""
    return 0 < at < len(context) and all(map(_in_spaced_word, context[at - 1 : at + 1]))


def _in_spaced_word(character: str) -> bool:
    """Whether this is a letter, digit, underscore or combining mark of a script with spaces between words."""
    if _UNSPACED.match(character):
        return False
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


def mrqa_span(where: str, context: str, qa: dict[str, Any]) -> tuple[int, int]:
    """Characters [start, end) of the first detected answer's first occurrence, without white space at its ends.

    The shared task looked answers up with SQuAD's normalisation and in detokenised text: texts that differ only in
    white space, case, punctuation and articles are the same answer.

    Raises InputError: there is no detected answer, or it is somewhere else.
    """
    detected = field(qa, "detected_answers", list, where)
    if not detected:
        raise InputError(f"{where}: no detected_answers to train on; leave the question out")
    text = field(detected[0], "text", str, f"{where}: detected_answers")
    spans = field(detected[0], "char_spans", list, f"{where}: detected_answers")
    match spans:
        case [[int(start), int(last)], *_] if not {type(start), type(last)} & {bool}:
            actual = context[start : last + 1] if 0 <= start <= last < len(context) else ""
        case _:
            raise InputError(f"{where}: char_spans is {excerpt(spans)}; expected [[first, last], ...], characters")
    if not _same_answer(actual, text):
        raise InputError(
            f"{where}: the answer {excerpt(text)} is not at char_spans {excerpt([start, last])} of its context, which "
            f"has {excerpt(actual)} there; correct the offsets (characters, from 0, the last one included)"
        )
    return _bare(actual, start)


def _same_answer(text: str, other: str) -> bool:
    """Whether the texts differ only in white space and case, or else also in punctuation and articles.

    The second comparison fails for texts that normalise to nothing ("the", "?!").
    """
    for form in (str.casefold, normalize_answer):
        bare, other_bare = ("".join(form(value).split()) for value in (text, other))
        if bare == other_bare != "":
            return True
    return False
