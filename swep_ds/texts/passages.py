"""Passages: `WORDS` words of a text, the next one beginning `STEP` words later (Wang et al., EMNLP 2019)."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from swep_ds.texts.words import MARKED_OR_UNSPACED, WORD, fold, grams

WORDS = 100  # of a passage
STEP = 50  # words from one passage's first word to the next one's
_NOT_ASCII = re.compile("[^\0-\x7f]")
_BLANKS = bytes(code if code > 127 or chr(code).isalnum() else ord(" ") for code in range(256))  # by byte of UTF-8


class Passage(NamedTuple):
    name: str  # of its text, of which it is characters [begin, end)
    begin: int
    end: int


def cut(text: str) -> Iterator[tuple[int, int, str, str]]:
    """The begin, the end, the words and the grams of each passage of a text, both between blanks; nothing if it has no
    word."""
    if not text.isascii() and MARKED_OR_UNSPACED.search(text):
        matches = list(WORD.finditer(text))
        begins = [match.start() for match in matches[::STEP]]
        words = fold(" ".join([match.group() for match in matches])).split()
    else:  # the same, four times as fast
        blanked = _blanked(text)
        begins = [match.start() for match in re.finditer(f"(?:[^ ]+ *){{1,{STEP}}}", blanked)]
        words = fold(blanked).split()
    begins[:1] = [0]  # the first passage has what precedes its first word, too
    pieces = grams(words)
    steps = [slice(first, first + STEP) for first in range(0, len(words), STEP)]
    words_of_steps = [" ".join(words[step]) for step in steps]
    pieces_of_steps = [" ".join(pieces[step]) for step in steps]
    for number in range(max(1, len(steps) - WORDS // STEP + 1) if words else 0):
        following = number + WORDS // STEP
        # with what follows its last word, such as a full stop
        end = begins[following] if following < len(begins) else len(text)
        of_passage = slice(number, following)
        yield begins[number], end, " ".join(words_of_steps[of_passage]), " ".join(pieces_of_steps[of_passage])


def _blanked(text: str) -> str:
    """The text with a blank in place of each character that no word has, where words are letters and digits alone."""
    if not text.isascii():
        for character in {*_NOT_ASCII.findall(text)}:
            if not character.isalnum():
                text = text.replace(character, " ")
    return text.encode(errors="surrogatepass").translate(_BLANKS).decode(errors="surrogatepass")


def joined(passages: list[Passage]) -> list[Passage]:
    """The passages in the order of texts, those that overlap or touch as one."""
    pieces: list[Passage] = []
    for passage in sorted(passages):
        if pieces and pieces[-1].name == passage.name and passage.begin <= pieces[-1].end:
            pieces[-1] = pieces[-1]._replace(end=max(pieces[-1].end, passage.end))
        else:
            pieces.append(passage)
    return pieces
