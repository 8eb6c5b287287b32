"""The terms under which passages are found: their words, and short pieces of these, which inflected forms share.

A word is a run of letters and digits with their marks, such as accents. In scripts without spaces, and in Korean, whose
words have particles, each character is a word. The pieces of a run are its 4-grams, its start marked; of such
characters, pairs of neighbours. docs/measurements/cpu-texts.md compares them with analysers of five languages.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import chain

from swep_ds.data.places import HANGUL, UNSPACED
from swep_ds.data.windows import is_mark

# Factors of the BM25 scores of a passage's words, of their pieces, and of its text's title, words and pieces alike
WORD_WEIGHT, GRAM_WEIGHT, TITLE_WEIGHT = 1.0, 0.5, 0.5
GRAM = 4  # characters
START = "^"  # which no word contains
_MARKS = "".join(filter(is_mark, map(chr, range(0x10000))))
_SPLIT = UNSPACED + HANGUL
_CHARACTER = re.compile(f"[{_SPLIT}]")
WORD = re.compile(rf"(?=\w)[{_SPLIT}][{_MARKS}]*|[^\W_{_SPLIT}]+(?:[{_MARKS}]+[^\W_{_SPLIT}]*)*")


def words(text: str) -> list[str]:
    """The words in their order, without case, composed (NFC)."""
    return WORD.findall(unicodedata.normalize("NFC", text.casefold()))


def grams(words: list[str]) -> list[str]:
    """The pieces of words, in their order."""
    if not _CHARACTER.search("".join(words)):
        return list(chain.from_iterable(map(_grams_of_run, words)))
    pieces = []
    before = START
    for word in words:
        if _CHARACTER.match(word):
            pieces.append(before + word)
            before = word
        else:
            pieces += _grams_of_run(word)
            before = START
    return pieces


@lru_cache(2**17)  # texts repeat their words
def _grams_of_run(word: str) -> tuple[str, ...]:
    marked = START + word
    return tuple(marked[first : first + GRAM] for first in range(max(1, len(marked) - GRAM + 1)))
