"""The terms under which passages are found: their words, and what these share with their other forms.

A word is a run of letters and digits with their marks, such as accents. In scripts without spaces, and in Korean, whose
words have particles, each character is a word. docs/measurements/cpu-texts.md compares these terms with others, such as
those of analysers of five languages.
"""

import re
import unicodedata

from swep_ds.data.places import HANGUL, UNSPACED
from swep_ds.data.windows import is_mark

# Factors of the BM25 scores of a passage's words, of their grams, and of both of its text's title together
WORD_WEIGHT, GRAM_WEIGHT, TITLE_WEIGHT = 1.0, 0.8, 1.0
PREFIX = 4  # letters
_MARKS = "".join(filter(is_mark, map(chr, range(0x10000))))
_SPLIT = UNSPACED + HANGUL
_CHARACTER = re.compile(f"[{_SPLIT}]")
_SYLLABIC = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # Thai, Lao, Myanmar, Khmer: longer words
MARKED_OR_UNSPACED = re.compile(f"[{_MARKS}{_SPLIT}]")  # a text without them has simpler words
WORD = re.compile(rf"(?=\w)[{_SPLIT}][{_MARKS}]*|[^\W_{_SPLIT}]+(?:[{_MARKS}]+[^\W_{_SPLIT}]*)*")


def fold(text: str) -> str:
    """Without case, composed (NFC). A Turkish I is the same with and without its dot."""
    return unicodedata.normalize("NFC", text.casefold().replace("i\u0307", "i").replace("\u0131", "i"))


def words(text: str) -> list[str]:
    """The words in their order, folded."""
    return WORD.findall(fold(text))


def grams(words: list[str]) -> list[str]:
    """By word its first letters, if it has more, or the run of two characters that are words (three in Thai and its
    like) that it ends; "" where there is none."""
    pieces = [word[:PREFIX] if len(word) > PREFIX else "" for word in words]
    joined = " ".join(words)
    if joined.isascii() or not _CHARACTER.search(joined):
        return pieces
    second = first = ""  # characters before this word
    for number, word in enumerate(words):
        if not _CHARACTER.match(word):
            second = first = ""
            continue
        pieces[number] = ""
        if first and (second or not _SYLLABIC.match(word)):
            pieces[number] = (second if _SYLLABIC.match(word) else "") + first + word
        second, first = first, word
    return pieces
