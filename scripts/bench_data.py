"""Times what happens around the model: preparing training data, decoding and scoring answers.

    python scripts/bench_data.py --data new_wiki_v1.0.json.gz --model ENCODER
    python scripts/bench_data.py --data FILE --model NAME --questions 88000 --answers 10000 --json FILE

The questions are those of --data over and over, each round with a number behind every question and context, so that
all are different texts. Baselines, in the same run on the same cores: the bare tokenizer on the same texts, each once,
offsets included; transformers' usual call on pairs of question and context; the n-best rule of `evaluation.spans` as
loops over every pair. Exit codes as scripts/train.py; 1 where the loops give other answers.
"""

import argparse
import dataclasses
import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swep_ds.command import main
from swep_ds.data.readers import Example, read_examples
from swep_ds.errors import InputError

PAIRS = 10  # the usual call is timed on one question in so many
BATCH = 32  # windows
Figures = dict[str, Any]


def bench() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="quickstart:encyclopaedia", help="a source as of data.train")
    parser.add_argument("--model", default="quickstart:encoder", help="whose tokenizer it is")
    parser.add_argument("--questions", type=int, default=88_000, help="to prepare (default: 88000, SQuAD's)")
    parser.add_argument("--answers", type=int, default=10_000, help="questions to decode (default: 10000)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    if min(arguments.questions, arguments.answers) < 1:
        raise InputError("--questions and --answers must be at least 1")
    import torch

    from swep_ds.models.names import load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    examples = repeated(read_examples(arguments.data, training=True), max(arguments.questions, arguments.answers))
    with tempfile.TemporaryDirectory() as folder:
        prepared = preparation(examples[: arguments.questions], tokenizer, Path(folder))
        decoded = decoding(examples[: arguments.answers], tokenizer, Path(folder))
    figures = {
        "data": arguments.data,
        "model": arguments.model,
        "threads": torch.get_num_threads(),
        "preparation": prepared,
        "decoding": decoded,
    }
    show(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if not decoded["same_answers"]:
        raise SystemExit("the loops give other answers")


def repeated(examples: list[Example], count: int) -> list[Example]:
    made: list[Example] = []
    for turn in itertools.count():
        contexts = {example.context: f"{example.context} ({turn})" for example in examples}  # one copy of each
        for example in examples:
            if len(made) == count:
                return made
            changes = {"id": f"{example.id}-{turn}", "question": f"{example.question} ({turn})"}
            made.append(dataclasses.replace(example, context=contexts[example.context], **changes))


def write_squad(examples: list[Example], file: Path) -> None:
    paragraphs = []
    for context, some in itertools.groupby(examples, key=lambda one: one.context):
        qas = [
            {
                "id": e.id,
                "question": e.question,
                "answers": [{"text": context[slice(*e.span)], "answer_start": e.span[0]}],
            }
            for e in some
        ]
        paragraphs.append({"context": context, "qas": qas})
    file.write_text(json.dumps({"data": [{"title": "all", "paragraphs": paragraphs}]}))


def timed(work: Callable[[], Any]) -> tuple[Any, Figures]:
    """What `work` returns, and its seconds by the clock and of all cores."""
    began, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}


def peak_memory() -> int:
    """Bytes; `reset_peak_memory` begins anew."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def reset_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def preparation(examples: list[Example], tokenizer, folder: Path) -> Figures:
    """From a SQuAD file to training windows; again from the cache; and the baselines."""
    from swep_ds.data.features import WindowSettings, build_features

    settings = WindowSettings()
    write_squad(examples, folder / "train.json")
    texts = list(dict.fromkeys(e.context for e in examples)), [e.question for e in examples]

    def windows(read: list[Example]):
        return build_features(read, tokenizer, settings, training=True, cache_dir=folder / "cache")

    def pairs() -> None:
        some = examples[::PAIRS]
        for at in range(0, len(some), 1000):  # as datasets.map has it
            tokenizer(
                [e.question for e in some[at : at + 1000]],
                [e.context for e in some[at : at + 1000]],
                truncation="only_second",
                max_length=settings.max_length,
                stride=settings.max_length - settings.max_query_length - settings.doc_stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )

    def bare() -> None:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        for some in texts:
            for at in range(0, len(some), 1000):
                for encoding in backend.encode_batch(some[at : at + 1000], add_special_tokens=False):
                    _ = encoding.ids, encoding.offsets

    read, reading = timed(lambda: read_examples(str(folder / "train.json"), training=True))
    reset_peak_memory()
    before = peak_memory()
    features, building = timed(lambda: windows(read))
    growth = peak_memory() - before
    _, again = timed(lambda: windows(read_examples(str(folder / "train.json"), training=True)))
    _, tokenising = timed(bare)
    _, pairing = timed(pairs)
    return {
        "questions": len(examples),
        "contexts": len(texts[0]),
        "windows": len(features.dataset),
        "reading": reading,
        "building": building,
        "peak_memory_growth_bytes": growth,
        "second_start": again,
        "bare_tokenizer": tokenising,
        "usual_pairs": {name: value * PAIRS for name, value in pairing.items()},
    }


def decoding(examples: list[Example], tokenizer, folder: Path) -> Figures:
    """Decoding and scoring of random logits that favour the right answers, vectorised and by loops."""
    import numpy as np
    import torch

    from swep_ds.data.features import WindowSettings, build_features
    from swep_ds.evaluation.scores import score
    from swep_ds.evaluation.spans import SpanDecoder, SpanSettings

    settings = SpanSettings()
    windows = build_features(examples, tokenizer, WindowSettings(), training=False, cache_dir=folder / "cache").dataset
    generator = torch.Generator().manual_seed(0)
    order = np.argsort(windows["length"][:], kind="stable")
    batches = []
    for at in range(0, len(order), BATCH):
        columns = windows[order[at : at + BATCH].tolist()]
        size = len(columns["length"]), max(columns["length"])
        batches.append((columns, *(3 * torch.randn(2, *size, generator=generator))))

    def vectorised() -> dict[str, str]:
        decoder = SpanDecoder(examples, settings)
        for batch in batches:
            decoder.add(*batch)
        return decoder.answers()

    answers, fast = timed(vectorised)
    by_loops, slow = timed(lambda: answers_by_loops(examples, batches, settings.n_best, settings.max_answer_tokens))
    _, scoring = timed(lambda: score(answers, {example.id: example.answers for example in examples}))
    return {
        "questions": len(examples),
        "windows": len(windows),
        "same_answers": answers == by_loops,
        "vectorised": fast,
        "loops": slow,
        "scoring": scoring,
    }


def answers_by_loops(examples: list[Example], batches: list, n_best: int, longest: int) -> dict[str, str]:
    """The rule of `evaluation.spans` as it reads. A start and an end are scored in float32, as there."""
    import numpy as np

    best: dict[int, tuple] = {}
    for columns, starts, ends in batches:
        for row, example in enumerate(columns["example"]):
            window = {name: column[row] for name, column in columns.items()}
            start_logits, end_logits = (np.float32(logits[row].numpy()) for logits in (starts, ends))
            begin = window["context_begin"]
            found = []
            for start in top(start_logits.tolist(), window["own_begin"], window["own_end"], n_best):
                for end in top(end_logits.tolist(), begin, window["context_end"], n_best):
                    if start <= end < start + longest:
                        total = float(start_logits[start] + end_logits[end])
                        found.append((-total, window["offset_start"][start - begin], window["offset_end"][end - begin]))
            best[example] = min([best.get(example, (math.inf, 0, 0)), *found])
    return {examples[row].id: examples[row].context[begin:end].strip() for row, (_, begin, end) in best.items()}


def top(logits: list[float], begin: int, end: int, count: int) -> list[int]:
    return sorted(range(begin, end), key=lambda t: (-logits[t], t))[:count]


def show(figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    made, found = figures["preparation"], figures["decoding"]
    table = Table("", "seconds", "CPU seconds", "x baseline", title=f"{figures['model']}, {figures['data']}")

    def line(name: str, figure: Figures, baseline: Figures | None = None) -> None:
        ratio = f"{figure['seconds'] / baseline['seconds']:.3g}" if baseline else ""
        table.add_row(name, f"{figure['seconds']:.2f}", f"{figure['cpu_seconds']:.2f}", ratio)

    line(f"read {made['questions']:,} questions, {made['contexts']:,} contexts", made["reading"])
    line("baseline: the bare tokenizer", made["bare_tokenizer"])
    line(f"baseline: the usual call on pairs (of one in {PAIRS}, times {PAIRS})", made["usual_pairs"])
    line("windows, against the bare tokenizer", made["building"], made["bare_tokenizer"])
    line("windows, against the usual call", made["building"], made["usual_pairs"])
    line("second start, reading included", made["second_start"])
    line(f"baseline: n-best by loops, {found['questions']:,} questions", found["loops"])
    line("decoding", found["vectorised"], found["loops"])
    line("scoring", found["scoring"])
    console = Console(highlight=False, width=110)
    console.print(table)
    console.print(f"peak memory while windows were made: {made['peak_memory_growth_bytes'] / 2**20:,.0f} MiB more")


if __name__ == "__main__":
    main(bench)
