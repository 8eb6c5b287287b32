"""Times what happens around the model: preparing training data, decoding and scoring answers.

The questions are those of a source over and over; each round puts a number behind every question and context, so that
all texts are different. Baselines, in the same run on the same cores:
- the bare tokenizer on the same texts, each once, with the contexts' offsets;
- transformers' usual call on pairs of question and context;
- the n-best rule of `evaluation.spans` as loops over every pair, as transformers' question-answering example has it.
"""

import dataclasses
import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from swep_ds.data.example import Example
from swep_ds.data.features import WindowSettings, build_features
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.evaluate import Predictions
from swep_ds.evaluation.predict import read_columns
from swep_ds.evaluation.scores import SQUAD
from swep_ds.evaluation.spans import SpanDecoder, SpanSettings
from swep_ds.models.hub import load_tokenizer

PAIRS = 10  # the usual call is timed on every tenth question
BATCH = 32  # windows, as eval.batch_size
CHUNK = 1000  # texts per call of a tokenizer, as in datasets.map
Figures = dict[str, Any]


def measure_data(source: str, model: str, questions: int, answers: int) -> Figures:
    """Times `questions` questions through preparation and `answers` questions through decoding; prints a table.

    Args:
        source: as in data.train.
        model: hub id or folder of the tokenizer.
    """
    tokenizer = load_tokenizer(model)
    examples = _repeat(read_examples(source, training=True), max(questions, answers))
    with tempfile.TemporaryDirectory() as folder:
        windows, preparation = _prepare(examples[:questions], tokenizer, Path(folder))
        same, decoding = _decode(examples[:answers], tokenizer, Path(folder))
    seconds = preparation | decoding
    print(f"{model}, {source}: {questions:,} questions, {windows:,} windows; {answers:,} questions decoded")
    print(pandas.DataFrame(seconds).T.to_string(float_format="{:,.2f}".format))
    about = {"data": source, "model": model, "threads": torch.get_num_threads(), "questions": questions}
    return about | {"windows": windows, "answers": answers, "same_answers": same, "seconds": seconds}


def _repeat(examples: list[Example], count: int) -> list[Example]:
    repeated: list[Example] = []
    for turn in itertools.count():
        contexts = {example.context: f"{example.context} ({turn})" for example in examples}  # one copy of each
        for example in examples:
            if len(repeated) == count:
                return repeated
            changes = {"id": f"{example.id}-{turn}", "question": f"{example.question} ({turn})"}
            repeated.append(dataclasses.replace(example, context=contexts[example.context], **changes))


def _timed(work: Callable[[], Any], times: int = 1) -> tuple[Any, dict[str, float]]:
    """What `work` returns, `times` its wall-clock seconds, and `times` its CPU seconds on all cores."""
    began, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return result, {"seconds": times * wall, "CPU seconds": times * cpu}


def _prepare(examples: list[Example], tokenizer: PreTrainedTokenizerFast, folder: Path) -> tuple[int, Figures]:
    """The number of training windows, and seconds; again from the cache; and the baselines."""
    settings = WindowSettings()
    contexts, questions = list(dict.fromkeys(e.context for e in examples)), [e.question for e in examples]

    def windows():
        return build_features(examples, tokenizer, settings, training=True, cache_dir=folder / "cache")

    def pairs() -> None:
        for chunk in _chunks(examples[::PAIRS]):
            tokenizer(
                [example.question for example in chunk],
                [example.context for example in chunk],
                truncation="only_second",
                max_length=settings.max_length,
                stride=settings.max_length - settings.max_query_length - settings.doc_stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )

    def bare() -> None:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        for chunk in _chunks(contexts):
            _ = [(text.ids, text.offsets) for text in backend.encode_batch(chunk, add_special_tokens=False)]
        for chunk in _chunks(questions):
            _ = [text.ids for text in backend.encode_batch_fast(chunk, add_special_tokens=False)]

    features, building = _timed(windows)
    seconds = {
        "the bare tokenizer": _timed(bare)[1],
        f"the usual call on pairs (one of {PAIRS}, times {PAIRS})": _timed(pairs, PAIRS)[1],
        "windows": building,
        "windows from the cache": _timed(windows)[1],
    }
    return len(features.dataset), seconds


def _chunks(items: list) -> Iterator[list]:
    return (items[at : at + CHUNK] for at in range(0, len(items), CHUNK))


def _decode(examples: list[Example], tokenizer: PreTrainedTokenizerFast, folder: Path) -> tuple[bool, Figures]:
    """Whether the loops give the same answers, and seconds: random logits, decoded vectorised and by loops."""
    settings = SpanSettings()
    windows = build_features(examples, tokenizer, WindowSettings(), training=False, cache_dir=folder / "cache").dataset
    order = np.argsort(-np.asarray(windows["length"][:]), kind="stable")
    rng = np.random.default_rng(0)
    batches = []
    for rows in np.split(order, range(BATCH, len(order), BATCH)):
        logits = rng.normal(size=(2, len(rows), int(windows["length"][rows[0]])))
        batches.append((rows, *torch.from_numpy(logits.astype(np.float32))))
    spans = ("offset_start", "offset_end", "context_begin", "context_end", "own_begin", "own_end")
    windows = windows.select_columns(["example", *spans])
    stored = windows.with_format("arrow")

    def vectorised(best_only: bool) -> SpanDecoder:
        decoder = SpanDecoder(examples, settings, best_only=best_only)
        for rows, starts, ends in batches:
            decoder.add(read_columns(stored, rows), starts, ends)
        return decoder

    answers, fast = _timed(lambda: Predictions(vectorised(best_only=True).n_best(), {}).texts)  # as validation does
    usual, loops = _timed(lambda: _answers_by_loops(examples, windows, batches, settings))
    accepted = {example.id: example.answers for example in examples}
    return answers == usual, {
        "n best by loops": loops,
        "decoding, as validation does": fast,
        "decoding, n best with probabilities": _timed(lambda: vectorised(best_only=False).n_best())[1],
        "EM and F1": _timed(lambda: SQUAD.score(answers, accepted))[1],
    }


def _answers_by_loops(
    examples: list[Example], windows: Dataset, batches: Iterable[tuple], settings: SpanSettings
) -> dict[str, str]:
    """The rule of `evaluation.spans` as it reads: a record for every allowed pair of a start and an end, and the n best
    of a question with texts and probabilities."""

    def top(logits: np.ndarray, begin: int, end: int) -> list[int]:
        return (begin + (-logits[begin:end]).argsort(kind="stable")[: settings.n_best]).tolist()

    records: dict[int, list[dict]] = defaultdict(list)
    for rows, *logits in batches:
        columns, (starts, ends) = windows[rows.tolist()], (tensor.numpy() for tensor in logits)
        for row, example in enumerate(columns["example"]):
            offset_start, offset_end = columns["offset_start"][row], columns["offset_end"][row]
            begin = columns["context_begin"][row]
            best_ends = top(ends[row], begin, columns["context_end"][row])
            for start in top(starts[row], columns["own_begin"][row], columns["own_end"][row]):
                for end in best_ends:
                    if start <= end < start + settings.max_answer_tokens:
                        offsets = offset_start[start - begin], offset_end[end - begin]
                        pair = {"start_logit": starts[row][start], "end_logit": ends[row][end]}
                        total = pair["start_logit"] + pair["end_logit"]  # in float32, as in that example
                        records[example].append({"offsets": offsets, "score": total, **pair})
    answers = dict.fromkeys((example.id for example in examples), "")
    for number, candidates in records.items():
        best = sorted(candidates, key=lambda record: (-record["score"], record["offsets"]))[: settings.n_best]
        weights = np.exp([record["score"] - best[0]["score"] for record in best])
        for record, probability in zip(best, weights / weights.sum(), strict=True):
            begin, end = record["offsets"]
            record |= {"text": examples[number].context[begin:end].strip(), "probability": probability}
        answers[examples[number].id] = best[0]["text"]
    return answers
