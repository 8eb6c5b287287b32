"""Tokens of questions and contexts with their characters, tokenised a bounded number of characters at a time."""

import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from tokenizers import Encoding

from swep_ds.data.example import Example

EXAMPLES_AT_A_TIME = 1024
CHARACTERS_AT_A_TIME = 2**20  # the tokenizer takes some 200 bytes for each
BYTE_LEVEL_SPACE = "\u0120"  # how byte-level tokens write a space

T = TypeVar("T")


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
        starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
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
        if len(self.ids) == 0:
            return 0, -1
        ends_after, starts_before = self.ends > span[0], self.starts < span[1]
        first, last = int(ends_after.argmax()), len(self.ids) - 1 - int(starts_before[::-1].argmax())
        return (first, last) if ends_after[first] and starts_before[last] else (len(self.ids), -1)


def _give_back_first_letters(encoding: Encoding, text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Corrects the starts of byte-level tokens that lost a letter.

    Such a tokenizer may put a space of its own in front of a word, at the text's beginning and behind an added token.
    The library trims the offsets by one character for each space of the token, also where the text has none.
    """
    covered = np.maximum.accumulate(np.append(0, ends))[:-1]  # up to here by the tokens before
    behind_gap = np.flatnonzero(starts > covered)
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    suspects = behind_gap[characters[starts[behind_gap] - 1] != ord(" ")]
    if len(suspects) == 0:
        return
    tokens = encoding.tokens
    for token in suspects.tolist():
        if tokens[token].startswith(BYTE_LEVEL_SPACE) and not text[starts[token] - 1].isspace():
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
        begin, end = int(starts[first]), int(ends[first])
        sizes = [len(character.encode()) for character in text[begin:end]]
        if last > first and sum(sizes) == last + 1 - first and tokens[first].startswith("<0x"):
            characters = np.repeat(np.arange(begin, end), sizes)
            starts[first : last + 1], ends[first : last + 1] = characters, characters + 1
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


def in_groups(examples: Sequence[Example]) -> Iterator[tuple[int, Sequence[Example]]]:
    """Consecutive examples to tokenise together, with the index of the first."""
    at, characters, before = 0, 0, None
    for number, example in enumerate(examples):
        size = len(example.question)
        if example.context is not before:
            size += len(example.context)
        full = characters + size > CHARACTERS_AT_A_TIME or number - at == EXAMPLES_AT_A_TIME
        if number > at and full:
            yield at, examples[at:number]
            at, characters = number, 0
        characters += size
        before = example.context
    yield at, examples[at:]


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in another thread while the caller uses the one before."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item
