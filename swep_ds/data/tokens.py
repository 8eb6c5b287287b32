"""Tokens of questions and contexts with their characters, tokenised a bounded number of characters at a time."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example

EXAMPLES_AT_A_TIME = 1024
CHARACTERS_AT_A_TIME = 2**20  # the tokenizer takes some 200 bytes for each
BYTE_LEVEL_SPACE = "\u0120"  # how byte-level tokens write a space
AROUND_CUT, CUTS_TRIED = 1000, 16  # characters compared on each side of a cut in a long text; positions tried

T = TypeVar("T")


class TextTokens(NamedTuple):
    """The tokens of a text, without special ones."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int32, first character of every token
    ends: np.ndarray  # int32, the character after its last one

    @classmethod
    def of(cls, encoding: Encoding, text: str, begin: int) -> "TextTokens":
        """The tokens of `text`, as encoded.

        Args:
            begin: its first character in the whole text; below 0 if a gap was put in front.
        """
        count = len(encoding)
        offsets = np.fromiter(chain.from_iterable(encoding.offsets), np.int32, 2 * count).reshape(count, 2)
        starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
        _give_back_first_letters(encoding, text, starts, ends)
        _deal_out_bytes(encoding, text, starts, ends)
        return cls(np.fromiter(encoding.ids, np.int32, count), starts + begin, ends + begin)

    @classmethod
    def of_long(cls, backend: Tokenizer, text: str, begin: int) -> "TextTokens":
        """Tokens of a long text, encoded piece by piece."""
        parts = [
            cls.of(backend.encode(piece, add_special_tokens=False), piece, begin + at)
            for at, piece in _pieces(backend, text)
        ]
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def over_marks(self, text: str) -> "TextTokens":
        """With each token's end moved over the combining marks behind it that no token covers.

        A tokenizer that strips accents or composes characters leaves them out, and an answer would be cut in a letter.
        """
        if not any(map(is_mark, set(text))):
            return self
        ends, limits = self.ends.copy(), np.append(self.starts[1:], len(text))
        for token in np.flatnonzero((ends >= 0) & (ends < limits)):
            while ends[token] < limits[token] and is_mark(text[ends[token]]):
                ends[token] += 1
        return self._replace(ends=ends)

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


def is_mark(character: str) -> bool:
    """Whether this belongs to the letter before it: a combining mark, a voicing mark of half-width kana, or a vowel or
    end of a Hangul syllable."""
    mark = unicodedata.category(character).startswith("M") or character in "\uff9e\uff9f"
    return mark or "\u1160" <= character <= "\u11ff"


def tokenise(
    examples: Sequence[Example],
    backend: Tokenizer,
    gap: str,
    max_query_length: int,
    as_text: Callable[[np.ndarray], np.ndarray],
) -> Iterator[tuple]:
    """Yields groups of examples: the index of the first, the group, its new contexts and its questions.

    Contexts are a dict from text to `TextTokens`; a question is its int32 ids and whether they were cut. `as_text` is
    applied to all ids.
    """
    seen: set[str] = set()
    for at, group in _groups(examples):
        new = {example.context: example for example in group if example.context not in seen}
        seen |= new.keys()
        short = [context for context in new if len(context) <= CHARACTERS_AT_A_TIME]
        encodings = backend.encode_batch([gap + context for context in short], add_special_tokens=False)
        # converted to arrays at once: an encoding takes far more memory
        contexts = {context: TextTokens.of(encodings.pop(0), gap + context, -len(gap)) for context in short}
        for context in new.keys() - contexts.keys():
            contexts[context] = TextTokens.of_long(backend, gap + context, -len(gap))
        for context, tokens in contexts.items():
            contexts[context] = tokens.over_marks(context)._replace(ids=as_text(tokens.ids))
        for context, example in new.items():
            require_tokens(len(contexts[context].ids), example)
        asked = backend.encode_batch_fast([gap + example.question for example in group], add_special_tokens=False)
        cut = [(np.array(q.ids[:max_query_length], np.int32), len(q) > max_query_length) for q in asked]
        questions = [(as_text(ids), was_cut) for ids, was_cut in cut]
        yield at, group, contexts, questions


def _groups(examples: Sequence[Example]) -> Iterator[tuple[int, Sequence[Example]]]:
    """Consecutive examples to tokenise together, with the index of the first."""
    at, characters, before = 0, 0, None
    for number, example in enumerate(examples):
        size = len(example.question) + (0 if example.context is before else len(example.context))
        # a short question about the same context as the one before always fits
        full = characters + size > CHARACTERS_AT_A_TIME and size > CHARACTERS_AT_A_TIME // EXAMPLES_AT_A_TIME
        if number > at and (full or number - at == EXAMPLES_AT_A_TIME):
            yield at, examples[at:number]
            at, characters = number, 0
        characters += size
        before = example.context
    yield at, examples[at:]


def _pieces(backend: Tokenizer, text: str) -> Iterator[tuple[int, str]]:
    """Splits a text into pieces whose tokens together are the tokens of the text; each with its first character.

    A cut that changes no token around it changes no token at all: tokenizers look at words, and Viterbi's best path
    forgets what is far away. If every position tried changes a token, the rest is one piece.
    """
    begin = 0
    while len(text) - begin > CHARACTERS_AT_A_TIME:
        end = begin + CHARACTERS_AT_A_TIME
        space = text.rfind(" ", begin + CHARACTERS_AT_A_TIME // 2, end)
        tried = [space] * (space > 0) + [end - number for number in range(CUTS_TRIED)]
        cut = next((cut for cut in tried if _is_seam(backend, text, cut)), None)
        if cut is None:
            break
        yield begin, text[begin:cut]
        begin = cut
    yield begin, text[begin:]


def _is_seam(backend: Tokenizer, text: str, cut: int) -> bool:
    left, right = text[max(cut - AROUND_CUT, 0) : cut], text[cut : cut + AROUND_CUT]
    texts, begins = [left + right, left, right], [0, 0, len(left)]
    encodings = backend.encode_batch(texts, add_special_tokens=False)
    whole, before, after = map(TextTokens.of, encodings, texts, begins)
    return all(map(np.array_equal, whole, map(np.concatenate, zip(before, after, strict=True))))


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in another thread while the caller uses the one before."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item


def require_tokens(count: int, example: Example) -> None:
    """Raises InputError if the context of the example has no token."""
    if count == 0:
        raise InputError(
            f"question {example.id!r}: the tokenizer finds no token in its context {example.context[:40]!r}; "
            "leave the question out of the data set"
        )
