"""Files that other processes read or write as well."""

import fcntl
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from swep_ds.errors import InputError


def check_output(option: str, path: Path | None) -> None:
    """Raises InputError where no file can be written to the path that `option` gives; before the work, not after."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}: make it first")
    if path.exists() and not path.is_file():
        raise InputError(f"{option} {path}: is no file: name one")


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Writes a file in UTF-8, of a text or of its pieces, that is never seen half-written.

    An error on the way, of the pieces too, leaves what was there before and nothing beside it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines([text] if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())  # else a node that loses power may keep the new name with none of the bytes
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines of a run's updates, in each its number as "update"; none of no file, and nothing that is no such line.

    A run that was killed while writing may have left half a last one.
    """
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        if isinstance(line, dict) and type(line.get("update")) is int:
            lines.append(line)
    return lines


def is_locked(path: Path) -> bool:
    """Whether another process holds a lock (`flock`) on a file."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
