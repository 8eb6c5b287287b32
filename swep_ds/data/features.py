"""Features: the windows of all questions (`data/windows.py`) as columns, cached as Arrow.

Every distinct context is tokenised once, however many questions share it; windows are assembled from its ids.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from swep_ds.common.console import Console, Progress
from swep_ds.data import cache
from swep_ds.data.example import Example
from swep_ds.data.tokens import TextTokens, ahead
from swep_ds.data.windows import ContextWindow, Template, WindowCutter, WindowSettings

FORMAT_VERSION = 6  # part of every cache file's name: raise it when the columns or their meaning change
TOKENS_AT_A_TIME = 2**20  # written at once, of all windows together: a long context has thousands of them

_Row = tuple[np.ndarray, np.ndarray, dict[str, Any]]  # a window's question and context ids, int32; its other columns
_Windows = Iterator[tuple[ContextWindow, dict[str, Any]]]


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

    if cache.load(cached) is None:
        counts = Counter(examples=len(examples), questions_cut=0, targets_cut=0, windows_without_answer=0)
        schema = _schema(cutter, training=training)
        groups = _shown(ahead(cutter.tokenise(examples)), len(examples), console or Console(quiet=True))
        asked = _asked(examples, groups, cutter, counts)
        cache.save(cached, schema, _batches(asked, cutter, schema, counts, training=training, drop=drop), counts)
    dataset, facts = cache.load(cached)
    return Features(dataset, **facts, fingerprint=cached.stem)


def windows_to_answer(examples: Sequence[Example], cutter: WindowCutter) -> tuple[pa.Table, int]:
    """The windows of a few examples, at least one, as `build_features` makes them for evaluation, but in memory; and
    how many questions were cut. Raises InputError: a context has no token."""
    counts = Counter()
    schema = _schema(cutter, training=False)
    asked = _asked(examples, cutter.tokenise(examples), cutter, counts)
    batches = _batches(asked, cutter, schema, counts, training=False, drop=False)
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


class _Asked(NamedTuple):
    """A tokenised question and its windows."""

    number: int  # of the example
    example: Example
    question: np.ndarray  # int32 ids
    context: TextTokens
    windows: list[ContextWindow]


def _asked(
    examples: Sequence[Example], groups: Iterator[tuple], cutter: WindowCutter, counts: Counter
) -> Iterator[_Asked]:
    """Every example with its tokens. A context's tokens stay in memory from its first question to its last.

    Args:
        groups: the examples as `tokenise` yields them. While the caller assembles windows, the tokenizer, which
            releases the interpreter, works on the next group.
    """
    uses = Counter(example.context for example in examples)
    contexts: dict[str, TextTokens] = {}
    for at, group, new, questions in groups:
        contexts |= new
        for number, (example, (question, cut)) in enumerate(zip(group, questions, strict=True), start=at):
            counts["questions_cut"] += cut
            context = contexts[example.context]
            yield _Asked(number, example, question, context, cutter.windows(len(question), len(context.ids)))
            uses[example.context] -= 1
            if not uses[example.context]:
                del contexts[example.context]


def _batches(
    questions: Iterator[_Asked],
    cutter: WindowCutter,
    schema: pa.Schema,
    counts: Counter,
    *,
    training: bool,
    drop: bool,
) -> Iterator[pa.RecordBatch]:
    """The windows, a bounded number at a time; adds to `counts` on the way."""
    rows: list[_Row] = []
    tokens = 0
    for asked in questions:
        if not training:
            windows = _windows_to_answer(asked, cutter)
        elif cutter.settings.task == "generative":
            windows = _windows_with_target(asked, cutter, counts)
        else:
            windows = _windows_with_span(asked, cutter, counts, drop)
        for window, columns in windows:
            context = asked.context.ids[window.begin : window.end]
            rows.append((asked.question, context, columns))
            tokens += cutter.specials + len(asked.question) + len(context)
            if tokens >= TOKENS_AT_A_TIME:
                yield _record_batch(rows, cutter.template, schema)
                rows, tokens = [], 0
    if rows:
        yield _record_batch(rows, cutter.template, schema)


def _windows_to_answer(asked: _Asked, cutter: WindowCutter) -> _Windows:
    """All windows of a question, to find its answer in them."""
    context_begin = cutter.template.context_begin(len(asked.question))
    for window in asked.windows:
        columns: dict[str, Any] = {"example": asked.number}
        if cutter.settings.task == "extractive":
            begin, end, own_begin, own_end = window
            shift = context_begin - begin
            columns["null_position"] = cutter.null_position(end + shift + len(cutter.template.suffix))
            columns["context_begin"] = context_begin
            columns["context_end"] = end + shift
            columns["own_begin"] = own_begin + shift
            columns["own_end"] = own_end + shift
            columns["offset_start"] = asked.context.starts[begin:end]
            columns["offset_end"] = asked.context.ends[begin:end]
        yield window, columns


def _windows_with_span(asked: _Asked, cutter: WindowCutter, counts: Counter, drop: bool) -> _Windows:
    """The windows of a question, to learn the first and last token of its answer, or the null position without it."""
    first, last = _answer_tokens(asked)
    context_begin = cutter.template.context_begin(len(asked.question))
    for window in asked.windows:
        shift = context_begin - window.begin
        has_answer = window.begin <= first <= last < window.end
        if has_answer:
            start, end = first + shift, last + shift
        else:
            counts["windows_without_answer"] += 1
            if drop and asked.example.span:
                continue
            start = end = cutter.null_position(window.end + shift + len(cutter.template.suffix))
        yield window, {"start_position": start, "end_position": end, "has_answer": has_answer}


def _windows_with_target(asked: _Asked, cutter: WindowCutter, counts: Counter) -> _Windows:
    """The windows of a question that hold its whole answer, or all if it has none, to learn to write it."""
    first, last = _answer_tokens(asked)
    target = _target(cutter, asked.example, counts)
    for window in asked.windows:
        has_answer = window.begin <= first <= last < window.end
        if not has_answer:
            counts["windows_without_answer"] += 1
        if has_answer or not asked.example.span:
            yield window, {"target_ids": target}


def _answer_tokens(asked: _Asked) -> tuple[int, int]:
    """First and last context token of the answer; first > last without one."""
    if asked.example.span is None:
        return len(asked.context.ids), -1
    return asked.context.answer_tokens(asked.example.span)


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


def _record_batch(rows: list[_Row], template: Template, schema: pa.Schema) -> pa.RecordBatch:
    """The windows `rows`, at least one, with their inputs and other columns."""
    questions = [len(question) for question, _, _ in rows]
    contexts = [len(context) for _, context, _ in rows]
    lengths = [template.specials + sum(sizes) for sizes in zip(questions, contexts, strict=True)]
    arrays = []
    for column in schema:
        if column.name == "length":
            arrays.append(pa.array(lengths, column.type))
        elif column.name == "input_ids":
            pieces = [piece for question, context, _ in rows for piece in template.pieces(question, context)]
            arrays.append(_lists(pieces, lengths, column.type))
        elif column.name == "token_type_ids":
            arrays.append(_lists([template.type_ids(questions, contexts)], lengths, column.type))
        else:
            values = [columns[column.name] for _, _, columns in rows]
            if pa.types.is_list(column.type):
                arrays.append(_lists(values, list(map(len, values)), column.type))
            else:
                arrays.append(pa.array(values, column.type))
    return pa.record_batch(arrays, schema=schema)


def _lists(pieces: list[np.ndarray], lengths: list[int], kind: pa.DataType) -> pa.ListArray:
    """Lists of these lengths, which the pieces, joined, fill."""
    ends = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(pieces), kind.value_type), type=kind)
