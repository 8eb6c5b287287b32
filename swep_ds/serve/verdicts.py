"""People's verdicts on answers: a file that is training data as it is."""

import json
import logging
import os
import secrets
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import check_output, write_atomically
from swep_ds.data.answers import is_blank

log = logging.getLogger(__name__)
KEYS = {"id", "question", "title", "context", "answers", "is_impossible", "time"}  # of every row
BEGIN = b'{"id": "'  # of every line


def row_of(question: str, title: str, context: str, span: tuple[int, int] | None, said: dict | None) -> dict[str, Any]:
    """A verdict: characters [start, end) of the context answer the question; None = it does not say. `title` names the
    context's text. `said` is what the model said: its answer, with the start and end in the context. Raises InputError:
    the context has no words there."""
    answers = {"text": [], "answer_start": []}
    if span:
        start, end = span
        if end > len(context) or is_blank(context[start:end]):
            raise InputError(f"characters {start} to {end}: the text has no words there: mark words of it")
        answers = {"text": [context[start:end]], "answer_start": [start]}
    row = {"question": question, "title": title, "context": context, "answers": answers, "is_impossible": not span}
    if said:
        row |= {"said": said, "right": said["answer"] == "" if span is None else (said["start"], said["end"]) == span}
    return row | {"time": datetime.now(timezone.utc).isoformat(timespec="seconds")}


class Verdicts:
    """The rows of a file of JSON lines, by id, in their order. A row is on disk when `add` returns.

    What a process that was killed has left of a line, which it did not call saved, is removed. Raises InputError: the
    file cannot be written, holds something else, or another process adds to it.
    """

    def __init__(self, path: Path):
        check_output("--output", path)
        self.path = path = path.resolve()  # what a link leads to
        self.rows: dict[str, dict[str, Any]] = {}
        self._change = threading.Lock()
        self._alone = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
        with as_input_error(f"--output {path}: cannot be written", "name another file"):
            try:
                self._alone.acquire()
            except Timeout:
                raise InputError(
                    f"--output {path}: another `swep-ds serve` adds to it: stop that one, or name another file"
                ) from None
            self._file = path.open("ab", buffering=0)
            self._read()

    def _read(self) -> None:
        *lines, last = self.path.read_bytes().split(b"\n")
        torn = b""
        if last and _row(last) is None and last.startswith(BEGIN[: len(last)]):
            torn = last
        elif last:  # an editor has removed the end of the line; or a file of something else
            lines.append(last)
        for number, line in enumerate(lines, 1):
            row = _row(line)
            if row is None:
                raise InputError(
                    f"--output {self.path}: line {number} is no verdict: correct or remove it, or name another file"
                )
            self.rows[row["id"]] = row
        if last and not torn:
            self._file.write(b"\n")
        if torn:
            log.warning("%s: what follows its last whole line was never saved as a verdict, and is removed", self.path)
            os.truncate(self.path, self.path.stat().st_size - len(torn))

    def add(self, row: dict[str, Any], asked: str | None = None) -> str:
        """Saves a row of `row_of`, and returns its id, which begins with that of the question that was `asked`, if it
        has one. Raises InputError: it cannot be written; nothing of it is."""
        with self._change, as_input_error(f"{self.path}: the verdict is not saved", "make room there"):
            id_ = secrets.token_hex(8) if asked is None else asked
            if id_ in self.rows:  # of another person
                id_ = f"{id_} {secrets.token_hex(8)}"
            row = {"id": id_, **row}
            line = _line(row)
            descriptor = self._file.fileno()
            if not self.path.exists() or not os.path.samestat(os.fstat(descriptor), self.path.stat()):
                raise InputError(f"{self.path}: is not the file that was opened: start the server again")
            size = os.fstat(descriptor).st_size
            try:
                written = self._file.write(line)
                if written < len(line):
                    raise OSError(f"the disk took {written} of {len(line)} bytes")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            self.rows[id_] = row
        return id_

    def undo(self, id_: str) -> None:
        """Removes a row. Raises InputError: there is none with this id, or the file cannot be written."""
        with self._change, as_input_error(f"{self.path}: the verdict is not removed", "make room there"):
            if id_ not in self.rows:
                raise InputError("this verdict was removed before")
            rows = {key: row for key, row in self.rows.items() if key != id_}
            write_atomically(self.path, b"".join(map(_line, rows.values())))
            former, self._file = self._file, self.path.open("ab", buffering=0)
            former.close()
            self.rows = rows


def _row(line: bytes) -> dict[str, Any] | None:
    """The verdict that a line holds, if it does."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.keys() >= KEYS else None


def _line(row: dict[str, Any]) -> bytes:
    """JSON, where bytes of a file's name that are no characters are escapes."""
    return f"{json.dumps(row, ensure_ascii=False)}\n".encode(errors="backslashreplace")
