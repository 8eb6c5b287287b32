"""People's verdicts on answers: a file that is training data as it is."""

import glob
import json
import logging
import os
import secrets
import threading
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import check_output, write_atomically
from swep_ds.data.answers import is_blank

log = logging.getLogger(__name__)
BEGIN = b'{"id": "'  # every line has these


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
        row |= {"said": said, "right": (said["start"], said["end"]) == span or (not span and not said["answer"])}
    return row | {"time": datetime.now(timezone.utc).isoformat(timespec="seconds")}


class Verdicts:
    """The rows of a file of JSON lines, by id, in their order. A row is on disk when `add` returns; the first one makes
    the file. A change replaces `rows`, so that another thread that reads it keeps the earlier ones.

    What a process that was killed has left of a line, which it did not call saved, is removed. Raises InputError: the
    file cannot be written, holds something else, or another process adds to it.
    """

    def __init__(self, path: Path):
        check_output("--output", path)
        self.path = path = path.resolve()  # what a link leads to
        self.rows: dict[str, dict[str, Any]] = {}
        self._known = self._state()  # as this process left the file
        self._change = threading.Lock()
        self._alone = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
        with as_input_error(f"--output {path}: cannot be written", "name another file"):
            try:
                self._alone.acquire()
            except Timeout:
                raise InputError(
                    f"--output {path}: another `swep-ds serve` adds to it: stop that one, or name another file"
                ) from None
            for left in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*"):  # by an `undo` that was killed
                left.unlink()
            if path.exists():
                self._read()

    def _read(self) -> None:
        content = self.path.read_bytes()
        last = content[content.rfind(b"\n") + 1 :]
        torn = last.startswith(BEGIN[: len(last)]) and _row(last) is None
        if torn:
            content = content.removesuffix(last)
        for number, line in enumerate(content.splitlines(), 1):
            row = _row(line)
            fix = "correct or remove it, or name another file"
            if row is None:
                raise InputError(f"--output {self.path}: line {number} is no verdict: {fix}")
            if row["id"] in self.rows:
                raise InputError(f"--output {self.path}: line {number} has the id of an earlier line: {fix}")
            self.rows[row["id"]] = row
        if torn and last:
            log.warning("%s: what follows its last whole line was never saved as a verdict, and is removed", self.path)
            os.truncate(self.path, len(content))
            self._known = self._state()
        if torn:
            self._append(b"")  # shows whether the file can be written
        else:
            self._append(b"\n")  # an editor has removed it

    def _state(self) -> tuple[int, ...] | None:
        """The file's inode, size and time of change; None = there is none."""
        if not self.path.exists():
            return None
        state = self.path.stat()
        return state.st_ino, state.st_size, state.st_mtime_ns

    def _check_known(self) -> None:
        if self._state() != self._known:
            raise InputError(f"{self.path}: another program has changed it: start the server again")

    def _append(self, content: bytes) -> None:
        """Raises OSError: it cannot be written; nothing of it is. InputError: another program has changed the file."""
        self._check_known()
        try:
            with self.path.open("ab", buffering=0) as file:
                size = file.tell()
                try:
                    written = file.write(content)
                    if written < len(content):
                        raise OSError(f"the disk took {written} of {len(content)} bytes")
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    raise
        finally:
            self._known = self._state()

    def add(self, row: dict[str, Any]) -> str:
        """Saves a row of `row_of`, and returns its id, which begins with that of the question that was `asked`, if it
        has one. Raises InputError: it cannot be written; nothing of it is."""
        with self._change, as_input_error(f"{self.path}: the verdict is not saved", "make room there"):
            id_ = row.get("asked") or secrets.token_hex(8)
            if any(id_ in (other["id"], other.get("asked")) for other in self.rows.values()):  # another person's
                id_ = f"{id_} {secrets.token_hex(8)}"
            row = {"id": id_, **row}
            self._append(_line(row))
            self.rows = self.rows | {id_: row}
        return id_

    def latest(self, question: str | None = None) -> list[dict[str, Any]]:
        """All verdicts, or those on a question, in any case and with or without its question mark; the latest first,
        with the fields of `schema.Given`."""
        given = []
        folded = question and _folded(question)
        for row in reversed(self.rows.values()):
            if question is None or _folded(row["question"]) == folded:
                words = ", ".join(row["answers"]["text"]) or None
                given.append({"id": row["id"], "question": row["question"], "words": words, "time": row["time"]})
        return given

    def undo(self, id_: str) -> None:
        """Removes a row. Raises InputError: there is none with this id, or the file cannot be written."""
        with self._change, as_input_error(f"{self.path}: the verdict is not removed", "make room there"):
            if id_ not in self.rows:
                raise InputError("this verdict was removed before")
            self._check_known()
            rows = {key: row for key, row in self.rows.items() if key != id_}
            write_atomically(self.path, b"".join(map(_line, rows.values())))
            self._known = self._state()
            self.rows = rows


@lru_cache(2**15)  # each question that is asked is compared with all that were judged
def _folded(question: str) -> str:
    return " ".join(question.casefold().split()).rstrip(" ?!.…？！。؟")


def _row(line: bytes) -> dict[str, Any] | None:
    """The verdict that a line holds, if it does."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    match row:
        case {
            "id": str(),
            "question": str(),
            "title": str(),
            "context": str(),
            "answers": {"text": [*texts], "answer_start": [*starts]},
            "is_impossible": bool(),
            "time": str(),
        } if len(texts) == len(starts) and all(isinstance(text, str) for text in texts):
            return row
    return None


def _line(row: dict[str, Any]) -> bytes:
    """JSON, where bytes of a file's name that are no characters are escapes."""
    return f"{json.dumps(row, ensure_ascii=False)}\n".encode(errors="backslashreplace")
