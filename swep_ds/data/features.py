"""Features: the windows of all questions (`data/windows.py`) as columns, cached as Arrow.

Every distinct context is tokenised once, however many questions share it; windows are assembled from its ids.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import InputError
from swep_ds.data import cache
from swep_ds.data.example import Example
from swep_ds.data.tokens import TextTokens, ahead
from swep_ds.data.windows import Template, WindowCutter, WindowSettings

FORMAT_VERSION = 6  # part of every cache file's name: raise it when the columns or their meaning change
TOKENS_AT_A_TIME = 2**20  # written at once, of all windows together: a long context has thousands of them


@dataclass(frozen=True)
class Features:
    """Windows, and how many examples lost something on the way.

    `dataset` gives plain Python values, rows in the order of the examples and of the windows of a context.
    Positions are indices in `input_ids`. Columns of every window:
        input_ids                     int32 list, no padding
        token_type_ids                int8 list, only if the tokenizer names it among its model's inputs
        length                        int32, number of input_ids
    for training:
        start_position, end_position  int32, the answer's first and last token; both the null position if it is not all
                                      there or the question has no answer
        has_answer                    bool, whether the whole answer is in this window
    for training to generate:
        target_ids                    int32 list, the answer's tokens with the tokenizer's special ones; these alone if
                                      the question has no answer
    for evaluation:
        example                       int32, index in the list of examples
    for evaluation of extracted answers:
        null_position                 int32, that of [CLS], or 0 if there is none
        context_begin, context_end    int32, positions [context_begin, context_end) of the context tokens
        own_begin, own_end            int32, positions [own_begin, own_end) whose maximum context is in this window
        offset_start, offset_end      int32 lists, characters [start, end) of every context token of this window
    """

    dataset: Dataset
    examples: int
    questions_cut: int  # questions longer than max_query_length
    targets_cut: int  # target answers (task generative) longer than max_target_length
    windows_without_answer: int  # training windows, kept or dropped; 0 for evaluation
    fingerprint: str  # changes with the examples, the tokenizer and the settings

    def answers_above(self, tokens: int) -> int:
        """The number of training windows with an answer of more than `tokens` tokens. For extractive features only."""
        first, last = (np.asarray(self.dataset[name][:]) for name in ("start_position", "end_position"))
        return int((last - first >= tokens).sum())


def build_features(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    settings: WindowSettings,
    *,
    training: bool,
    windows_without_answer: Literal["cls", "drop"] = "cls",
    cache_dir: Path,
    console: Console | None = None,
) -> Features:
    """Tokenises `examples` (at least one) into windows, or maps them from `cache_dir` if nothing changed.

    Training windows without the whole answer learn the null position ("cls") or are left out ("drop"); where answers
    are generated they are always left out. Windows of questions without an answer are never left out.
    Several processes may build the same features at once: a file appears in the cache complete or not at all.
    Windows are written as they are made, so memory does not grow with their number. `console` shows the progress.

    Raises InputError: as `WindowCutter`; the sizes leave no room for context, a context has no token, every training
    window was dropped, or the cache cannot be written.
    """
    cutter = WindowCutter(tokenizer, settings, examples[0])
    cutter.check_sizes()
    drop = training and (settings.task == "generative" or windows_without_answer == "drop")
    setup = {"format": FORMAT_VERSION, **asdict(settings), "training": training, "drop": drop}
    setup["types"] = cutter.takes_types
    digest = hashlib.sha256(f"{setup} {type(tokenizer).__name__} {cutter.backend.to_str()}".encode())
    numbers: dict[str, int] = {}  # context -> number: the digest takes each text once
    for example in examples:
        context = numbers.get(example.context, example.context)
        numbers.setdefault(example.context, len(numbers))
        span = example.span if training else None
        digest.update(repr((example.question, context, span)).encode())
    cached = cache_dir / f"{'train' if training else 'eval'}-{digest.hexdigest()[:32]}.arrow"

    counts = Counter(examples=len(examples), questions_cut=0, targets_cut=0, windows_without_answer=0)
    schema = _schema(cutter, training=training)
    if (loaded := cache.load(cached, schema, counts)) is None:
        groups = ahead(cutter.tokenise(examples))
        groups = _shown(groups, len(examples), console or Console(quiet=True))
        batches = _batches(examples, groups, cutter, schema, counts, training=training, drop=drop)
        cache.save(cached, schema, batches, counts)
        loaded = cache.load(cached, schema, counts)
        if loaded is None:
            raise InputError(f"{cached}: what was written there is read differently: {cache.CACHE_FIX}")
    dataset, facts = loaded
    return Features(dataset, **facts, fingerprint=cached.stem)


def windows_to_answer(examples: Sequence[Example], cutter: WindowCutter) -> tuple[pa.Table, int]:
    """The windows of a few examples, at least one, as `build_features` makes them for evaluation, but in memory; and
    how many questions were cut. Raises InputError: a context has no token."""
    counts = Counter()
    schema = _schema(cutter, training=False)
    batches = _batches(examples, cutter.tokenise(examples), cutter, schema, counts, training=False, drop=False)
    return pa.Table.from_batches(batches, schema), counts["questions_cut"]


def _schema(cutter: WindowCutter, *, training: bool) -> pa.Schema:
    int32, int32s = pa.int32(), pa.list_(pa.int32())
    types = {"token_type_ids": pa.list_(pa.int8())} if cutter.takes_types else {}
    if cutter.settings.task == "generative":
        task = {"target_ids": int32s} if training else {"example": int32}
    elif training:
        task = {"start_position": int32, "end_position": int32, "has_answer": pa.bool_()}
    else:
        task = {"example": int32, "null_position": int32, "context_begin": int32, "context_end": int32}
        task |= {"own_begin": int32, "own_end": int32, "offset_start": int32s, "offset_end": int32s}
    return pa.schema({"input_ids": int32s, **types, "length": int32, **task})


def _batches(
    examples: Sequence[Example],
    groups: Iterator[tuple],
    cutter: WindowCutter,
    schema: pa.Schema,
    counts: Counter,
    *,
    training: bool,
    drop: bool,
) -> Iterator[pa.RecordBatch]:
    """Yields the windows, a bounded number at a time, and adds to `counts` on the way.

    Args:
        groups: the examples as `tokenise` yields them.

    A context's tokens stay in memory from its first question to its last. While this thread assembles windows, the
    tokenizer, which releases the interpreter, works on the next examples.
    """
    template, generative = cutter.template, cutter.settings.task == "generative"
    uses = Counter(example.context for example in examples)
    contexts: dict[str, TextTokens] = {}
    rows = _Rows(schema, template)
    for at, group, new, questions in groups:
        contexts |= new
        for number, (example, (question, cut)) in enumerate(zip(group, questions, strict=True), start=at):
            counts["questions_cut"] += cut
            context = contexts[example.context]
            context_begin = template.context_begin(len(question))
            if training:
                first, last = context.answer_tokens(example.span) if example.span else (len(context.ids), -1)
            target = _target(cutter, example, counts) if training and generative else None
            for begin, end, own_begin, own_end in cutter.windows(len(question), len(context.ids)):
                shift = context_begin - begin
                null = cutter.null_position(context_begin + end - begin + len(template.suffix))
                if training:
                    has_answer = begin <= first <= last < end
                    counts["windows_without_answer"] += not has_answer
                    if drop and example.span and not has_answer:
                        continue
                if target is not None:
                    columns = {"target_ids": target}
                elif training:
                    positions = (first + shift, last + shift) if has_answer else (null, null)
                    columns = {"start_position": positions[0], "end_position": positions[1], "has_answer": has_answer}
                elif generative:
                    columns = {"example": number}
                else:
                    columns = {"example": number, "null_position": null}
                    columns |= {"context_begin": context_begin, "context_end": end + shift}
                    columns |= {"own_begin": own_begin + shift, "own_end": own_end + shift}
                    columns |= {"offset_start": context.starts[begin:end], "offset_end": context.ends[begin:end]}
                rows.add(question, context.ids[begin:end], columns)
                if rows.tokens >= TOKENS_AT_A_TIME:
                    yield rows.take()
            uses[example.context] -= 1
            if not uses[example.context]:
                del contexts[example.context]
        if rows.tokens:
            yield rows.take()


def _target(cutter: WindowCutter, example: Example, counts: Counter) -> np.ndarray:
    """The token ids of the training answer, or of "" without one; cut, and counted, beyond `max_target_length`."""
    answer = example.context[slice(*example.span)] if example.span else ""
    encoded = cutter.backend.encode(answer)
    text = np.array(encoded.special_tokens_mask) == 0  # the rest is the template's
    target = np.array(encoded.ids, np.int32)
    target[text] = cutter.as_text(target[text])
    longest = cutter.settings.max_target_length
    if len(target) > longest:
        counts["targets_cut"] += 1
        target = np.delete(target, np.s_[longest - 1 : -1])  # the end token stays
    return target


def _shown(groups: Iterator[tuple], total: int, console: Console) -> Iterator[tuple]:
    """The groups; shows how many of `total` questions are tokenised."""
    with Progress(console, "questions tokenised", total) as progress:
        for group in groups:
            yield group
            progress.update(group[0] + len(group[1]))


class _Rows:
    """Collects windows for a record batch."""

    def __init__(self, schema: pa.Schema, template: Template):
        self.schema, self.template, self.specials = schema, template, template.specials
        self._clear()

    def _clear(self) -> None:
        self.tokens = 0
        self.columns: dict[str, list] = {name: [] for name in self.schema.names}  # list columns hold pieces to join
        self.sizes: list[tuple[int, int]] = []  # tokens of question and context

    def add(self, question: np.ndarray, context: np.ndarray, columns: dict) -> None:
        """Adds a window of int32 question and context tokens; `columns` holds the columns beside its inputs."""
        length = self.specials + len(question) + len(context)
        self.columns["input_ids"] += self.template.pieces(question, context)
        self.columns["length"].append(length)
        self.sizes.append((len(question), len(context)))
        self.tokens += length
        for name, value in columns.items():
            self.columns[name].append(value)

    def take(self) -> pa.RecordBatch:
        """The windows, at least one, since the last call."""
        questions, contexts = map(list, zip(*self.sizes, strict=True))
        sizes = dict.fromkeys(("input_ids", "token_type_ids"), self.columns["length"])
        if "target_ids" in self.columns:
            sizes["target_ids"] = list(map(len, self.columns["target_ids"]))
        self.columns["token_type_ids"] = [self.template.type_ids(questions, contexts)]
        arrays = [
            _join(self.columns[field.name], sizes.get(field.name, contexts), field.type)
            if pa.types.is_list(field.type)
            else pa.array(self.columns[field.name], field.type)
            for field in self.schema
        ]
        self._clear()
        return pa.record_batch(arrays, schema=self.schema)


def _join(pieces: list[np.ndarray], lengths: list[int], kind: pa.DataType) -> pa.ListArray:
    ends = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(pieces), kind.value_type), type=kind)
