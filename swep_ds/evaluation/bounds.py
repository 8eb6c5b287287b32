"""Where answers may begin and end: anywhere in Korean and in scripts without spaces, else not inside words."""

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from swep_ds.data.example import Example
from swep_ds.data.places import HANGUL, UNSPACED
from swep_ds.data.windows import is_format, is_mark

_SEPARATOR = re.compile(r"[.,](?<=\d.)(?=\d)")  # in 1,625.50, which is one word
_CUT_ANYWHERE = re.compile(f"[{UNSPACED}{HANGUL}]")
_MARKS = re.compile(f"[{''.join(each for each in map(chr, range(0x10000)) if is_mark(each) or is_format(each))}]+")


@lru_cache(8)  # windows of one text, and questions about it, mostly follow each other
def bounds(text: str) -> tuple[np.ndarray, np.ndarray]:
    """By place in a text, its end included: how many characters before it are not white space, int64; and whether it is
    outside of words, as in "$|5", "1990|s" and "pre-|war", or bounds one, bool."""
    plain = _SEPARATOR.sub("0", text)
    if not text.isascii():
        plain = _CUT_ANYWHERE.sub("-", plain)
        plain = _MARKS.sub(lambda marks: plain[max(0, marks.start() - 1)] * len(marks[0]), plain)  # as their letter
    characters, kinds = np.array([text, plain]).view("U1").reshape(2, -1)
    visible_before = np.append(0, np.cumsum(~np.char.isspace(characters)))
    letters, digits = np.char.isalpha(kinds), np.char.isdecimal(kinds)
    inside = letters[:-1] & letters[1:] | digits[:-1] & digits[1:]
    return visible_before, np.concatenate(([True], ~inside, [True]))


def best_of_words(score_T: np.ndarray, first_T: np.ndarray) -> np.ndarray:
    """The highest score of each word's tokens, at its first token; -inf at others."""
    best_T = np.full_like(score_T, -np.inf)
    best_T[first_T] = np.maximum.reduceat(score_T, np.flatnonzero(first_T))
    return best_T


def are_whole_words(examples: Sequence[Example]) -> bool:
    """Whether at most 2 % of the training answers begin or end inside a word: more are no slips."""
    whole = [bounds(example.context)[1][[*example.span]].all() for example in examples if example.span]
    return whole.count(False) <= 0.02 * len(whole)
