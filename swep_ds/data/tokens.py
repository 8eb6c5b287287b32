"""Tokens of a text with their characters."""

import unicodedata
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding


class TextTokens(NamedTuple):
    """The tokens of a text, without special ones."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int32, first character of every token
    ends: np.ndarray  # int32, the character after its last one

    @classmethod
    def of(cls, encoding: Encoding, text: str, gap: str = "") -> "TextTokens":
        """The tokens of `text`, as `gap` and the text were encoded. Those of the gap end at character 0 or before."""
        count = len(encoding)
        offsets = np.fromiter(chain.from_iterable(encoding.offsets), np.int32, 2 * count).reshape(count, 2)
        starts = offsets[:, 0].copy()
        ends = offsets[:, 1].copy()
        _give_back_first_letters(encoding, gap + text, starts, ends)
        _deal_out_bytes(encoding, gap + text, starts, ends)
        starts -= len(gap)
        ends -= len(gap)
        _cover_marks(text, starts, ends)
        return cls(np.fromiter(encoding.ids, np.int32, count), starts, ends)

    def answer_tokens(self, span: tuple[int, int]) -> tuple[int, int]:
        """First and last token that overlap the characters [start, end); first > last if none does.

        Overlap, not equality: a token may extend beyond the answer or begin with the space before it.
        """
        end_after = np.flatnonzero(self.ends > span[0])
        start_before = np.flatnonzero(self.starts < span[1])
        if len(end_after) == 0 or len(start_before) == 0:
            return len(self.ids), -1
        return int(end_after[0]), int(start_before[-1])


def _give_back_first_letters(encoding: Encoding, text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Corrects the starts of byte-level tokens that lost a letter.

    Such a tokenizer may put a space of its own in front of a word, at the text's beginning and behind an added token.
    The library trims the offsets by one character for each space of the token, also where the text has none.
    """
    covered = np.maximum.accumulate(np.append(0, ends))[:-1]  # up to here by the tokens before
    tokens = encoding.tokens
    for token in np.flatnonzero(starts > covered).tolist():
        if tokens[token].startswith("\u0120") and not text[starts[token] - 1].isspace():  # how they write a space
            starts[token] -= 1


def _deal_out_bytes(encoding: Encoding, text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Gives each byte token the character that its byte is of. A Unigram tokenizer with byte fallback gives the tokens
    of neighbouring unknown characters the offsets of all of them."""
    shared = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1]) & (ends[1:] - starts[1:] > 1)
    if not shared.any():
        return
    tokens = encoding.tokens
    first = 0
    for last in [*np.flatnonzero(~shared).tolist(), len(tokens) - 1]:
        begin = int(starts[first])
        end = int(ends[first])
        sizes = [len(character.encode()) for character in text[begin:end]]
        if last > first and sum(sizes) == last + 1 - first and tokens[first].startswith("<0x"):
            characters = np.repeat(np.arange(begin, end), sizes)
            starts[first : last + 1] = characters
            ends[first : last + 1] = characters + 1
        first = last + 1


def _cover_marks(text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Moves each token's end over the combining marks behind it that no token covers.

    A tokenizer that strips accents or composes characters leaves them out, and an answer would be cut in a letter.
    """
    if not any(map(is_mark, set(text))):
        return
    limits = np.append(starts[1:], len(text))
    for token in np.flatnonzero((ends >= 0) & (ends < limits)):
        while ends[token] < limits[token] and is_mark(text[ends[token]]):
            ends[token] += 1


def is_mark(character: str) -> bool:
    """Whether this belongs to the letter before it: a combining mark, a voicing mark of half-width kana, or a vowel or
    end of a Hangul syllable."""
    mark = unicodedata.category(character).startswith("M") or character in "\uff9e\uff9f"
    return mark or "\u1160" <= character <= "\u11ff"
