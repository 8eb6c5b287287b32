"""Windows of token ids: a question and a part of its context. Training, analysis and SSMBA all cut them here.

An extractive window is [CLS] question [SEP] part of the context [SEP], in the tokenizer's own special tokens for a
pair; a generative one is "question: ... context: ..." with a part of the context, in those for one text.
Windows follow the rules of Google's BERT for SQuAD: the next window of a context starts `doc_stride` tokens after the
one before (a STEP, where a Hugging Face tokenizer's `stride` is the overlap), and a context token belongs to the window
that gives it the most context.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.data.tokens import TextTokens

EXAMPLES_AT_A_TIME = 256  # to tokenise: an encoding takes some 200 bytes for each character

# a tokenizer's own special tokens, without those that were added to it
NAMED = ("cls_token", "sep_token", "pad_token", "bos_token", "eos_token", "mask_token")


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
    """The windows of a context of `tokens` tokens when `room` of them fit next to the question; step <= room.

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
    return [ContextWindow(*window, *own) for window, own in zip(bounds, pairwise(owned), strict=True)]


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


class Question(NamedTuple):
    """A tokenised question about a context."""

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

    Raises InputError: the longest question leaves no room for context.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: WindowSettings):
        self.settings = settings
        self.backend = plain_backend(tokenizer)
        self.gap = ""
        if settings.task == "generative":
            self.gap = _gap(self.backend)
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
        """The questions, in order. A context is tokenised once for questions that follow each other.

        Raises InputError: a context has no token.
        """
        longest = self.settings.max_query_length
        contexts: dict[str, TextTokens] = {}
        for begin in range(0, len(examples), EXAMPLES_AT_A_TIME):
            group = examples[begin : begin + EXAMPLES_AT_A_TIME]
            before = contexts
            contexts = {example.context: before.get(example.context) for example in group}
            new = [context for context, tokens in contexts.items() if tokens is None]
            encodings = self.backend.encode_batch([self.gap + context for context in new], add_special_tokens=False)
            for context, encoding in zip(new, encodings, strict=True):
                contexts[context] = self._tokens(encoding, context)
                if len(encoding) == 0:
                    raise InputError(
                        f"the tokenizer finds no token in the context {context[:40]!r}: leave its questions out of the "
                        "data set"
                    )
            texts = [self.gap + example.question for example in group]
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
            for example, encoding in zip(group, encodings, strict=True):
                ids = self.as_text(np.array(encoding.ids[:longest], np.int32))
                yield Question(ids, len(encoding) > longest, contexts[example.context])

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


def _gap(backend: Tokenizer) -> str:
    """What a byte-level tokenizer needs before a piece of a sentence, so that it is not glued to the word before: a
    space. Others add it themselves."""
    first = backend.encode("context:", add_special_tokens=False).ids
    after = backend.encode(" context:", add_special_tokens=False).ids
    if first == after:
        return ""
    return " "
