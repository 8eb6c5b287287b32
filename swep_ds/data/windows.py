"""Tokens of texts, and windows of them: a question and a part of its context.

An extractive window is [CLS] question [SEP] part of the context [SEP], in the tokenizer's own special tokens for a
pair; a generative one is "question: ... context: ..." with a part of the context, in those for one text.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example

EXAMPLES_AT_A_TIME = 256  # to tokenise: an encoding takes some 200 bytes for each character
# a tokenizer's own special tokens, without those that were added to it
NAMED = ("cls_token", "sep_token", "pad_token", "bos_token", "eos_token", "mask_token")
DOUBLED = re.compile(r"([^\w\s])\1")  # a mark that is written twice, as in ``Emma''


@dataclass(frozen=True)
class WindowSettings:
    """Sizes in tokens: longest window, step between windows, longest question and target (longer ones are cut)."""

    max_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    task: Literal["extractive", "generative"] = "extractive"
    max_target_length: int = 30


class ContextWindow(NamedTuple):
    """Context tokens [begin, end), of which the window owns [own_begin, own_end)."""

    begin: int
    end: int
    own_begin: int
    own_end: int


def context_windows(tokens: int, room: int, step: int) -> list[ContextWindow]:
    """The windows of a context of `tokens` tokens when `room` of them fit next to the question, as Google's BERT for
    SQuAD cuts them: each starts `step` <= room tokens after the one before (Hugging Face's `stride` is the overlap).

    A token's owner is the window with the largest min(tokens to its left, tokens to its right) + 0.01 * length,
    the earlier one of equals. What a window owns is contiguous.
    """
    if tokens <= room:
        return [ContextWindow(0, tokens, 0, tokens)]
    bounds = []
    best = np.full(tokens, -1)
    owners = np.zeros(tokens, np.int64)
    for number, begin in enumerate(range(0, tokens - room + step, step)):
        end = min(begin + room, tokens)
        left = np.arange(end - begin)
        scores = 100 * np.minimum(left, left[::-1]) + end - begin  # in hundredths: exact
        wins = scores > best[begin:end]
        best[begin:end][wins] = scores[wins]
        owners[begin:end][wins] = number
        bounds.append((begin, end))
    owned = np.searchsorted(owners, np.arange(len(bounds) + 1)).tolist()
    return [ContextWindow(*window, *token_range) for window, token_range in zip(bounds, pairwise(owned), strict=True)]


def plain_backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy of the tokenizer that gives the whole text's tokens, the same ones each time: without padding, truncation
    and sampling. A token of `NAMED` that a text spells out, such as "[SEP]", is text to it. Special tokens that others
    have added, such as markers in their texts, are tokens."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    named = named_tokens(tokenizer)
    for token in content["added_tokens"]:
        token["special"] = token["special"] and token["content"] in named
    backend = Tokenizer.from_str(json.dumps(content))
    backend.no_padding()
    backend.no_truncation()
    stop_sampling(backend)
    backend.encode_special_tokens = True
    return backend


def stop_sampling(backend: Tokenizer) -> None:
    """Turns off what splits the words of one text in several ways: it is for pretraining."""
    if isinstance(backend.model, models.BPE):
        backend.model.dropout = None
    elif isinstance(backend.model, models.Unigram):
        backend.model.alpha = None
        backend.model.nbest_size = None


def named_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """The ids of a tokenizer's own special tokens, by their text; the unknown one is not among them."""
    tokens = [getattr(tokenizer, name) for name in NAMED]
    return {str(token): tokenizer.convert_tokens_to_ids(str(token)) for token in tokens if token is not None}


def decoded(tokenizer: PreTrainedTokenizerFast, ids: list[list[int]]) -> list[str]:
    """The texts of generated answers."""
    # whatever the tokenizer's configuration says: cleaning up would join " 's" to the word before
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [text.strip() for text in texts]


def empty_answer(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The ids that a generative model learns to write where a context holds no answer: only special tokens."""
    return plain_backend(tokenizer).encode("").ids


def separate_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    """Puts a newline between the two texts of a pair where a tokenizer, such as many decoders', puts no token: nothing
    else would tell a model where the question ends. A saved tokenizer keeps it."""
    backend = plain_backend(tokenizer)
    template = Template.learn(backend)
    newline = backend.encode("\n", add_special_tokens=False)
    if len(template.middle) or not newline.ids:
        return
    prefix = tokenizer.convert_ids_to_tokens(template.prefix)
    suffix = tokenizer.convert_ids_to_tokens(template.suffix)
    specials = [(token, backend.token_to_id(token)) for token in {*prefix, *suffix}]
    specials.append({"id": "\n", "ids": newline.ids, "tokens": newline.tokens})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        [*prefix, "$A:0", *suffix], [*prefix, "$A:0", "\n:1", "$B:1", *suffix], specials
    )


class TextTokens(NamedTuple):
    """The tokens of a text, without special ones."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int32, first character of every token
    ends: np.ndarray  # int32, the character after its last one

    @classmethod
    def of(cls, encoding: Encoding, text: str, gap: str = "") -> "TextTokens":
        """The tokens of `text`, as `gap` and the text were encoded. Those of the gap end at character 0 or before."""
        starts, ends = np.array(encoding.offsets, np.int32).reshape(-1, 2).T.copy()
        _give_back_first_letters(encoding, gap + text, starts, ends)
        _deal_out_bytes(encoding, gap + text, starts, ends)
        _cover_doubled_marks(gap + text, starts, ends)
        starts -= len(gap)
        ends -= len(gap)
        _cover_marks(text, starts, ends)
        return cls(np.array(encoding.ids, np.int32), starts, ends)

    def answer_tokens(self, span: tuple[int, int]) -> tuple[int, int]:
        """First and last token that overlap the characters [start, end); first > last if none does. A token may extend
        beyond the answer or begin with the space before it."""
        end_after = np.flatnonzero(self.ends > span[0])
        start_before = np.flatnonzero(self.starts < span[1])
        if len(end_after) == 0 or len(start_before) == 0:
            return len(self.ids), -1
        return int(end_after[0]), int(start_before[-1])


def _give_back_first_letters(encoding: Encoding, text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Corrects the starts of byte-level tokens that begin with a space of the tokenizer's own: the library trims their
    offsets by one character, also where the text has no space."""
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


def _cover_doubled_marks(text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Moves a token's start over the same mark before it: where a normalizer writes one mark for two, as ALBERT's and
    XLNet's do with `` and '', the library gives its token the place of the last one."""
    if DOUBLED.search(text) is None:
        return
    covered = np.maximum.accumulate(np.append(0, ends))[:-1]  # up to here by the tokens before
    for token in np.flatnonzero((starts > covered) & (starts < ends)).tolist():
        while starts[token] > covered[token] and DOUBLED.match(text, starts[token] - 1):
            starts[token] -= 1


def _cover_marks(text: str, starts: np.ndarray, ends: np.ndarray) -> None:
    """Moves each token's end over the combining marks and format characters behind it: an answer would be cut in a
    letter or before its joiner. A tokenizer that strips accents, composes characters or drops what has no width leaves
    them out. Others, such as XLM-R's, take a joiner for a space and put it in front of the next word."""
    characters = {*text}
    if not any(is_mark(character) or is_format(character) for character in characters):
        return
    limits = np.append(starts[1:], len(text))
    for token in np.flatnonzero((ends >= 0) & (ends < limits)):
        while ends[token] < limits[token] and (is_mark(text[ends[token]]) or is_format(text[ends[token]])):
            ends[token] += 1
    if any(map(is_format, characters)):
        longer = (ends[1:] - starts[1:] > 1) & (ends[:-1] == starts[1:]) & (starts[1:] > 0)
        for token in np.flatnonzero(longer) + 1:
            while is_format(text[starts[token]]) and starts[token] < ends[token] - 1:
                starts[token] += 1
                ends[token - 1] += 1


def is_mark(character: str) -> bool:
    """Whether this belongs to the letter before it: a combining mark, a voicing mark of half-width kana, or a vowel or
    end of a Hangul syllable."""
    mark = unicodedata.category(character).startswith("M") or character in "\uff9e\uff9f"
    return mark or "\u1160" <= character <= "\u11ff"


def is_format(character: str) -> bool:
    """Whether this has no width: a joiner (U+200C, U+200D), a soft hyphen, a mark of direction."""
    return unicodedata.category(character) == "Cf"


class Question(NamedTuple):
    ids: np.ndarray  # int32, at most `max_query_length`
    cut: bool  # whether it was longer
    context: TextTokens


class Template(NamedTuple):
    """The special tokens around a question and a context, and the token types of a whole window."""

    prefix: np.ndarray  # int32 ids before the question
    middle: np.ndarray  # int32 ids between question and context
    suffix: np.ndarray  # int32 ids after the context
    types: np.ndarray  # int8, with one entry each for the whole question and the whole context

    @classmethod
    def learn(cls, backend: Tokenizer) -> "Template":
        """Reads them off the encoding of a text paired with itself."""
        pair = backend.encode("text", "text")
        first = pair.sequence_ids.index(0)
        second = pair.sequence_ids.index(1)
        count = pair.sequence_ids.count(0)
        ids = np.array(pair.ids, np.int32)
        types = pair.type_ids
        return cls(
            prefix=ids[:first],
            middle=ids[first + count : second],
            suffix=ids[second + count :],
            types=np.array(types[: first + 1] + types[first + count : second + 1] + types[second + count :], np.int8),
        )

    @classmethod
    def prompt(cls, backend: Tokenizer, gap: str) -> "Template":
        """The template of "question: ... context: ...", in the tokenizer's special tokens for one text."""
        around = backend.encode("question:")
        end = len(around) - around.special_tokens_mask[::-1].index(0)
        ids = np.array(around.ids, np.int32)
        middle = np.array(backend.encode(f"{gap}context:", add_special_tokens=False).ids, np.int32)
        return cls(ids[:end], middle, ids[end:], np.zeros(len(ids) + len(middle) + 2, np.int8))

    @property
    def specials(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def context_begin(self, question: int) -> int:
        """Position of the first context token in a window, given the question's length in tokens."""
        return len(self.prefix) + question + len(self.middle)

    def input_ids(self, question: np.ndarray, context: np.ndarray) -> np.ndarray:
        """The int32 ids of a window, given those of the question and of its part of the context."""
        return np.concatenate([self.prefix, question, self.middle, context, self.suffix])

    def type_ids(self, question: int, context: int) -> np.ndarray:
        """The int8 token types of a window, given both lengths in tokens."""
        repeats = np.ones(len(self.types), np.int64)
        repeats[len(self.prefix)] = question
        repeats[len(self.prefix) + 1 + len(self.middle)] = context
        return np.repeat(self.types, repeats)


class WindowCutter:
    """Cuts windows for one tokenizer and one setting. Making one takes far longer than a question's windows: keep it.
    Raises InputError: the longest question leaves no room for context."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: WindowSettings):
        self.settings = settings
        self.tokenizer = tokenizer
        self.backend = plain_backend(tokenizer)
        self.gap = ""
        if settings.task == "generative":
            # a byte-level tokenizer needs a space before a piece of a sentence; others add it themselves
            bare, spaced = self.backend.encode_batch(["context:", " context:"], add_special_tokens=False)
            if spaced.ids != bare.ids:
                self.gap = " "
            self.template = Template.prompt(self.backend, self.gap)
        else:
            self.template = Template.learn(self.backend)
        needed = self.template.specials + settings.max_query_length + 1
        if settings.max_length < needed:  # names as those of a recipe, of reading.json and of options
            raise InputError(
                f"max_length {settings.max_length} leaves no room for context after a question of max_query_length "
                f"{settings.max_query_length} and {self.template.specials} special tokens: raise max_length to at "
                f"least {needed}, or lower max_query_length"
            )
        self.takes_types = "token_type_ids" in tokenizer.model_input_names
        self.unknown = tokenizer.unk_token_id
        self.special_ids = np.array([*{*named_tokens(tokenizer).values()} - {self.unknown}], np.int32)
        # XLNet's [CLS] comes after the context. Where [CLS] is also the separator, the first token is the null position
        self.cls_from_end: int | None = None
        suffix = self.template.suffix.tolist()
        cls = tokenizer.cls_token_id
        if cls in suffix and cls not in (*self.template.prefix, tokenizer.sep_token_id):
            self.cls_from_end = len(suffix) - suffix.index(cls)

    def tokenise(self, examples: Sequence[Example]) -> Iterator[Question]:
        """The questions, in order. A context is tokenised once for the questions of a group. Raises InputError: a
        context has no token."""
        longest = self.settings.max_query_length
        for begin in range(0, len(examples), EXAMPLES_AT_A_TIME):
            group = examples[begin : begin + EXAMPLES_AT_A_TIME]
            contexts = list(dict.fromkeys(example.context for example in group))
            encodings = self.backend.encode_batch([self.gap + text for text in contexts], add_special_tokens=False)
            tokens = {text: self._tokens(encoding, text) for text, encoding in zip(contexts, encodings, strict=True)}
            questions = [self.gap + example.question for example in group]
            encodings = self.backend.encode_batch_fast(questions, add_special_tokens=False)
            for example, encoding in zip(group, encodings, strict=True):
                context = tokens[example.context]
                if len(context.ids) == 0:
                    raise InputError(f"the tokenizer finds no token in the context {example.context[:40]!r}: remove it")
                ids = self.as_text(np.array(encoding.ids[:longest], np.int32))
                yield Question(ids, len(encoding) > longest, context)

    def encode(self, text: str) -> TextTokens:
        """The tokens of a question or a context."""
        return self._tokens(self.backend.encode(self.gap + text, add_special_tokens=False), text)

    def _tokens(self, encoding: Encoding, text: str) -> TextTokens:
        tokens = TextTokens.of(encoding, text, self.gap)
        return tokens._replace(ids=self.as_text(tokens.ids))

    def as_text(self, ids: np.ndarray) -> np.ndarray:
        """The ids of a text's tokens, with the unknown token for those of `NAMED`: a Unigram model, such as T5's, has
        them among its pieces, and finds them where a text spells them out."""
        special = (ids[:, None] == self.special_ids).any(axis=1)  # for few ids far faster than `np.isin`
        if self.unknown is None or not special.any():
            return ids
        return np.where(special, np.int32(self.unknown), ids)

    def null_position(self, length: int) -> int:
        """The position in a window of `length` tokens that stands for no answer: [CLS], or else the first token."""
        if self.cls_from_end is None:
            return 0
        return length - self.cls_from_end

    def windows(self, question: int, context: int) -> list[ContextWindow]:
        """Windows of a context, given both lengths in tokens."""
        room = self.settings.max_length - self.template.specials - question
        return context_windows(context, room, min(self.settings.doc_stride, room))
