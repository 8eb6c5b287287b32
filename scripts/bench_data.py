"""Times what happens around the model: preparing training data, decoding and scoring answers.

    python scripts/bench_data.py --data new_wiki_v1.0.json.gz --model ENCODER
    python scripts/bench_data.py --data FILE --model NAME --questions 88000 --answers 10000 --json FILE

The questions are those of --data over and over, each round with a number behind every question and context, so that
all are different texts. Baselines, in the same run on the same cores: the bare tokenizer on the same texts, each once,
with the contexts' offsets; transformers' usual call on pairs of question and context; the n-best rule of
`evaluation.spans` as loops over every pair, once as transformers' question-answering example goes about it, with a
record for each and probabilities, once for the best answer alone. Exit codes as scripts/train.py; 1 where the loops
give other answers.
"""

import dataclasses
import itertools
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from swep_ds.cli import Parser, main
from swep_ds.data.quickstart import SOURCE
from swep_ds.data.readers import Example, read_examples
from swep_ds.errors import InputError
from swep_ds.files import check_output, path_of, write_atomically

PAIRS = 10  # the usual call is timed on one question in so many
BATCH = 32  # windows, as eval.batch_size has it
Figures = dict[str, Any]


def bench() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--data", default=f"quickstart:{SOURCE}", help="a source as of data.train")
    parser.add_argument("--model", default="quickstart:encoder", help="whose tokenizer it is")
    parser.add_argument("--questions", type=int, default=88_000, help="to prepare (default: 88000, SQuAD's)")
    parser.add_argument("--answers", type=int, default=10_000, help="questions to decode (default: 10000)")
    parser.add_argument("--json", type=path_of("--json"), help="also write the figures here")
    arguments = parser.parse_args()
    if min(arguments.questions, arguments.answers) < 1:
        raise InputError("--questions and --answers must be at least 1")
    check_output("--json", arguments.json)
    import torch

    from swep_ds.models.hub import load_tokenizer

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
        write_atomically(arguments.json, json.dumps(figures, indent=2) + "\n")
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
    file.write_text(json.dumps({"data": [{"title": "all", "paragraphs": paragraphs}]}), encoding="utf-8")


def timed(work: Callable[[], Any]) -> tuple[Any, Figures]:
    """What `work` returns, and its seconds by the clock and of all cores."""
    began, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}


def peak_memory() -> int:
    """Bytes; `reset_peak_memory` begins anew."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def reset_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def preparation(examples: list[Example], tokenizer, folder: Path) -> Figures:
    """From a SQuAD file to training windows; again from the cache; and the baselines."""
    from swep_ds.data.features import WindowSettings, build_features

    settings = WindowSettings()
    write_squad(examples, folder / "train.json")
    contexts, questions = list(dict.fromkeys(e.context for e in examples)), [e.question for e in examples]

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
        for at in range(0, len(contexts), 1000):
            for encoding in backend.encode_batch(contexts[at : at + 1000], add_special_tokens=False):
                _ = encoding.ids, encoding.offsets
        for at in range(0, len(questions), 1000):
            for encoding in backend.encode_batch_fast(questions[at : at + 1000], add_special_tokens=False):
                _ = encoding.ids

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
        "contexts": len(contexts),
        "windows": len(features.dataset),
        "reading": reading,
        "building": building,
        "peak_memory_growth_bytes": growth,
        "second_start": again,
        "bare_tokenizer": tokenising,
        "usual_pairs": {name: value * PAIRS for name, value in pairing.items()},
    }


def decoding(examples: list[Example], tokenizer, folder: Path) -> Figures:
    """Decoding and scoring of logits like a trained model's, vectorised and by loops; each reads what it needs."""
    import numpy as np

    from swep_ds.data.features import WindowSettings, build_features
    from swep_ds.evaluation.predict import read_columns
    from swep_ds.evaluation.scores import score
    from swep_ds.evaluation.spans import SpanDecoder, SpanSettings

    settings = SpanSettings()
    windows = build_features(examples, tokenizer, WindowSettings(), training=False, cache_dir=folder / "cache").dataset
    order = np.argsort(-np.asarray(windows["length"][:]), kind="stable")
    rng = np.random.default_rng(0)
    batches = [
        (rows, *trained_logits(examples, windows[rows.tolist()], rng))
        for rows in np.split(order, range(BATCH, len(order), BATCH))
    ]
    spans = ("offset_start", "offset_end", "context_begin", "context_end", "own_begin", "own_end")
    windows = windows.select_columns(["example", *spans])
    stored = windows.with_format("arrow")

    def vectorised(best_only: bool) -> SpanDecoder:
        decoder = SpanDecoder(examples, settings, best_only=best_only)
        for rows, starts, ends in batches:
            decoder.add(read_columns(stored, rows), starts, ends)
        return decoder

    def by_loops(answers_of: Callable) -> dict[str, str]:
        read = ((windows[rows.tolist()], starts.numpy(), ends.numpy()) for rows, starts, ends in batches)
        return answers_of(examples, allowed_pairs(read, settings.n_best, settings.max_answer_tokens))

    answers, fast = timed(lambda: vectorised(best_only=True).answers())  # as evaluation does
    _, with_all = timed(lambda: vectorised(best_only=False).n_best())
    usual, records = timed(lambda: by_loops(partial(answers_of_records, n_best=settings.n_best)))
    best, tuples = timed(lambda: by_loops(answers_of_tuples))
    scores, scoring = timed(lambda: score(answers, {example.id: example.answers for example in examples}))
    return {
        "questions": len(examples),
        "windows": len(windows),
        "exact_match": scores["exact_match"],
        "same_answers": answers == usual == best,
        "vectorised": fast,
        "vectorised_n_best": with_all,
        "loops_with_records": records,
        "loops_with_tuples": tuples,
        "scoring": scoring,
    }


def trained_logits(examples: list[Example], columns: dict[str, list], rng) -> tuple:
    """Start and end logits [B, T] like a trained model's: little noise, and a bump around the answer's two ends.

    Where a window does not hold the answer, around those of some other words, and lower.
    """
    import numpy as np
    import torch

    positions = np.arange(max(columns["length"]))
    logits = rng.normal(-8, 1, (2, len(columns["length"]), len(positions)))
    for row, example in enumerate(columns["example"]):
        begin, end = examples[example].span
        context_begin, size = columns["context_begin"][row], len(columns["offset_start"][row])
        touched = (np.array(columns["offset_end"][row]) > begin) & (np.array(columns["offset_start"][row]) < end)
        [inside], height = touched.nonzero(), 14
        if len(inside) == 0:
            first = rng.integers(size)
            inside, height = np.arange(first, min(first + 3, size)), 7
        for kind, peak in enumerate(context_begin + inside[[0, -1]]):
            logits[kind, row] += height * np.exp(-np.abs(positions - peak) / 4)
    return tuple(torch.from_numpy(logits.astype(np.float32)))


def allowed_pairs(batches: Iterable[tuple], n_best: int, longest: int) -> Iterator[tuple]:
    """The rule of `evaluation.spans` as it reads: of every allowed pair its example, characters and logits."""
    for columns, starts, ends in batches:
        for row, example in enumerate(columns["example"]):
            start_logits, end_logits = starts[row], ends[row]
            offset_start, offset_end = columns["offset_start"][row], columns["offset_end"][row]
            begin = columns["context_begin"][row]
            best_ends = top(end_logits, begin, columns["context_end"][row], n_best)
            for start in top(start_logits, columns["own_begin"][row], columns["own_end"][row], n_best):
                for end in best_ends:
                    if start <= end < start + longest:
                        spans = offset_start[start - begin], offset_end[end - begin]
                        yield example, *spans, start_logits[start], end_logits[end]


def answers_of_records(examples: list[Example], found: Iterable[tuple], n_best: int) -> dict[str, str]:
    """As transformers' example goes about it: a record for every pair, the n best with texts and probabilities."""
    import numpy as np

    records: dict[int, list[dict]] = defaultdict(list)
    for example, begin, end, start_logit, end_logit in found:
        score = start_logit + end_logit  # in float32, as there
        logits = {"start_logit": start_logit, "end_logit": end_logit}
        records[example].append({"offsets": (begin, end), "score": score, **logits})
    answers = dict.fromkeys((example.id for example in examples), "")
    for row, some in records.items():
        best = sorted(some, key=lambda one: (-one["score"], one["offsets"]))[:n_best]
        weights = np.exp([one["score"] - best[0]["score"] for one in best])
        for one, weight in zip(best, weights / weights.sum(), strict=True):
            begin, end = one["offsets"]
            one |= {"text": examples[row].context[begin:end].strip(), "probability": weight}
        answers[examples[row].id] = best[0]["text"]
    return answers


def answers_of_tuples(examples: list[Example], found: Iterable[tuple]) -> dict[str, str]:
    """With as little as loops can do for the best answer alone."""
    best: dict[int, tuple] = {}
    for example, begin, end, start_logit, end_logit in found:
        one = (-float(start_logit + end_logit), begin, end)
        if example not in best or one < best[example]:
            best[example] = one
    answers = dict.fromkeys((example.id for example in examples), "")
    for row, (_, begin, end) in best.items():
        answers[examples[row].id] = examples[row].context[begin:end].strip()
    return answers


def top(logits, begin: int, end: int, count: int) -> list[int]:
    """Positions in [begin, end) of the largest logits, best first; of equal ones the first."""
    return (begin + (-logits[begin:end]).argsort(kind="stable")[:count]).tolist()


def show(figures: Figures) -> None:
    from rich.table import Table

    from swep_ds.console import Console

    made, found = figures["preparation"], figures["decoding"]
    of = f"{found['questions']:,} questions"
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
    line(f"baseline: {of}, n best by loops with records", found["loops_with_records"])
    line("baseline: the best answer by tight loops", found["loops_with_tuples"])
    line(f"decoding (exact match {found['exact_match']:.1f})", found["vectorised"], found["loops_with_records"])
    line("the n best with probabilities", found["vectorised_n_best"], found["loops_with_records"])
    line("decoding, against the tight loops", found["vectorised"], found["loops_with_tuples"])
    line("scoring", found["scoring"])
    console = Console(width=110)
    console.print(table)
    console.print(f"peak memory while windows were made: {made['peak_memory_growth_bytes'] / 2**20:,.0f} MiB more")


if __name__ == "__main__":
    main(bench)
