"""Answers: their texts and offsets in every form that files have them, and where the training answer is."""

import re
import string
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from swep_ds.common.errors import InputError
from swep_ds.data.fields import excerpt, field, is_blank, is_missing, nested_value

GAPS = {"NaN", "nan", "None", "null", "NULL", "NA", "N/A", "<NA>"}  # what pandas writes and reads for no value
TRUE = ("true", "1", "1.0")
FALSE = ("false", "0", "0.0")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Scripts that put no space between words: Thai, Lao, Myanmar, Khmer, kana and Han
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


@lru_cache(2**16)  # both metrics of every evaluation normalise the same gold answers
def normalize_answer(text: str) -> str:
    """SQuAD's normalisation: lower case, without ASCII punctuation, the words a, an, the and extra white space.
    "Well-known" becomes "wellknown". Other dashes and quotation marks of Unicode stay."""
    text = text.lower().translate(_DROP_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def answer_pairs(row: dict[str, Any], context: str) -> list[tuple[str, Any]]:
    """The answers of a question as (text, offset or None), without blank ones and gaps (`GAPS`).

    They are in `answers`, or else in `answer`: one text, a list of texts, an object {text, answer_start} of two lists
    or of one text and its offset, or a list of such objects. Next to texts, `answer_start` has their offset or a list
    of offsets. Lists and objects may also be written as a text, in JSON or as Python prints it (`nested_value`): in
    `answers` always, in `answer` where the context does not hold that text. A number is a text.

    Raises InputError: anything else; no such field, or `is_impossible` contradicts the answers.
    """
    given = _given(row, context)
    starts = row.get("answer_start")
    if isinstance(given, dict):
        starts = given.get("answer_start")
        given = field(given, "text")
    texts = _listed(given)
    if any(isinstance(answer, dict) for answer in texts):
        starts = [answer.get("answer_start") for answer in texts]
        texts = [field(answer, "text") for answer in texts]
    pairs = []
    if not all(_is_no_text(text, context) for text in texts):
        for text, start in zip(texts, _one_each(starts, len(texts)), strict=True):
            if not _is_no_text(text, context):
                pairs.append((_as_text(text, context), start))
    impossible = str(row.get("is_impossible")).lower()
    if pairs and impossible in TRUE:
        raise InputError("is_impossible is true, but it has answers: empty its answers, or set is_impossible to false")
    if not pairs and impossible in FALSE:
        raise InputError(
            "is_impossible is false, but it has no answers: give its answers, or set is_impossible to true"
        )
    return pairs


def _given(row: dict[str, Any], context: str) -> Any:
    """The value of `answers` or `answer`."""
    given = row.get("answers")
    if _looks_nested(given):
        given = _nested_answers(given)
    if not is_missing(given) and given not in ("", [], {}):
        return given
    if not ({"answers", "answer"} & row.keys() or str(row.get("is_impossible")).lower() in TRUE):
        raise InputError(
            f"field 'answers' is missing (found: {excerpt(list(row))}); give one text in a field 'answer', or a list "
            "of texts or objects {text, answer_start} in 'answers'"
        )
    given = row.get("answer")
    if _looks_nested(given) and given.strip() not in context:
        with suppress(InputError):
            given = _nested_answers(given)
    return given


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _looks_nested(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith(("[", "{"))


def _nested_answers(text: str) -> Any:
    with suppress(InputError):
        given = nested_value(text)
        if all(is_missing(answer) or isinstance(answer, str | dict) for answer in _listed(given)):
            return given
    raise InputError(
        f"answers {excerpt(text)}: is neither a list of texts nor answers in JSON or as Python prints them: give an "
        "answer that itself begins with [ or { in a column `answer`, or in a JSON list of texts"
    )


def _one_each(starts: Any, count: int) -> list[Any]:
    """The offsets of `count` texts; None for each if there are none."""
    if _looks_nested(starts):
        starts = nested_value(starts)
    if is_missing(starts):
        return [None] * count
    starts = _listed(starts)
    if len(starts) != count:
        raise InputError(f"answer_start is {excerpt(starts)}; give one whole number for each text")
    return starts


def _is_no_text(value: Any, context: str) -> bool:
    if isinstance(value, str):
        return is_blank(value) or (value in GAPS and value not in context)
    return is_missing(value)


def _as_text(value: Any, context: str) -> str:
    """The text of a number. pandas makes numbers of a column of years, and of one with gaps 1852.0."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise InputError(f"the answer {excerpt(value)} is not text; give a string")
    if re.fullmatch(r"\d+\.0", value) and value not in context:
        return value[:-2]
    return value


def squad_span(context: str, text: str, start: int) -> tuple[int, int]:
    """Characters [start, end) of the answer `text`, without white space at its ends. Raises InputError: it is not at
    `start`."""
    actual = context[start : start + len(text)]
    if start < 0 or actual != text:
        held = excerpt(actual) if actual else "no text"
        raise InputError(
            f"the answer {excerpt(text)} is not at answer_start {start} of its context, which has {held} there; "
            "correct the offset (it counts characters, from 0)"
        )
    return _bare(text, start)


def _bare(text: str, start: int) -> tuple[int, int]:
    """Characters [start, end) of the text at `start`, without white space at its ends: a token may begin with the space
    before its word, so a blank at the end would add the next word's token."""
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def find_answer(context: str, text: str, *, repeated: bool = False) -> tuple[int, int] | None:
    """Characters [start, end) of the answer `text`, which the file gives without an offset. With `repeated`, None for
    one that occurs several times. Raises InputError: the context does not hold it exactly once as whole words."""
    text = text.strip()
    starts = list(occurrences(context, text))
    if len(starts) == 1:
        return starts[0], starts[0] + len(text)
    if not starts:
        raise InputError(
            f"the answer {excerpt(text)} does not occur in its context; correct it, or leave the question out"
        )
    if repeated:
        return None
    raise InputError(
        f"the answer {excerpt(text)} occurs {len(starts)} times in its context; give its answer_start (in characters, "
        "from 0), or set data.repeated_answers to first (its first place is trained on) or drop"
    )


def occurrences(context: str, text: str) -> Iterator[int]:
    """Where `text`, which is not empty, begins in `context` as whole words. Between characters of a script without
    spaces any place may end a word."""
    at = context.find(text)
    while at >= 0:
        if not (_splits_a_word(context, at) or _splits_a_word(context, at + len(text))):
            yield at
        at = context.find(text, at + 1)


def _splits_a_word(context: str, at: int) -> bool:
    return 0 < at < len(context) and _in_spaced_word(context[at - 1]) and _in_spaced_word(context[at])


def _in_spaced_word(character: str) -> bool:
    """Whether this is a letter, digit, underscore or combining mark of a script with spaces between words."""
    if _UNSPACED.match(character):
        return False
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


def mrqa_span(context: str, detected: list[dict[str, Any]]) -> tuple[int, int]:
    """Characters [start, end) of the first of MRQA's detected answers, at its first place, without white space at its
    ends.

    The shared task looked answers up with SQuAD's normalisation and in detokenised text: texts that differ only in
    white space, case, punctuation and articles are the same answer. Raises InputError: there is none, or another text.
    """
    if not detected:
        raise InputError("no detected_answers to train on; leave the question out")
    text = field(detected[0], "text", str)
    start, last = field(detected[0], "char_spans", list)[0]
    actual = context[start : last + 1]
    if not _same_answer(actual, text):
        raise InputError(
            f"the answer {excerpt(text)} is not at char_spans {[start, last]} of its context, which has "
            f"{excerpt(actual)} there; correct the offsets (characters, from 0, the last one included)"
        )
    return _bare(actual, start)


def _same_answer(text: str, other: str) -> bool:
    """Whether the texts differ only in white space and case, or else also in punctuation and articles, which fails for
    texts that normalise to nothing ("the", "?!")."""
    for form in (str.casefold, normalize_answer):
        bare = "".join(form(text).split())
        if bare and bare == "".join(form(other).split()):
            return True
    return False
