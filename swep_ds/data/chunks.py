"""A file that takes long to make, made in chunks: what is finished stays on disk, and the same command resumes.

The chunks are JSON files in the folder `<output>.chunks` until all are finished.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import read_json, read_sealed, sealed, write_atomically
from swep_ds.common.settings import differences
from swep_ds.data.example import Example


class Chunks:
    """The finished chunks of the file that --output names. Raises InputError: the output exists."""

    def __init__(self, output: Path, count: int):
        if output.exists():
            raise InputError(f"--output {output}: exists already: name another file, or delete it")
        self.output = output
        self.count = count
        self.folder = output.with_name(f"{output.name}.chunks")
        self._lock = FileLock(self.folder / ".lock", fallback_to_soft=False)

    def take(self, setup: dict[str, Any]) -> list[int]:
        """Locks the folder until this process ends, and returns the missing chunks. `setup` is what decides their
        content, as JSON.

        Raises InputError: another process has locked the folder, or it holds chunks of another setup.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise InputError(f"--output {self.output}: another process is writing it: name another") from None
        settings = self.folder / "settings.json"
        if settings.exists():
            if differing := differences(read_json(settings), setup):
                raise InputError(
                    f"--output {self.output}: {self.folder.name} holds chunks made with other settings ({differing}): "
                    "name another file, or delete that folder"
                )
        elif any(self.folder.glob("[!.]*")):  # `finish` would delete them
            raise InputError(f"--output {self.output}: {self.folder.name} holds files of something else: move them")
        write_atomically(settings, json.dumps(setup))
        return [number for number in range(self.count) if not self._file(number).exists()]

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    def write(self, number: int, content: Any) -> None:
        write_atomically(self._file(number), sealed(json.dumps(content)))

    def read(self, number: int) -> Any:
        with as_input_error(f"{self._file(number)}: damaged", "delete it, and start the same command again"):
            return read_sealed(self._file(number))

    def fill(
        self, setup: dict[str, Any], examples: list[Example], size: int, ask: Callable[[list[Example]], Iterable[Any]]
    ) -> int:
        """Takes the folder and writes the missing chunks, a list for each `size` examples: what `ask` makes of each, as
        JSON. Says how far it is. Returns how many examples were asked now. Raises InputError: as `take`."""
        missing = self.take(setup)
        console = Console()
        kept = min((self.count - len(missing)) * size, len(examples))
        if kept:
            console.print(f"resuming: {kept} of {len(examples)} questions are answered")
        with Progress(console, "questions", len(examples), kept) as progress:
            for chunk in missing:
                first = chunk * size
                lines = []
                for line in ask(examples[first : first + size]):
                    lines.append(line)
                    progress.update(first + len(lines))
                self.write(chunk, lines)
        return len(examples) - kept

    def lines(self) -> Iterable[Any]:
        """All that `fill` made, in the examples' order."""
        return (line for chunk in range(self.count) for line in self.read(chunk))

    def finish(self, document: Iterable[str]) -> None:
        """Writes the output, in parts that `document` makes of the chunks, and removes their folder."""
        write_atomically(self.output, document)
        self._lock.release()  # first: NFS keeps an open file, and with it the folder
        shutil.rmtree(self.folder)


def digest(examples: Sequence[Example]) -> str:
    """32 hexadecimal digits that change with any question and with their order."""
    total = hashlib.sha256()
    for example in examples:
        total.update(repr((example.id, example.question, example.context, example.span, example.article)).encode())
    return total.hexdigest()[:32]
