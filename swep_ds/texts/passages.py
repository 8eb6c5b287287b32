"""Passages: `WORDS` words of a text, the next one beginning `STEP` words later (Wang et al., EMNLP 2019)."""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from swep_ds.texts.words import MARKED_OR_UNSPACED, WORD, grams

WORDS = 100  # of a passage
STEP = 50  # words from one passage's first word to the next one's
_WORD = re.compile(f"({WORD.pattern})")
_PLAIN_WORD = re.compile(r"([^\W_]+)")


class Passage(NamedTuple):
    name: str  # of its text, of which it is characters [begin, end)
    begin: int
    end: int


def cut(text: str) -> Iterator[tuple[int, int, list[str], list[str]]]:
    """The begin, the end, the words and the grams of each passage of a text; nothing if it has no word."""
    folded = text.casefold()
    same_places = len(folded) == len(text) and unicodedata.is_normalized("NFC", folded)
    # what stands before a word, the word, what stands before the next one, ...
    pattern = _WORD if MARKED_OR_UNSPACED.search(text) else _PLAIN_WORD
    parts = pattern.split(folded if same_places else text)
    words = parts[1::2]
    if not same_places:
        words = [unicodedata.normalize("NFC", word.casefold()) for word in words]
    pieces = grams(words)
    begins = []  # where every `STEP`-th word begins; the first passage has what precedes its first word, too
    place = 0
    for first in range(0, len(words), STEP):
        begins.append(place + len(parts[2 * first]) if first else 0)
        place += sum(map(len, parts[2 * first : 2 * (first + STEP)]))
    for number in range(max(1, len(begins) - WORDS // STEP + 1) if words else 0):
        following = number + WORDS // STEP
        # with what follows its last word, such as a full stop
        end = begins[following] if following < len(begins) else len(text)
        of_passage = slice(number * STEP, number * STEP + WORDS)
        yield begins[number], end, words[of_passage], pieces[of_passage]


def joined(passages: list[Passage]) -> list[Passage]:
    """The passages in the order of texts, those that overlap or touch as one."""
    pieces: list[Passage] = []
    for passage in sorted(passages):
        if pieces and pieces[-1].name == passage.name and passage.begin <= pieces[-1].end:
            pieces[-1] = pieces[-1]._replace(end=max(pieces[-1].end, passage.end))
        else:
            pieces.append(passage)
    return pieces
