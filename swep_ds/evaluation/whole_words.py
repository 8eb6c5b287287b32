"""Whole words: the places in a text at which an answer may begin and end."""

import re
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from swep_ds.data.example import Example
from swep_ds.data.places import HANGUL, HEBREW, UNSPACED
from swep_ds.data.windows import is_format, is_mark

MOST_CUT = 0.02  # of training answers: slips of a data set are fewer, answers without their words' suffixes more
OTHER, LETTER, DIGIT, MARK = range(4)
_CUT_ANYWHERE = re.compile(f"[{UNSPACED}{HANGUL}{HEBREW}]")


@lru_cache(8)  # windows of one text, and questions about it, mostly follow each other
def between_words(text: str) -> np.ndarray:
    """Whether each place in a text is outside of words: bool [len(text) + 1].

    Inside are the places between two letters and between two digits, marks and joiners included, but not those between
    letters of scripts that put no space between words, or write particles or prefixes onto them: "$|5", "1990|s",
    "pre-|war", "Obama|'s".
    """
    characters, index = np.unique(np.array([text]).view(np.uint32), return_inverse=True)
    kinds = np.array([_kind(chr(character)) for character in characters])[index]
    kinds = kinds[np.maximum.accumulate(np.where(kinds == MARK, 0, np.arange(len(kinds))))]  # a mark is of its letter
    inside = (kinds[1:] == kinds[:-1]) & (kinds[1:] != OTHER)
    return np.concatenate(([True], ~inside, [True]))


@cache
def _kind(character: str) -> int:
    if is_mark(character) or is_format(character):
        return MARK
    if _CUT_ANYWHERE.match(character) or not character.isalnum():
        return OTHER
    return LETTER if character.isalpha() else DIGIT


def are_whole_words(examples: Sequence[Example]) -> bool:
    """Whether at most `MOST_CUT` of the training answers begin or end inside a word."""
    answered = [example for example in examples if example.span]
    cut = sum(not between_words(example.context)[[*example.span]].all() for example in answered)
    return cut <= MOST_CUT * len(answered)
