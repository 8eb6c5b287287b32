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
import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from datasets import Dataset
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from swep_ds.data.readers import Example
from swep_ds.errors import InputError

FORMAT_VERSION = 3  # part of every cache file's name: raise it when the columns or their meaning change
EXAMPLES_AT_A_TIME = 1024

T = TypeVar("T")
logger = logging.getLogger(__name__)


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

    Raises InputError for a tokenizer without offsets, sizes that leave no room for context, a context without
    any token, and training data of which every window was dropped.
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
    for example in examples:
        span = example.span if training else None
        digest.update(repr((example.question, example.context, span)).encode())
    cached = cache_dir / f"{'train' if training else 'eval'}-{digest.hexdigest()[:32]}.arrow"

    if (features := _load(cached)) is None:
        counts = Counter(examples=len(examples), questions_cut=0, targets_cut=0, windows_without_answer=0)
        schema = _schema(settings, training=training, has_types=has_types)
        batches = _batches(examples, backend, template, gap, settings, schema, counts, training=training, drop=drop)
        _save(cached, schema, batches, counts)
        features = _load(cached)
    return features


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
        """Reads them off the encoding of a context paired with itself."""
        count = len(backend.encode(example.context, add_special_tokens=False))
        _require_tokens(count, example)
        pair = backend.encode(example.context, example.context)
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


@lru_cache(maxsize=4096)
def context_windows(tokens: int, room: int, step: int) -> tuple[_Window, ...]:
    """The windows of a context of `tokens` tokens when `room` of them fit beside the question.

    A token's owner is the window with the largest min(tokens to its left, tokens to its right) + 0.01 * length,
    the earlier one of equals. What a window owns is contiguous: the score of a later window minus that of an
    earlier one never falls from left to right within their overlap, so owners never go back.
    """
    begins = np.arange(0, max(tokens - room, 0) + step, step)
    ends = np.minimum(begins + room, tokens)
    if len(begins) == 1:
        return (_Window(0, tokens, 0, tokens),)
    position = np.arange(tokens)
    context = np.minimum(position - begins[:, None], ends[:, None] - 1 - position)
    score = 100 * context + (ends - begins)[:, None]  # in hundredths: exact
    owner = np.where(context < 0, -1, score).argmax(axis=0)  # argmax takes the first of equals
    own_begins = np.searchsorted(owner, np.arange(len(begins)), side="left")
    own_ends = np.searchsorted(owner, np.arange(len(begins)), side="right")
    return tuple(map(_Window._make, zip(*(a.tolist() for a in (begins, ends, own_begins, own_ends)), strict=True)))


class _Context(NamedTuple):
    ids: np.ndarray  # int32
    starts: np.ndarray  # int32, first character of every token
    ends: np.ndarray  # int32, behind its last character

    @classmethod
    def of(cls, encoding: Encoding, gap: int) -> "_Context":
        """`gap`: characters that were put in front of the text."""
        count = len(encoding)
        offsets = np.fromiter(chain.from_iterable(encoding.offsets), np.int32, 2 * count).reshape(count, 2) - gap
        return cls(np.fromiter(encoding.ids, np.int32, count), offsets[:, 0].copy(), offsets[:, 1].copy())

    def answer_tokens(self, span: tuple[int, int]) -> tuple[int, int]:
        """First and last token that overlap the characters [start, end); first > last if none does.

        Overlap, not equality: a token may reach over the answer's edges or begin with the space before it.
        """
        behind, before = self.ends > span[0], self.starts < span[1]
        first, last = int(behind.argmax()), len(self.ids) - 1 - int(before[::-1].argmax())
        return (first, last) if behind[first] and before[last] else (len(self.ids), -1)


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
    """Yields the windows of some examples at a time and adds to `counts` on the way.

    A context's tokens stay in memory from its first question to its last. While windows are put together here, the
    tokenizer, which needs no interpreter, is at the next examples.
    """
    prefix, middle, suffix, types = template
    generative = settings.task == "generative"
    uses = Counter(example.context for example in examples)
    contexts: dict[str, _Context] = {}
    for at, some, new, questions in _ahead(_encodings(examples, backend, gap)):
        for context, encoding in new:
            contexts[context] = _Context.of(encoding, len(gap))
        columns: dict[str, list] = {name: [] for name in schema.names}  # of list columns, the pieces to join
        sizes: list[int] = []  # context tokens of every window
        target_sizes: list[int] = []
        question_sizes: list[int] = []
        for row, (example, encoding) in enumerate(zip(some, questions, strict=True), start=at):
            question = np.array(encoding.ids[: settings.max_query_length], np.int32)
            counts["questions_cut"] += len(encoding) > settings.max_query_length
            context = contexts[example.context]
            context_begin = len(prefix) + len(question) + len(middle)
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
                if training:
                    has_answer = begin <= first <= last < end
                    counts["windows_without_answer"] += not has_answer
                    if drop and not has_answer:
                        continue
                if training and generative:
                    columns["target_ids"].append(target)
                    target_sizes.append(len(target))
                elif training:
                    columns["start_position"].append(first + shift if has_answer else 0)
                    columns["end_position"].append(last + shift if has_answer else 0)
                    columns["has_answer"].append(has_answer)
                else:
                    columns["example"].append(row)
                if not training and not generative:
                    columns["context_begin"].append(context_begin)
                    columns["context_end"].append(end + shift)
                    columns["offset_start"].append(context.starts[begin:end])
                    columns["offset_end"].append(context.ends[begin:end])
                    columns["own_begin"].append(own_begin + shift)
                    columns["own_end"].append(own_end + shift)
                columns["input_ids"] += (prefix, question, middle, context.ids[begin:end], suffix)
                columns["length"].append(context_begin + end - begin + len(suffix))
                sizes.append(end - begin)
                question_sizes.append(len(question))
            uses[example.context] -= 1
            if not uses[example.context]:
                del contexts[example.context]
        if sizes:
            lengths = dict.fromkeys(("input_ids", "token_type_ids"), columns["length"]) | {"target_ids": target_sizes}
            repeats = template.repeats(question_sizes, sizes)
            columns["token_type_ids"] = [np.repeat(np.tile(types, len(sizes)), repeats.ravel())]
            yield pa.record_batch(
                [
                    _join(columns[field.name], lengths.get(field.name, sizes), field.type)
                    if pa.types.is_list(field.type)
                    else pa.array(columns[field.name], field.type)
                    for field in schema
                ],
                schema=schema,
            )


def _encodings(examples: Sequence[Example], backend: Tokenizer, gap: str) -> Iterator[tuple]:
    """Some examples at a time: the first one's index, they, the contexts not met before and the questions, encoded."""
    seen: set[str] = set()
    for at in range(0, len(examples), EXAMPLES_AT_A_TIME):
        some = examples[at : at + EXAMPLES_AT_A_TIME]
        new = {example.context: example for example in some if example.context not in seen}
        seen |= new.keys()
        contexts = backend.encode_batch([gap + context for context in new], add_special_tokens=False)
        questions = backend.encode_batch_fast([gap + example.question for example in some], add_special_tokens=False)
        for example, encoding in zip(new.values(), contexts, strict=True):
            _require_tokens(len(encoding), example)
        yield at, some, list(zip(new, contexts, strict=True)), questions


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in another thread while the one before it is looked at."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item


def _require_tokens(count: int, example: Example) -> None:
    if count == 0:
        raise InputError(
            f"question {example.id!r}: the tokenizer finds no token in its context {example.context[:40]!r}; "
            "leave the question out of the data set"
        )


def _join(pieces: list[np.ndarray], lengths: list[int], kind: pa.DataType) -> pa.ListArray:
    ends = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(pieces), kind.value_type), type=kind)


def _save(cached: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], counts: Counter) -> None:
    """Writes the windows and, last, the small JSON file that makes them valid: counts and checksum."""
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        windows, facts = Path(folder, "windows"), Path(folder, "facts")
        rows = 0
        with pa.OSFile(str(windows), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        if rows == 0:
            raise InputError(
                "no window holds its whole answer, and windows without it are dropped; raise data.max_length or, for "
                "extractive answers, keep such windows (data.windows_without_answer: cls)"
            )
        facts.write_text(json.dumps({"sha256": _checksum(windows), **counts}), encoding="utf-8")
        os.replace(windows, cached)
        os.replace(facts, cached.with_suffix(".json"))


def _load(cached: Path) -> Features | None:
    """The cached features, or None if there are none or they are damaged, which is logged."""
    facts_file = cached.with_suffix(".json")
    if not (cached.exists() and facts_file.exists()):
        return None
    try:
        facts = json.loads(facts_file.read_text(encoding="utf-8"))
        intact = facts.pop("sha256") == _checksum(cached)
    except (ValueError, KeyError):
        intact = False
    if not intact:
        logger.warning("%s does not match its checksum: tokenising again", cached)
        return None
    return Features(Dataset.from_file(str(cached)), **facts, fingerprint=cached.stem)


def _checksum(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
