"""Features: the windows of all questions (`data/windows.py`) as columns, cached as Arrow.

A window learns one answer, `Example.span`, which `data/places.py` chose among those of its question. A window without
the whole of it is trained towards the null position or left out (`windows_without_answer`), whatever else it holds.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerFast

from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import InputError, reason
from swep_ds.common.files import ChecksumWriter, check_content, read_sealed, sealed, write_atomically
from swep_ds.data.example import Example
from swep_ds.data.windows import ContextWindow, Question, WindowCutter, WindowSettings, decoded

log = logging.getLogger(__name__)
FORMAT_VERSION = 9  # part of every cache file's name: raise it when the columns or their meaning change
ROWS_AT_A_TIME = 1000  # written at once

LIST = pa.list_(pa.int32())
TYPES = {  # the columns of `Features.dataset`; positions are indices in `input_ids`
    # every window has these
    "input_ids": LIST,  # no padding
    "token_type_ids": pa.list_(pa.int8()),  # only if the tokenizer names it among its model's inputs
    "length": pa.int32(),  # number of input_ids
    # for training: the answer's first and last token; both the null position if it is not all there or there is none
    "start_position": pa.int32(),
    "end_position": pa.int32(),
    "has_answer": pa.bool_(),  # whether the whole answer is in this window
    # for training to generate: the answer's tokens with the special ones, which are all if there is no answer
    "target_ids": LIST,
    # for evaluation: index in the list of examples
    "example": pa.int32(),
    # for evaluation of extracted answers
    "null_position": pa.int32(),  # that of [CLS], or 0 if there is none
    "context_begin": pa.int32(),  # [context_begin, context_end) are the context tokens
    "context_end": pa.int32(),
    "own_begin": pa.int32(),  # [own_begin, own_end) have their maximum context in this window
    "own_end": pa.int32(),
    "offset_start": LIST,  # characters [start, end) of every context token of this window
    "offset_end": LIST,
}


@dataclass(frozen=True)
class Features:
    """Windows, and what examples lost on the way or lose in an answer."""

    dataset: Any  # `datasets.Dataset`; columns as in `TYPES`; rows in the order of examples and windows of a context
    examples: int
    questions_cut: int  # questions longer than max_query_length
    targets_cut: int  # target answers (task generative) longer than max_target_length
    windows_without_answer: int  # training windows, kept or dropped; 0 for evaluation
    # by example: tokens of its training answer or its shortest gold, special ones included if generated; 0 without any
    answer_tokens: list[int]
    rewritten: dict[str, str]  # task generative: what comes back of each answer that the tokenizer writes differently
    fingerprint: str  # changes with the examples, their answers, the tokenizer and the settings
    parts: tuple["Features", ...] = ()  # those of which they are `joined`

    @staticmethod
    def joined(parts: Sequence["Features"]) -> "Features":
        """The windows of all parts, one after the other; a single part as it is."""
        if len(parts) == 1:
            return parts[0]
        from datasets import concatenate_datasets

        counts = {}
        for name in ("examples", "questions_cut", "targets_cut", "windows_without_answer"):
            counts[name] = sum(getattr(part, name) for part in parts)
        counts["answer_tokens"] = [tokens for part in parts for tokens in part.answer_tokens]
        counts["rewritten"] = dict(chain.from_iterable(part.rewritten.items() for part in parts))
        fingerprint = "+".join(part.fingerprint for part in parts)
        windows = concatenate_datasets([part.dataset for part in parts])
        return Features(windows, **counts, fingerprint=fingerprint, parts=tuple(parts))


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
    Memory does not grow with the number of windows. `console` shows the progress.

    Raises InputError: the sizes leave no room for context, a context has no token, every training window was dropped,
    or the cache cannot be written.
    """
    cutter = WindowCutter(tokenizer, settings)
    drop = training and (settings.task == "generative" or windows_without_answer == "drop")
    setup = {"format": FORMAT_VERSION, **asdict(settings), "training": training, "drop": drop}
    setup["types"] = cutter.takes_types
    digest = hashlib.sha256(f"{setup} {type(tokenizer).__name__} {cutter.backend.to_str()}".encode())
    numbers: dict[str, int] = {}  # context -> number: the digest takes each text once
    for example in examples:
        context = numbers.get(example.context, example.context)
        numbers.setdefault(example.context, len(numbers))
        answer = example.span if training else example.answers
        digest.update(repr((example.question, context, answer)).encode())
    kind = "train" if training else "eval"
    cached = cache_dir / f"{kind}-{digest.hexdigest()[:32]}.arrow"

    if features := _load(cached, warn=True):
        return features
    counts = _counts(len(examples))
    with Progress(console or Console(quiet=True), "questions tokenised", len(examples)) as progress:
        questions = _shown(cutter.tokenise(examples), progress)
        if training:
            rows = _rows_to_learn(examples, questions, cutter, counts, drop)
        else:
            rows = _rows_to_answer(examples, questions, cutter, counts)
        _save(cached, _batches(rows), counts)
    return _load(cached)


def windows_to_answer(examples: Sequence[Example], cutter: WindowCutter) -> tuple[pa.Table, int]:
    """The windows of a few examples, at least one, as `build_features` makes them for evaluation, but in memory; and
    how many questions were cut. Raises InputError: a context has no token."""
    counts = _counts(len(examples))
    rows = _rows_to_answer(examples, cutter.tokenise(examples), cutter, counts)
    return pa.Table.from_batches(_batches(rows)), counts["questions_cut"]


def _counts(examples: int) -> dict[str, Any]:
    """What `Features` says of so many examples, before the first."""
    counts = dict.fromkeys(("questions_cut", "targets_cut", "windows_without_answer"), 0)
    return counts | {"examples": examples, "answer_tokens": [], "rewritten": {}}


# The cache: an Arrow stream of the windows and, written last, a small JSON file with its checksum and the counts


def _load(cached: Path, *, warn: bool = False) -> Features | None:
    """The cached windows; None if there are none, or if they have changed since they were written."""
    file = cached.with_suffix(".json")
    if not file.exists():
        return None
    try:
        facts = read_sealed(file)
        check_content(cached, facts.pop("checksum"))
    except (OSError, ValueError) as error:
        if warn:
            log.warning("%s: tokenised again (%s)", cached, reason(error))
        return None
    from datasets import Dataset

    return Features(Dataset.from_file(str(cached)), **facts, fingerprint=cached.stem)


def _save(cached: Path, batches: Iterator[pa.RecordBatch], counts: dict[str, Any]) -> None:
    """Writes the windows, then `counts`, which `batches` fills."""
    first = next(batches, None)
    if first is None:
        raise InputError(
            "no window holds its whole answer, and windows without it are dropped; raise data.max_length or, for "
            "extractive answers, keep such windows (data.windows_without_answer: cls)"
        )
    folder = cached.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as temporary:
            windows = Path(temporary, "windows")
            with ChecksumWriter(windows) as sink, pa.ipc.new_stream(sink, first.schema) as writer:
                for batch in chain([first], batches):
                    writer.write_batch(batch)
            facts = {"checksum": sink.checksum.hexdigest(), **counts}
            if _load(cached) is None:  # else another node has made it, too: on NFS a new file would take it away
                os.replace(windows, cached)
                write_atomically(cached.with_suffix(".json"), sealed(json.dumps(facts)))
    except OSError as error:  # most often a full disk or quota, of which Arrow's error names no file
        raise InputError(
            f"{folder}: tokenised windows cannot be written ({reason(error)}): make room there, or name another "
            "folder in HF_DATASETS_CACHE (or HF_HOME)"
        ) from error


def _shown(questions: Iterator[Question], progress: Progress) -> Iterator[Question]:
    for done, question in enumerate(questions, 1):
        yield question
        progress.update(done)


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    while batch := list(islice(rows, ROWS_AT_A_TIME)):
        schema = pa.schema({name: TYPES[name] for name in batch[0]})
        yield pa.RecordBatch.from_pylist(batch, schema)


def _rows_to_learn(
    examples: Sequence[Example], questions: Iterator[Question], cutter: WindowCutter, counts: dict[str, Any], drop: bool
) -> Iterator[dict[str, Any]]:
    """The training windows, with the first and last token of the answer (or the null position for both), or with the
    tokens to write."""
    generative = cutter.settings.task == "generative"
    for example, question in zip(examples, questions, strict=True):
        counts["questions_cut"] += question.cut
        first = last = -1  # in no window
        answer = ""
        tokens = 0
        if example.span:
            first, last = question.context.answer_tokens(example.span)
            answer = example.context[slice(*example.span)]
            tokens = last - first + 1
        if generative:
            target = _target(cutter, answer, counts)
            tokens = len(target) if answer else 0
            longest = cutter.settings.max_target_length
            if len(target) > longest:
                counts["targets_cut"] += 1
                target = np.delete(target, np.s_[longest - 1 : -1])  # the end token stays
        counts["answer_tokens"].append(tokens)
        for window in cutter.windows(len(question.ids), len(question.context.ids)):
            has_answer = window.begin <= first <= last < window.end
            if not has_answer:
                counts["windows_without_answer"] += 1
                if drop and example.span:
                    continue
            row = _inputs(question, window, cutter)
            if generative:
                row["target_ids"] = target
            else:
                row["has_answer"] = has_answer
                row["start_position"] = row["end_position"] = cutter.null_position(row["length"])
                if has_answer:
                    shift = cutter.template.context_begin(len(question.ids)) - window.begin
                    row["start_position"] = first + shift
                    row["end_position"] = last + shift
            yield row


def _rows_to_answer(
    examples: Sequence[Example], questions: Iterator[Question], cutter: WindowCutter, counts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The windows of every question, to find or to write its answer."""
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        counts["questions_cut"] += question.cut
        tokens = [_gold_tokens(cutter, question, example.context, answer, counts) for answer in example.answers]
        counts["answer_tokens"].append(min(tokens, default=0))
        context_begin = cutter.template.context_begin(len(question.ids))
        for window in cutter.windows(len(question.ids), len(question.context.ids)):
            row = _inputs(question, window, cutter)
            row["example"] = number
            if cutter.settings.task == "extractive":
                begin, end, own_begin, own_end = window
                shift = context_begin - begin
                row["null_position"] = cutter.null_position(row["length"])
                row["context_begin"] = context_begin
                row["context_end"] = end + shift
                row["own_begin"] = own_begin + shift
                row["own_end"] = own_end + shift
                row["offset_start"] = question.context.starts[begin:end]
                row["offset_end"] = question.context.ends[begin:end]
            yield row


def _inputs(question: Question, window: ContextWindow, cutter: WindowCutter) -> dict[str, Any]:
    ids = cutter.template.input_ids(question.ids, question.context.ids[window.begin : window.end])
    row = {"input_ids": ids, "length": len(ids)}
    if cutter.takes_types:
        row["token_type_ids"] = cutter.template.type_ids(len(question.ids), window.end - window.begin)
    return row


def _gold_tokens(cutter: WindowCutter, question: Question, context: str, answer: str, counts: dict[str, Any]) -> int:
    """The tokens of an accepted answer: of its first place in the context, or its own where it has none."""
    if cutter.settings.task == "generative":
        return len(_target(cutter, answer, counts))
    place = context.find(answer)
    if place < 0:
        return len(cutter.encode(answer).ids)
    first, last = question.context.answer_tokens((place, place + len(answer)))
    return last - first + 1


def _target(cutter: WindowCutter, answer: str, counts: dict[str, Any]) -> np.ndarray:
    """The token ids to write for an answer, of any length. `counts` keeps what comes back if it is another text."""
    encoded = cutter.backend.encode(answer)
    text = np.array(encoded.special_tokens_mask) == 0  # the rest is the template's
    target = np.array(encoded.ids, np.int32)
    target[text] = cutter.as_text(target[text])
    [text] = decoded(cutter.tokenizer, [target.tolist()])
    if text != answer.strip():
        counts["rewritten"][answer] = text
    return target
