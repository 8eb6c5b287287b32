"""Files: given by users, shared with other processes.

Every file that somebody else wrote is opened by `open_input` and every JSON text parsed by `parse_json`, so that
whatever can be wrong with one is one line.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from swep_ds.errors import InputError, reason


def open_input(path: Path, what: str | None = None) -> BinaryIO:
    """Opens a regular file to read its bytes.

    Args:
        what: how the user named it, such as "--ds_config zero2.json"; None = the path.

    Raises:
        InputError: nothing is there, no permission, or no regular file: a folder, a pipe or a device, which may never
            end.
    """
    what = what or str(path)
    try:
        # O_NONBLOCK: opening a pipe would wait for a writer
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        raise InputError(f"{what}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{what}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(f"{what}: is no regular file: name one")
    return file


def read_bytes(path: Path, what: str | None = None) -> bytes:
    """A whole file.

    Raises:
        InputError: as `open_input`, or a fault of the disk.
    """
    with open_input(path, what) as file:
        try:
            return file.read()
        except OSError as error:
            raise InputError(f"{what or path}: cannot be read ({error.strerror})") from None


def read_text(path: Path, what: str | None = None) -> str:
    """A whole UTF-8 file; a byte-order mark at its beginning is dropped.

    Raises:
        InputError: as `read_bytes`, or no UTF-8.
    """
    try:
        return read_bytes(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what or path}: is no UTF-8 text (byte {error.start}): save it as UTF-8") from None


def read_json(path: Path, what: str | None = None, *, unique_keys: bool = True) -> Any:
    """The value that a JSON file holds.

    Raises:
        InputError: as `read_text` and `parse_json`.
    """
    return parse_json(read_text(path, what), what or str(path), unique_keys=unique_keys)


def parse_json(text: str, what: str, *, unique_keys: bool = True) -> Any:
    """The value of a JSON text.

    Args:
        unique_keys: refuses an object with a key given twice, of which Python would keep the last; False is three
            times as fast, for large data.

    Raises:
        InputError: not JSON, a key given twice, nested too deep, or a number of thousands of digits.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        raise InputError(f"{what}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except _RepeatedKey as error:
        raise InputError(f"{what}: the key {reason(error)} is given twice: keep one") from None
    except RecursionError:
        raise InputError(f"{what}: its JSON is nested too deep: flatten it") from None
    except ValueError:  # the limit of sys.set_int_max_str_digits
        raise InputError(f"{what}: its JSON holds a whole number of thousands of digits: correct it") from None


class _RepeatedKey(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        raise _RepeatedKey(next(repr(key) for key, _ in pairs if key in seen or seen.add(key)))
    return mapping


def user_path(text: str, option: str) -> Path:
    """A path that a user gave, with `~` expanded; it need not exist.

    Raises:
        InputError: an unknown user, a name longer than the system takes, a NUL in it, or a folder on the way that may
            not be entered.
    """
    try:
        path = Path(text).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{option} {text[:200]}: cannot be looked up ({reason(error)}): name another path") from None
    return path


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
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
