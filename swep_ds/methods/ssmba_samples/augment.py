"""SSMBA as data: more training questions from a masked language model (Ng, Cho, Ghassemi, EMNLP 2020).

The unit of work is a chunk of consecutive questions, whose windows are batched among themselves. So a chunk does not
depend on ranks, other chunks or a restart, not even through the rounding of a padded batch.
"""

import json
import math
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from swep_ds import ranks
from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import InputError
from swep_ds.data.chunks import Chunks, digest
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples, settle_repeated
from swep_ds.methods.ssmba_samples.reconstruct import AugmentSettings, Reconstructor
from swep_ds.models.hub import model_checksum
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0

QUESTIONS_IN_A_CHUNK = 32


def augment(source: str, model_name: str, output: Path, settings: AugmentSettings) -> None:
    """Writes samples of the questions of `source` to `output`, a new file on a file system that all ranks share.

    Collective. Started again with the same arguments, on any number of ranks, it resumes with the missing chunks.

    Args:
        model_name: hub id or local folder of a masked language model.

    Raises:
        InputError: bad data or model, `output` exists, or its chunks have other settings.
    """
    console = Console(quiet=not ranks.is_main())
    examples = ranks.on_all_ranks(lambda: read_answerable(source, settings.repeated_answers, console))
    chunks = ranks.on_all_ranks(lambda: Chunks(output, math.ceil(len(examples) / QUESTIONS_IN_A_CHUNK)))
    reconstruct = ranks.on_all_ranks(lambda: Reconstructor(model_name, settings, ranks.device()))
    setup = {"model": model_name, "files": model_checksum(model_name, "--model")}
    setup |= {**asdict(settings), "data": source, "questions": digest(examples)}
    missing = ranks.from_rank0(lambda: chunks.take(setup))
    done = chunks.count - len(missing)
    if done:
        console.print(f"resuming: {done} of {chunks.count} chunks are done")
    with Progress(console, "chunks", chunks.count, done) as progress:
        for at in range(0, len(missing), ranks.world_size()):
            group = missing[at : at + ranks.world_size()]
            write = None
            if ranks.rank() < len(group):
                chunk = group[ranks.rank()]
                begin = chunk * QUESTIONS_IN_A_CHUNK
                articles, counts = reconstruct(examples[begin : begin + QUESTIONS_IN_A_CHUNK])
                write = partial(chunks.write, chunk, {"articles": articles, "counts": counts})
            write_on_all_ranks(write, output)  # in step: no rank waits for another longer than one chunk takes
            progress.update(done + at + len(group))
    counts = write_on_rank0(lambda: _merge(chunks, setup), output)
    if counts is not None:
        console.print(
            f"kept {counts['kept']} samples of {len(examples)} questions, dropped {counts['dropped']} that came back as"
            f" the original or as another sample, and {counts['lost']} that lost their answer",
            f"{counts['corrupted'] / max(counts['tokens'], 1):.1%} of the tokens were corrupted, "
            f"{counts['changed'] / max(counts['corrupted'], 1):.1%} of those came back as another token",
            f"written to {output}",
            sep="\n",
        )


def read_answerable(source: str, repeated: str, console: Console) -> list[Example]:
    """The questions that have an answer: a corrupted text may begin to answer a question, or cease to, and only an
    answer that is kept says which."""
    examples = read_examples(source, training=True, unanswerable=True, repeated=repeated != "error")
    examples, count = settle_repeated(examples, repeated)
    if count:
        console.print(
            f"{count} questions have an answer that occurs several times in its context (--repeated_answers {repeated})"
        )
    answerable = [example for example in examples if example.answers]
    if not answerable:
        raise InputError(f"--data: {source}: no question has an answer: name other data")
    return answerable


def _merge(chunks: Chunks, setup: dict[str, Any]) -> Counter:
    """Joins all chunks to the output and removes their folder; returns the sums of the counts."""
    counts: Counter = Counter()
    articles = []
    for number in range(chunks.count):
        part = chunks.read(number)
        counts.update(part["counts"])
        articles += part["articles"]
    document = {"version": "1.1", "data": articles, "ssmba": {**setup, **counts}}
    chunks.finish([json.dumps(document, ensure_ascii=False)])
    return counts
