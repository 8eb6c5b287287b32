"""Locates the training answer in its context: at the offset that the file gives, or by its text."""

import math
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from swep_ds.common.errors import InputError, excerpt
from swep_ds.data.answers import MRQA_COLUMN, is_blank, is_missing, normalize_answer
from swep_ds.data.choices import STRICT, Choices, LeftOut

# Scripts that put no space between words: Thai, Lao, Myanmar, Khmer, kana and Han
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
HANGUL = "\u1100-\u115f\uac00-\ud7af"  # Korean syllables, and what decomposed ones begin with
_UNSPACED = re.compile(f"[{UNSPACED}]")
_HANGUL = re.compile(f"[{HANGUL}]")
_HEBREW = re.compile("[\u05d0-\u05ea]")
NEAR = 5  # characters; further off, a text that occurs several times may be meant anywhere
UNKNOWN = -1  # the offset that converters write where they know none


class Place(NamedTuple):
    """Characters [begin, end) of a context."""

    begin: int
    end: int
    remark: str = ""  # why the answer is not where the file says, or may be elsewhere


class Misplaced(InputError):
    """The answer is not where the file says, or nowhere in its context."""


def training_place(row: dict[str, Any], context: str, pairs: list[tuple[str, Any]], choices: Choices) -> Place:
    """The place of the training answer: MRQA's first one, or the first of `pairs` (`answer_pairs`).

    Raises InputError: it is not at its offset, or has none and does not occur exactly once. LeftOut: the same, and
    `choices` leave such questions out.
    """
    try:
        if MRQA_COLUMN in row:
            return mrqa_place(context, row[MRQA_COLUMN])
        return stated_place(context, *pairs[0], choices)
    except Misplaced as fault:
        if choices.misplaced_answers == "error":
            ways = "drop" if MRQA_COLUMN in row or not _found_place(context, pairs) else "find or drop"
            raise Misplaced(f"{fault}, or set data.misplaced_answers to {ways}") from None
    if choices.misplaced_answers == "drop" or MRQA_COLUMN in row:
        raise LeftOut("the answer is not at its place in the context: left out (data.misplaced_answers)")
    place = _found_place(context, pairs)
    if place is None:
        raise LeftOut("the answer is not at its place, and not just once elsewhere in the context: left out")
    return place


def stated_place(context: str, text: str, start: Any, choices: Choices) -> Place:
    """The place of an answer with this offset, which may be missing, -1, a float (pandas makes floats of a column with
    gaps) or a text of CSV. Raises as `training_place`, and Misplaced."""
    begin = _offset(start)
    if begin is None:
        return find_answer(context, text, choices)
    if context.startswith(text, begin):
        return _bare(text, begin)
    unit = "characters"
    if _is_at_utf16(context, text, begin):
        unit = "characters, not in UTF-16 units as in a browser"
    raise _misplaced(text, f"answer_start {begin}", context[begin : begin + len(text)], unit)


def _misplaced(text: str, place: str, actual: str, unit: str = "characters") -> Misplaced:
    said = f"the answer {excerpt(text)} is not at {place} of its context, which has {excerpt(actual)} there"
    return Misplaced(f"{said}; correct the offset (in {unit}, from 0)")


def _offset(start: Any) -> int | None:
    """None if it is missing or -1. Raises Misplaced: not a whole number from 0."""
    if is_missing(start) or (isinstance(start, str) and is_blank(start)):
        return None
    try:
        number = float(start)
    except (TypeError, ValueError):
        number = math.nan
    if number == UNKNOWN:
        return None
    if not number.is_integer() or number < 0:
        raise Misplaced(f"answer_start is {excerpt(start)}; expected a whole number of characters, from 0: correct it")
    return int(number)


def _found_place(context: str, pairs: list[tuple[str, Any]]) -> Place | None:
    """The place of the first answer, which is not at its offset; or else that of another answer which is at its own;
    or else the only place where the first text, or else another, occurs, or the only one close to its offset."""
    offsets: list[int | None] = []
    for _, start in pairs:
        offsets.append(None)
        with suppress(Misplaced):  # no whole number is no offset
            offsets[-1] = _offset(start)
    text = pairs[0][0]
    begin = offsets[0]
    if begin is not None:
        actual = context[begin : begin + len(text)]
        if _same_letters(actual, text):
            remark = "the text at the answer's offset differs in case or white space: it is trained on"
            return _bare(actual, begin)._replace(remark=remark)
        if _is_at_utf16(context, text, begin):
            characters = len(_utf16(context)[: 2 * begin].decode("utf-16-le"))
            return _bare(text, characters)._replace(remark="the answer's offset counts UTF-16 units: converted")
    for (text, _), begin in zip(pairs[1:], offsets[1:], strict=True):
        if begin is not None and context.startswith(text, begin):
            remark = "the first answer is not at its offset: another of its answers is trained on"
            return _bare(text, begin)._replace(remark=remark)
    for (text, _), begin in zip(pairs, offsets, strict=True):
        bare = text.strip()
        places = occurrences(context, bare)
        near = [place for place in places if begin is not None and abs(place - begin) <= NEAR]
        if len(places) == 1:
            remark = "the answer is not at its offset: trained at the only place where its text occurs"
            return _bare(bare, places[0])._replace(remark=remark)
        if len(near) == 1:
            remark = "the answer is not at its offset: trained at the one place that is close to it"
            return _bare(bare, near[0])._replace(remark=remark)
    return None


def _same_letters(text: str, other: str) -> bool:
    """Whether two texts differ in case and white space only."""
    return "".join(text.casefold().split()) == "".join(other.casefold().split())


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def _is_at_utf16(context: str, text: str, begin: int) -> bool:
    """Whether `text` begins in `context` after `begin` units of UTF-16, by which browsers count."""
    return _utf16(context).startswith(_utf16(text), 2 * begin)


def mrqa_place(context: str, detected: list[dict[str, Any]]) -> Place:
    """The place of the first of MRQA's detected answers. The shared task looked answers up with SQuAD's normalisation
    and in detokenised text: texts that differ only in white space, case, punctuation and articles are the same answer.
    Raises InputError: there is none. Misplaced: the context has other text there."""
    if not detected:
        raise InputError("no detected_answers to train on; leave the question out")
    text = detected[0]["text"]
    start, last = detected[0]["char_spans"][0]
    actual = context[start : last + 1] if start >= 0 else ""  # a slice counts negative places from the end
    for form in (str.casefold, normalize_answer):  # the second makes nothing of some texts, such as "the" and "?!"
        bare = "".join(form(actual).split())
        if bare and bare == "".join(form(text).split()):
            return _bare(actual, start)
    raise _misplaced(text, f"char_spans {[start, last]}", actual)


def _bare(text: str, start: int) -> Place:
    """The place of the text at `start`, without white space at its ends: a token may begin with the space before its
    word, so a blank at the end would add the next word's token."""
    return Place(start + len(text) - len(text.lstrip()), start + len(text.rstrip()))


def find_answer(context: str, text: str, choices: Choices = STRICT) -> Place:
    """The place of the answer `text`, which the file gives without an offset. Raises Misplaced: the context does not
    have it. InputError, or LeftOut by `choices`: it occurs at several places that fit equally well."""
    text = text.strip()
    starts = occurrences(context, text)
    if not starts:
        raise Misplaced(f"the answer {excerpt(text)} does not occur in its context; correct it")
    place = Place(starts[0], starts[0] + len(text))
    if len(starts) == 1:
        if context.count(text) > 1:
            return place._replace(remark="the answer also occurs inside other words: trained where it is a whole word")
        if not word_ends(context, place.begin, place.end)[0]:
            return place._replace(remark="the answer occurs only inside a longer word")
        return place
    repeats = "the answer occurs several times in its context"
    if choices.repeated_answers == "drop":
        raise LeftOut(f"{repeats}: left out (data.repeated_answers)")
    if choices.repeated_answers == "first":
        return place._replace(remark=f"{repeats}: trained on its first place (data.repeated_answers)")
    raise InputError(
        f"the answer {excerpt(text)} occurs {len(starts)} times in its context, at {excerpt(starts)}; give its "
        "answer_start (in characters, from 0), or set data.repeated_answers to first (its first place is trained on) "
        "or drop"
    )


def occurrences(context: str, text: str) -> list[int]:
    """Where `text`, which is not empty, begins in `context`: as whole words, or else at the places that begin a word,
    or else at those inside words.

    Many languages write particles, prefixes or endings onto a word, and answers do not have them. Nearly every Korean
    noun has a particle after it, and many Hebrew ones a prefix: a word with these is as good as a whole one there.
    Between characters of a script without spaces any place may begin or end a word.
    """
    whole, begins, inside = [], [], []
    for begin, starts_word, ends_word in _ends_of_words(context, text):
        if starts_word and ends_word:
            whole.append(begin)
        elif starts_word:
            begins.append(begin)
        else:
            inside.append(begin)
    return whole or begins or inside


def occurs_as_words(context: str, text: str) -> bool:
    """Whether a non-blank text occurs in a context, ignoring case and white space, and not only in the middle of
    words."""
    if any(starts_word or ends_word for _, starts_word, ends_word in _ends_of_words(context, text)):
        return True
    folded = (" ".join(part.casefold().split()) for part in (context, text))
    return any(starts_word or ends_word for _, starts_word, ends_word in _ends_of_words(*folded))


def _ends_of_words(context: str, text: str) -> Iterator[tuple[int, bool, bool]]:
    """Each place where `text` begins in `context`, and whether words begin and end with it there."""
    for begin in starts(context, text):
        yield begin, *word_ends(context, begin, begin + len(text))


def starts(context: str, text: str) -> Iterator[int]:
    """Each place where `text` begins in `context`; none for an empty text."""
    begin = context.find(text) if text else -1
    while begin >= 0:
        yield begin
        begin = context.find(text, begin + 1)


def word_ends(context: str, begin: int, end: int) -> tuple[bool, bool]:
    """Whether words begin and end with characters [begin, end)."""
    starts_word = not _splits_word(context, begin) or bool(_HEBREW.match(context[begin - 1]))
    ends_word = not _splits_word(context, end) or bool(_HANGUL.match(context[end]))
    return starts_word, ends_word


def _splits_word(context: str, at: int) -> bool:
    return 0 < at < len(context) and _in_spaced_word(context[at - 1]) and _in_spaced_word(context[at])


def _in_spaced_word(character: str) -> bool:
    """Whether this belongs to a word of a script that puts spaces between words."""
    if _UNSPACED.match(character):
        return False
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")
