"""SSMBA as data: more training questions from a masked language model (Ng, Cho, Ghassemi, EMNLP 2020).

Every question gives a number of samples: question and context with a share of their tokens corrupted and reconstructed
(`swep_ds/ssmba/reconstruct.py`), and the same answer at its new offset. A sample that lost its answer is dropped. The
result is a SQuAD v1.1 file.

Notable:
- The unit of work is a chunk of consecutive questions, whose windows are batched among themselves. So a chunk does not
  depend on ranks, other chunks or a restart, not even through the rounding of a padded batch.
- Finished chunks stay in a folder beside the output until all are finished; each is written atomically.
"""

import fcntl
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from swep_ds import ranks
from swep_ds.console import Console, Progress
from swep_ds.data.cache import checksum
from swep_ds.data.readers import Example, read_examples
from swep_ds.errors import InputError, parsing
from swep_ds.files import open_lock, read_json, user_path, write_atomically
from swep_ds.models.folders import weight_files
from swep_ds.models.hub import resolve_model
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0
from swep_ds.settings import differences
from swep_ds.ssmba.reconstruct import Reconstructor, Settings

QUESTIONS_IN_A_CHUNK = 32


def augment(source: str, model_name: str, output: Path, settings: Settings, max_examples: int | None) -> None:
    """Writes samples of the questions of `source`, or of its first `max_examples`, to `output`. Collective.

    Started again with the same arguments, on any number of ranks, it resumes with the missing chunks.

    Args:
        source: training data, as `read_examples` takes it.
        model_name: hub id or local folder of a masked language model.
        output: a new file, on a file system that all ranks share.

    Raises:
        InputError: on all ranks: bad data or model, `output` exists, or its chunks have other settings.
    """
    console = Console(quiet=not ranks.is_main())
    examples = ranks.on_all_ranks(lambda: _read(source, max_examples))
    chunks = Chunks(output, math.ceil(len(examples) / QUESTIONS_IN_A_CHUNK))

    def take() -> tuple[dict[str, Any], list[int]]:
        setup = {"model": model_name, "weights": _weights(model_name)}
        setup |= {**asdict(settings), "data": source, "questions": _digest(examples)}
        return setup, chunks.take(setup)

    setup, missing = ranks.from_rank0(take)
    try:
        reconstruct = ranks.on_all_ranks(lambda: Reconstructor(model_name, examples[0], settings, ranks.device()))
    except InputError:
        if ranks.is_main():
            chunks.leave()
        raise
    write_on_rank0(lambda: chunks.begin(setup), output)
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
                write = partial(chunks.write, chunk, *reconstruct(examples[begin : begin + QUESTIONS_IN_A_CHUNK]))
            write_on_all_ranks(write, output)  # in step: no rank waits for another longer than one chunk takes
            progress.update(done + at + len(group))
    counts = write_on_rank0(lambda: chunks.merge(setup), output)
    if counts is not None:
        console.print(_summary(counts, len(examples)), f"written to {output}", sep="\n")


def _read(source: str, limit: int | None) -> list[Example]:
    try:
        examples = read_examples(source, training=True, unanswerable=True)
    except InputError as error:
        raise InputError(f"--data: {error}") from None
    # a corrupted text may begin to answer a question, or cease to: only an answer that is kept says which
    answerable = [example for example in examples if example.answers]
    if not answerable:
        raise InputError(f"--data: {source}: no question has an answer: name other data")
    return answerable[:limit]


def _digest(examples: Sequence[Example]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr((example.id, example.question, example.context, example.span, example.article)).encode())
    return digest.hexdigest()[:32]


def _weights(model_name: str) -> str | None:
    """A checksum of a local folder's weights; None for a hub id, whose name identifies them."""
    source = resolve_model(model_name, "--model")
    files = weight_files(source, f"--model {model_name}") if Path(source).is_dir() else []
    return checksum(*files)[:32] if files else None


def _summary(counts: Counter, questions: int) -> str:
    dropped = counts["lost"] + counts["unchanged"] + counts["repeated"]
    return (
        f"kept {counts['kept']} of {counts['kept'] + dropped} samples of {questions} questions, dropped {dropped}: "
        f"{counts['lost']} lost their answer, {counts['unchanged']} came back as the original, {counts['repeated']} as "
        "another sample of their question\n"
        f"{counts['corrupted'] / max(counts['tokens'], 1):.1%} of the tokens were corrupted, "
        f"{counts['changed'] / max(counts['corrupted'], 1):.1%} of those came back as another token"
    )


class Chunks:
    """The finished parts of an output, in the folder `<output>.chunks` until all are finished."""

    def __init__(self, output: Path, count: int):
        self.output, self.count = output, count
        self.folder = output.with_name(f"{output.name}.chunks")
        self.settings = self.folder / "settings.json"

    def take(self, setup: dict[str, Any]) -> list[int]:
        """Locks the folder for this process and returns the missing chunks. `begin` must precede the first `write`.

        Raises:
            InputError: the output exists or cannot be written; the folder is in use or holds chunks of another setup.
        """
        if user_path(str(self.output), "--output").exists():
            raise InputError(f"--output {self.output}: exists already: name another file, or delete it")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open_lock(self.folder / ".lock")  # held until the process ends
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"--output {self.output}: another process is writing it: name another") from None
        except OSError as error:
            raise InputError(f"--output {self.output}: cannot be written ({error.strerror}): name another") from None
        if self.settings.is_file():
            before = read_json(self.settings)
            if not isinstance(before, dict):
                raise InputError(f"--output {self.output}: {self.settings} is damaged: delete {self.folder.name}")
            if differing := differences(before, setup):
                raise InputError(
                    f"--output {self.output}: {self.folder.name} holds parts made with other settings ({differing}): "
                    "name another file, or delete that folder"
                )
        elif any(self.folder.glob("[!.]*")):
            raise InputError(f"--output {self.output}: {self.folder.name} holds files of something else: delete it")
        return [number for number in range(self.count) if not self._part(number).exists()]

    def begin(self, setup: dict[str, Any]) -> None:
        """Records that the folder holds parts of this setup."""
        write_atomically(self.settings, json.dumps(setup))

    def leave(self) -> None:
        """Unlocks the folder, and deletes it if nothing has begun there."""
        if not self.settings.exists():
            (self.folder / ".lock").unlink(missing_ok=True)
            self.folder.rmdir()
        self._lock.close()

    def write(self, number: int, articles: list[dict[str, Any]], counts: Counter) -> None:
        write_atomically(self._part(number), json.dumps({"articles": articles, "counts": counts}, ensure_ascii=False))

    def merge(self, setup: dict[str, Any]) -> Counter:
        """Joins all chunks to the output and removes the folder; returns the sums of the counts."""
        total: Counter = Counter()

        def document() -> Iterator[str]:
            yield '{"version": "1.1", "data": ['
            separator = "\n"
            for number in range(self.count):
                part = read_json(self._part(number))
                with parsing(f"--output {self.output}: {self._part(number)} is damaged", "delete it and start again"):
                    total.update(part["counts"])
                    articles = [json.dumps(article, ensure_ascii=False) for article in part["articles"]]
                for article in articles:
                    yield separator + article
                    separator = ",\n"
            yield f'\n], "ssmba": {json.dumps({**setup, **total}, ensure_ascii=False)}}}\n'

        write_atomically(self.output, document())
        for file in sorted(self.folder.iterdir(), key=lambda file: file == self.settings):
            file.unlink()  # the settings last: they identify the others
        self.folder.rmdir()
        return total

    def _part(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"
