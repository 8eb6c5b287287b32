"""SSMBA as data: more training questions from a masked language model (Ng, Cho, Ghassemi, EMNLP 2020).

Every question gives a number of samples: question and context with a share of their tokens corrupted and reconstructed
(`reconstruct.py`), and the same answer at its new offset. A sample that lost its answer is dropped. The result is a
SQuAD v1.1 file.

The unit of work is a chunk of consecutive questions, whose windows are batched among themselves. So a chunk does not
depend on ranks, other chunks or a restart, not even through the rounding of a padded batch.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
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


def augment(source: str, model_name: str, output: Path, settings: AugmentSettings, max_examples: int | None) -> None:
    """Writes samples of the questions of `source`, or of its first `max_examples`, to `output`. Collective.

    Started again with the same arguments, on any number of ranks, it resumes with the missing chunks.

    Args:
        model_name: hub id or local folder of a masked language model.
        output: a new file, on a file system that all ranks share.

    Raises:
        InputError: bad data or model, `output` exists, or its chunks have other settings.
    """
    console = Console(quiet=not ranks.is_main())
    examples = ranks.on_all_ranks(lambda: _read(source, max_examples, settings, console))
    chunks = ranks.on_all_ranks(lambda: Chunks(output, math.ceil(len(examples) / QUESTIONS_IN_A_CHUNK)))
    reconstruct = ranks.on_all_ranks(lambda: Reconstructor(model_name, settings, ranks.device()))

    def take() -> tuple[dict[str, Any], list[int]]:
        setup = {"model": model_name, "files": model_checksum(model_name, "--model")}
        setup |= {**asdict(settings), "data": source, "questions": digest(examples)}
        return setup, chunks.take(setup)

    setup, missing = ranks.from_rank0(take)
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
        console.print(_summary(counts, len(examples)), f"written to {output}", sep="\n")


def _read(source: str, limit: int | None, settings: AugmentSettings, console: Console) -> list[Example]:
    repeated = settings.repeated_answers
    examples = read_examples(source, training=True, unanswerable=True, repeated=repeated != "error")
    examples, count = settle_repeated(examples, repeated)
    if count:
        console.print(
            f"{count} questions have an answer that occurs several times in its context (--repeated_answers {repeated})"
        )
    # a corrupted text may begin to answer a question, or cease to: only an answer that is kept says which
    answerable = [example for example in examples if example.answers]
    if not answerable:
        raise InputError(f"--data: {source}: no question has an answer: name other data")
    return answerable[:limit]


def _summary(counts: Counter, questions: int) -> str:
    dropped = counts["lost"] + counts["unchanged"] + counts["repeated"]
    return (
        f"kept {counts['kept']} of {counts['kept'] + dropped} samples of {questions} questions, dropped {dropped}: "
        f"{counts['lost']} lost their answer, {counts['unchanged']} came back as the original, {counts['repeated']} as "
        "another sample of their question\n"
        f"{counts['corrupted'] / max(counts['tokens'], 1):.1%} of the tokens were corrupted, "
        f"{counts['changed'] / max(counts['corrupted'], 1):.1%} of those came back as another token"
    )


def _merge(chunks: Chunks, setup: dict[str, Any]) -> Counter:
    """Joins all chunks to the output and removes their folder; returns the sums of the counts."""
    total: Counter = Counter()

    def document() -> Iterator[str]:
        yield '{"version": "1.1", "data": ['
        separator = "\n"
        for number in range(chunks.count):
            part = chunks.read(number)
            total.update(part["counts"])
            for article in part["articles"]:
                yield separator + json.dumps(article, ensure_ascii=False)
                separator = ",\n"
        yield f'\n], "ssmba": {json.dumps({**setup, **total}, ensure_ascii=False)}}}\n'

    chunks.finish(document())
    return total
