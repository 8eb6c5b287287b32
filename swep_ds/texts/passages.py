"""Passages: `WORDS` words of a text, the next one beginning `STEP` words later (Wang et al., EMNLP 2019)."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from swep_ds.texts.words import MARKED_OR_UNSPACED, WORD, fold, grams

WORDS = 100  # in a passage
STEP = 50  # words from one passage's first word to the next one's
_IN_NO_WORD = re.compile(r"[^\0-\x7f\w]")  # other than ASCII
_BLANKS = bytes(code if code > 127 or chr(code).isalnum() else ord(" ") for code in range(256))  # by byte of UTF-8


class Passage(NamedTuple):
    name: str  # its text's, of which it is characters [begin, end)
    begin: int
    end: int


Piece = tuple[Passage, str]  # with what it says


def cut(text: str) -> Iterator[tuple[int, int, str, str]]:
    """The begin, the end, the words and the grams (between blanks) of each passage; nothing if a text has no word."""
    if not text.isascii() and MARKED_OR_UNSPACED.search(text):
        matches = list(WORD.finditer(text))
        begins = [match.start() for match in matches[::STEP]]
        words = fold(" ".join([match.group() for match in matches])).split()
    else:  # the same, with less CPU
        blanked = text.encode(errors="surrogatepass").translate(_BLANKS).decode(errors="surrogatepass")
        if not text.isascii():
            blanked = _IN_NO_WORD.sub(" ", blanked)
        begins = [match.start() for match in re.finditer(f"(?:[^ ]+ *){{1,{STEP}}}", blanked)]
        words = fold(blanked).split()
    if not words:
        return
    begins[0] = 0  # the first passage has what precedes its first word, too
    # with what follows its last word, such as a full stop
    ends = [*begins[WORDS // STEP :], len(text)]
    pieces = grams(words)
    steps = [slice(first, first + STEP) for first in range(0, len(words), STEP)]
    step_words = [" ".join(words[step]) for step in steps]
    step_grams = [" ".join(pieces[step]) for step in steps]
    for number, end in enumerate(ends):
        of_passage = slice(number, number + WORDS // STEP)
        yield begins[number], end, " ".join(step_words[of_passage]), " ".join(step_grams[of_passage])


def joined(passages: list[Passage]) -> list[Passage]:
    """The passages in the order of texts, those that overlap or touch as one."""
    pieces: list[Passage] = []
    for passage in sorted(passages):
        if pieces and pieces[-1].name == passage.name and passage.begin <= pieces[-1].end:
            pieces[-1] = pieces[-1]._replace(end=max(pieces[-1].end, passage.end))
        else:
            pieces.append(passage)
    return pieces
