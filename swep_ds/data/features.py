"""Questions and contexts as overlapping windows of token ids, cached as Arrow.

A window is [CLS] question [SEP] part of the context [SEP], in the tokenizer's own special tokens for a pair; for
generated answers it is "question: ... context: ..." with part of the context, in its special tokens for one text.
Windows follow the rules of Google's BERT for SQuAD:
  - the next window of a context starts `doc_stride` tokens after the one before (a STEP, where a Hugging Face
    tokenizer's `stride` is the overlap), until one reaches the context's end;
  - a context token belongs to the window that gives it the most context (the maximum-context rule).
Every distinct context is tokenised once, however many questions share it; windows are assembled from its ids.
"""

import copy
import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from swep_ds.data import cache
from swep_ds.data.readers import Example
from swep_ds.data.tokens import ContextTokens, ahead, require_tokens, tokenise
from swep_ds.errors import InputError

FORMAT_VERSION = 3  # part of every cache file's name: raise it when the columns or their meaning change
TOKENS_AT_A_TIME = 2**20  # to write, of all windows together: a long context has thousands of them


@dataclass(frozen=True)
class WindowSettings:
    """In tokens: the longest window, the step between windows, the longest question and target (others are cut).

    Extractive answers are spans of a window, generative ones are targets to write.
    """

    max_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    task: Literal["extractive", "generative"] = "extractive"
    max_target_length: int = 30


@dataclass(frozen=True)
class Features:
    """Windows, and what became of the examples on the way.

    `dataset` gives plain Python values, rows in the order of the examples and of the windows of a context.
    Positions are indices in `input_ids`. Columns of every window:
        input_ids                     int32 list, no padding
        token_type_ids                int8 list, only if the tokenizer names it among its model's inputs
        length                        int32, number of input_ids
    for training:
        start_position, end_position  int32, the answer's first and last token; 0 and 0 if it is not all there
        has_answer                    bool, whether the whole answer is in this window
    for training to generate:
        target_ids                    int32 list, the answer's tokens with the tokenizer's special ones
    for evaluation:
        example                       int32, index in the list of examples
    and where the answer is to be found, not generated:
        context_begin, context_end    int32, positions [context_begin, context_end) of the context tokens
        own_begin, own_end            int32, positions [own_begin, own_end) whose maximum context is here
        offset_start, offset_end      int32 lists, characters [start, end) of every context token of this window
    """

    dataset: Dataset
    examples: int
    questions_cut: int  # questions longer than max_query_length
    targets_cut: int  # answers longer than max_target_length, where they are generated
    windows_without_answer: int  # training windows, kept or dropped; 0 for evaluation
    fingerprint: str  # changes with the examples, the tokenizer and the settings


def build_features(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    settings: WindowSettings,
    *,
    training: bool,
    windows_without_answer: Literal["cls", "drop"] = "cls",
    cache_dir: Path,
) -> Features:
    """Tokenises `examples` (at least one) into windows, or maps them from `cache_dir` if nothing changed.

    Training windows without the whole answer are trained towards position 0 ("cls") or left out ("drop"), always so
    where answers are generated.
    Several processes may build the same features at once: a file appears in the cache complete or not at all.
    Memory does not grow with the windows, which are written as they are made.

    Raises InputError for a tokenizer without offsets, sizes that leave no room for context, a context without
    any token, training data of which every window was dropped, and a cache that cannot be written.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"model.name: its {type(tokenizer).__name__} is a slow tokenizer, without character offsets; "
            "choose a model with a fast one (a tokenizer.json)"
        )
    backend = copy.deepcopy(tokenizer.backend_tokenizer)  # the shared one keeps the last caller's truncation
    backend.no_padding()
    backend.no_truncation()
    has_types = "token_type_ids" in tokenizer.model_input_names
    generative = settings.task == "generative"
    gap = gap_before(backend) if generative else ""
    template = Template.prompt(backend, gap) if generative else Template.learn(backend, examples[0])
    _check_sizes(settings, template.specials)

    drop = training and (generative or windows_without_answer == "drop")
    how = {"format": FORMAT_VERSION, **asdict(settings), "training": training, "drop": drop, "types": has_types}
    digest = hashlib.sha256(f"{how} {type(tokenizer).__name__} {backend.to_str()}".encode())
    numbers: dict[str, int] = {}  # of contexts, whose text enters the digest once
    for example in examples:
        context = numbers.get(example.context, example.context)
        numbers.setdefault(example.context, len(numbers))
        span = example.span if training else None
        digest.update(repr((example.question, context, span)).encode())
    cached = cache_dir / f"{'train' if training else 'eval'}-{digest.hexdigest()[:32]}.arrow"

    counts = Counter(examples=len(examples), questions_cut=0, targets_cut=0, windows_without_answer=0)
    schema = _schema(settings, training=training, has_types=has_types)
    if (loaded := cache.load(cached, schema, counts)) is None:
        batches = _batches(examples, backend, template, gap, settings, schema, counts, training=training, drop=drop)
        cache.save(cached, schema, batches, counts)
        loaded = cache.load(cached, schema, counts)
        if loaded is None:
            raise InputError(f"{cached}: what was written there is read differently: {cache.CACHE_FIX}")
    dataset, facts = loaded
    return Features(dataset, **facts, fingerprint=cached.stem)


def _check_sizes(settings: WindowSettings, specials: int) -> None:
    for name in ("doc_stride", "max_query_length"):
        if getattr(settings, name) < 1:
            raise InputError(f"data.{name} is {getattr(settings, name)}; it must be at least 1 token")
    needed = specials + settings.max_query_length + 1
    if settings.max_length < needed:
        raise InputError(
            f"data.max_length {settings.max_length} leaves no room for context beside a question of "
            f"data.max_query_length {settings.max_query_length} and {specials} special tokens; raise "
            f"max_length to {needed} at the very least, or lower max_query_length"
        )


def gap_before(backend: Tokenizer) -> str:
    """What goes in front of a piece of a sentence, so that its tokens are those that it has behind other words.

    A space for byte-level tokenizers, whose first word would be glued to the one before; others add it themselves.
    """
    alone, behind = (backend.encode(text, add_special_tokens=False).ids for text in ("context:", " context:"))
    return "" if alone == behind else " "


class Template(NamedTuple):
    """The special tokens around a pair, and the token types of everything."""

    prefix: np.ndarray  # ids before the question, int32; likewise the next two
    middle: np.ndarray  # between question and context
    suffix: np.ndarray  # behind the context
    types: np.ndarray  # int8, with the whole question and the whole context as one entry each

    @classmethod
    def learn(cls, backend: Tokenizer, example: Example) -> "Template":
        """Reads them off the encoding of a text paired with itself: the beginning of a context, for it may be long."""
        for text in (example.context[:1000], example.context):
            if count := len(backend.encode(text, add_special_tokens=False)):
                break
        require_tokens(count, example)
        pair = backend.encode(text, text)
        first, second = pair.sequence_ids.index(0), pair.sequence_ids.index(1)
        ids, types = np.array(pair.ids, np.int32), pair.type_ids
        return cls(
            prefix=ids[:first],
            middle=ids[first + count : second],
            suffix=ids[second + count :],
            types=np.array(types[: first + 1] + types[first + count : second + 1] + types[second + count :], np.int8),
        )

    @classmethod
    def prompt(cls, backend: Tokenizer, gap: str) -> "Template":
        """That of "question: ... context: ...", in the tokenizer's special tokens for one text."""
        around = backend.encode("question:")
        behind = len(around) - around.special_tokens_mask[::-1].index(0)
        ids, middle = np.array(around.ids, np.int32), backend.encode(f"{gap}context:", add_special_tokens=False).ids
        types = np.zeros(len(ids) + 1 + len(middle) + 1, np.int8)
        return cls(ids[:behind], np.array(middle, np.int32), ids[behind:], types)

    @property
    def specials(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def repeats(self, question: int | list[int], context: int | list[int]) -> np.ndarray:
        """How often each of `types` stands in a window with that many question and context tokens; in W windows:
        [W, types]."""
        repeats = np.ones((*np.shape(question), len(self.types)), np.int64)
        repeats[..., len(self.prefix)] = question
        repeats[..., len(self.prefix) + 1 + len(self.middle)] = context
        return repeats


class _Window(NamedTuple):
    """Context tokens [begin, end); of these the window owns [own_begin, own_end)."""

    begin: int
    end: int
    own_begin: int
    own_end: int


def context_windows(tokens: int, room: int, step: int) -> list[_Window]:
    """The windows of a context of `tokens` tokens when `room` of them fit beside the question; step <= room.

    A token's owner is the window with the largest min(tokens to its left, tokens to its right) + 0.01 * length,
    the earlier one of equals. What a window owns is contiguous: the score of a later window minus that of an
    earlier one never falls from left to right within their overlap, so owners never go back.
    """
    if tokens <= room:
        return [_Window(0, tokens, 0, tokens)]
    begins = range(0, tokens - room + step, step)
    last = begins[-1]
    # Windows of one length: a token is owned by the one with the nearest middle, so a window owns from behind the
    # middle of its overlap with the one before. The last window may be shorter, and is compared token by token.
    owned = [0, *((begin + begin - step + room + 1) // 2 for begin in begins[1:-1])]

    def is_last(token: int) -> bool:
        before = begins[bisect_right(owned, token) - 1]
        return _score(token, last, tokens) > _score(token, before, before + room)

    owned.append(bisect_left(range(tokens), True, lo=last, hi=last - step + room, key=is_last))
    owned = [min(begin, owned[-1]) for begin in owned]
    ends = [*(begin + room for begin in begins[:-1]), tokens]
    return list(map(_Window, begins, ends, owned, [*owned[1:], tokens]))


def _score(token: int, begin: int, end: int) -> int:
    """How much context the window [begin, end) gives a token of it, in hundredths: exact."""
    return 100 * min(token - begin, end - 1 - token) + end - begin


def _schema(settings: WindowSettings, *, training: bool, has_types: bool) -> pa.Schema:
    int32, int32s = pa.int32(), pa.list_(pa.int32())
    types = {"token_type_ids": pa.list_(pa.int8())} if has_types else {}
    if settings.task == "generative":
        task = {"target_ids": int32s} if training else {"example": int32}
    elif training:
        task = {"start_position": int32, "end_position": int32, "has_answer": pa.bool_()}
    else:
        task = {"example": int32, "context_begin": int32, "context_end": int32}
        task |= {"own_begin": int32, "own_end": int32, "offset_start": int32s, "offset_end": int32s}
    return pa.schema({"input_ids": int32s, **types, "length": int32, **task})


def _batches(
    examples: Sequence[Example],
    backend: Tokenizer,
    template: Template,
    gap: str,
    settings: WindowSettings,
    schema: pa.Schema,
    counts: Counter,
    *,
    training: bool,
    drop: bool,
) -> Iterator[pa.RecordBatch]:
    """Yields the windows, a bounded number at a time, and adds to `counts` on the way.

    A context's tokens stay in memory from its first question to its last. While windows are put together here, the
    tokenizer, which needs no interpreter, is at the next examples.
    """
    generative = settings.task == "generative"
    uses = Counter(example.context for example in examples)
    contexts: dict[str, ContextTokens] = {}
    rows = _Rows(schema, template)
    for at, some, new, questions in ahead(tokenise(examples, backend, gap, settings.max_query_length)):
        contexts |= new
        for number, (example, (question, cut)) in enumerate(zip(some, questions, strict=True), start=at):
            counts["questions_cut"] += cut
            context = contexts[example.context]
            context_begin = len(template.prefix) + len(question) + len(template.middle)
            room = settings.max_length - template.specials - len(question)
            if training:
                first, last = context.answer_tokens(example.span)
            if training and generative:
                target = np.array(backend.encode(example.context[slice(*example.span)]).ids, np.int32)
                if len(target) > settings.max_target_length:
                    counts["targets_cut"] += 1
                    target = np.delete(target, np.s_[settings.max_target_length - 1 : -1])  # the end stays
            for begin, end, own_begin, own_end in context_windows(
                len(context.ids), room, min(settings.doc_stride, room)
            ):
                shift = context_begin - begin
                columns: dict = {}
                if training:
                    has_answer = begin <= first <= last < end
                    counts["windows_without_answer"] += not has_answer
                    if drop and not has_answer:
                        continue
                if training and generative:
                    columns["target_ids"] = target
                elif training:
                    columns["start_position"] = first + shift if has_answer else 0
                    columns["end_position"] = last + shift if has_answer else 0
                    columns["has_answer"] = has_answer
                else:
                    columns["example"] = number
                if not training and not generative:
                    columns["context_begin"] = context_begin
                    columns["context_end"] = end + shift
                    columns["own_begin"] = own_begin + shift
                    columns["own_end"] = own_end + shift
                    columns["offset_start"] = context.starts[begin:end]
                    columns["offset_end"] = context.ends[begin:end]
                rows.add(question, context.ids[begin:end], columns)
                if rows.tokens >= TOKENS_AT_A_TIME:
                    yield rows.take()
            uses[example.context] -= 1
            if not uses[example.context]:
                del contexts[example.context]
        if rows.tokens:
            yield rows.take()


class _Rows:
    """Windows on their way into a record batch."""

    def __init__(self, schema: pa.Schema, template: Template):
        self.schema, self.template = schema, template
        self._clear()

    def _clear(self) -> None:
        self.tokens = 0
        self.columns: dict[str, list] = {name: [] for name in self.schema.names}  # of list columns, pieces to join
        self.sizes: list[tuple[int, int]] = []  # tokens of question and context

    def add(self, question: np.ndarray, context: np.ndarray, columns: dict) -> None:
        """A window of int32 question and context tokens; `columns` holds those beside its inputs."""
        prefix, middle, suffix, _ = self.template
        length = len(prefix) + len(question) + len(middle) + len(context) + len(suffix)
        self.columns["input_ids"] += (prefix, question, middle, context, suffix)
        self.columns["length"].append(length)
        self.sizes.append((len(question), len(context)))
        self.tokens += length
        for name, value in columns.items():
            self.columns[name].append(value)

    def take(self) -> pa.RecordBatch:
        """Those added since the last call, at least one."""
        questions, contexts = map(list, zip(*self.sizes, strict=True))
        sizes = dict.fromkeys(("input_ids", "token_type_ids"), self.columns["length"])
        if "target_ids" in self.columns:
            sizes["target_ids"] = list(map(len, self.columns["target_ids"]))
        types = np.tile(self.template.types, len(contexts))
        self.columns["token_type_ids"] = [np.repeat(types, self.template.repeats(questions, contexts).ravel())]
        batch = pa.record_batch(
            [
                _join(self.columns[field.name], sizes.get(field.name, contexts), field.type)
                if pa.types.is_list(field.type)
                else pa.array(self.columns[field.name], field.type)
                for field in self.schema
            ],
            schema=self.schema,
        )
        self._clear()
        return batch


def _join(pieces: list[np.ndarray], lengths: list[int], kind: pa.DataType) -> pa.ListArray:
    ends = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(pieces), kind.value_type), type=kind)
