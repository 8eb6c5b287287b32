"""Files that users name, files that processes share, and those that come with this package."""

import fcntl
import gzip
import hashlib
import io
import json
import logging
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from xxhash import xxh3_64, xxh3_64_hexdigest

from swep_ds.common.errors import InputError, as_input_error

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).resolve().parents[1]
DEFAULT_DS_CONFIG = "zero1"  # where the user names none; ds_configs/README.md says why


def read_text(path: Path, what: str | None = None) -> str:
    """The text of a UTF-8 file, without a byte-order mark. `what` is how the user named it, such as "--ds_config
    zero2.json". Raises InputError: no such file, or not UTF-8."""
    if not path.is_file():
        raise InputError(f"{what or path}: no such file")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what or path}: is not UTF-8 text (byte {error.start}): save it as UTF-8") from None


def read_json(path: Path, what: str | None = None, *, unique_keys: bool = True) -> Any:
    """The value of a JSON file. Without `unique_keys` it is three times as fast, and the last of repeated keys counts.
    Raises InputError: as `read_text`; not JSON, or a repeated key."""
    what = what or str(path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            key = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise InputError(f"{what}: the key {key!r} is given twice: keep one")
        return mapping

    try:
        return json.loads(read_text(path, what), object_pairs_hook=unique if unique_keys else None)
    except json.JSONDecodeError as error:
        raise InputError(f"{what}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without those that have no `update`; none if there is no file. A line that a killed
    run has cut short ends it."""
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        if "update" in line:
            lines.append(line)
    return lines


def user_path(given: str | os.PathLike) -> Path:
    """A path that a user gave, with `~` expanded."""
    return Path(given).expanduser()


def public_names(sources: Iterable[str]) -> dict[str, str]:
    """By source of data or models, the name that a page for other people gives it: of a local path only its last parts,
    as few as tell the sources apart. A hub id stays what it is."""
    parts = {}
    for source in sources:
        parts[source] = [source]
        if "/" in source and hub_name(source) is None:
            parts[source] = [part for part in source.split("/") if part.strip(".~")] or ["a local folder"]
    different = len({tuple(path) for path in parts.values()})
    shown = 1
    while len({tuple(path[-shown:]) for path in parts.values()}) < different:
        shown += 1
    return {source: "/".join(path[-shown:]) for source, path in parts.items()}


def public_name(source: str) -> str:
    return public_names([source])[source]


def hub_name(source: str) -> str | None:
    """OWNER/NAME of a source `OWNER/NAME[:config][@split]`; None for a local path and for every other source."""
    match = re.match(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:[:@].*)?$", source)
    if match is None or Path(match[1]).exists():
        return None
    return match[1]


def check_hub(repository: str, file: str, label: str, kind: str | None = None) -> None:
    """Raises InputError if the hub cannot be reached to get a file that is not in the cache. Hugging Face's libraries
    would ask for minutes; all other faults pass, because the libraries name them. `label` is how the user named the
    repository, and `kind` "dataset", or None for a model."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    is_answer = (HFValidationError, HfHubHTTPError)
    what = f"{label}: no such file or folder, and the hub {constants.ENDPOINT} cannot be reached"
    fix = "name one that exists, or set HF_HUB_OFFLINE=1 to use what was fetched before"
    with suppress(*is_answer):
        if constants.is_offline_mode() or try_to_load_from_cache(repository, file, repo_type=kind):
            return
        with as_input_error(what, fix, but=is_answer):
            get_hf_file_metadata(hf_hub_url(repository, file, repo_type=kind), timeout=10.0)


def shipped(folder: str) -> Path:
    """The folder `kernels`, `ds_configs` or `scripts`: beside `swep_ds/` in a checkout, inside it in an installation
    (`setup.py`)."""
    return next(path for path in (PACKAGE / folder, PACKAGE.parent / folder) if path.is_dir())


def ds_config_path(name_or_path: str) -> Path:
    """The file of a shipped ds_config, such as "zero1", or the path that the user gave. Raises InputError: no such file
    (lists the shipped ones)."""
    files = {file.stem: file for file in sorted(shipped("ds_configs").glob("*.json"))}
    path = files.get(name_or_path) or user_path(name_or_path)
    if not path.exists():
        raise InputError(f"--ds_config {name_or_path}: no such file: give a path, or a shipped one: {', '.join(files)}")
    return path


def check_output(option: str, path: Path | None) -> None:
    """Raises InputError if the file that `option` names cannot be written; call it before the work."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}: make it first")
    if path.exists() and not path.is_file():  # a folder; or /dev/stdout, which would be replaced by a file
        raise InputError(f"{option} {path}: is not a file: name one")
    if path.suffix.lower() in (".xlsx", ".ods"):
        raise InputError(f"{option} {path}: no workbook is written: name a .csv file, which a spreadsheet opens")
    check_output_folder(option, path.parent)


def check_output_folder(option: str, path: Path | None) -> None:
    """Raises InputError if the folder that `option` names cannot be made or written to; call it before the work."""
    if path is None:
        return
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise InputError(f"{option} {path}: {existing} is not a folder: name another one")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: the folder {existing} cannot be written to: name another one")


def check_new_folder(option: str, path: Path) -> None:
    """Raises InputError unless `option` names a new or an empty folder that can be written to."""
    check_output_folder(option, path)
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{option} {path}: is not empty: name a new or empty folder")


@contextmanager
def new_model_folder(path: Path) -> Iterator[Path]:
    """A folder to write a model to, which replaces `path` as a whole if the `with` block ends without an error."""
    path = path.resolve()  # a link to another disk stays one
    unfinished = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # a killed process's
    folder = unfinished / "model"
    folder.mkdir(parents=True)
    try:
        yield folder
        for file in folder.glob("*.safetensors"):
            with suppress(OSError):  # a mount without permissions; safetensors lets only the owner read its files
                shutil.copymode(folder / "config.json", file)
        former = path.with_name(f".{path.name}.old")  # beside it, where it stays if the process is killed in between
        shutil.rmtree(former, ignore_errors=True)
        if path.exists():
            path.rename(former)
        folder.rename(path)
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_atomically(path: Path, content: str | bytes | Iterable[str]) -> None:
    """Writes a file, text in UTF-8, that is never visible half-written. After an error, also in making the pieces of
    text, the former file is still there."""
    # processes of other hosts and containers may have the same number
    temporary = path.with_name(f".{path.name}.{secrets.randbelow(10**12)}")
    if isinstance(content, str | bytes):
        content = [content]
    try:
        with temporary.open("wb") as file:
            for piece in content:
                if isinstance(piece, str):
                    piece = piece.encode()
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # else a power failure may leave the new name without its bytes
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class ChecksumWriter(io.BufferedWriter):
    """A new file and the checksum of what was written to it, from its start to its end."""

    def __init__(self, path: str | Path):
        super().__init__(io.FileIO(path, "wb"))
        self.checksum = xxh3_64()

    def write(self, data) -> int:
        self.checksum.update(data)
        return super().write(data)


def check_content(path: Path, checksum: str) -> None:
    """Raises ValueError: the file has not the checksum that `ChecksumWriter` had; OSError: it cannot be read."""
    content = xxh3_64()
    with path.open("rb") as file:  # mapped into memory, an unreadable disk would kill the process
        while block := file.read(2**20):
            content.update(block)
    if content.hexdigest() != checksum:
        raise ValueError(f"{path.name} has changed since it was written")


def sealed(text: str) -> str:
    """JSON around a JSON value: its checksum, then the value itself."""
    return f'{{"checksum": "{xxh3_64_hexdigest(text.encode())}", "value":\n{text}}}'


def read_sealed(path: Path) -> Any:
    """The value in a `sealed` file. Raises ValueError: the file has changed since it was written."""
    content = path.read_text(encoding="utf-8", errors="replace")
    text = content.partition("\n")[2][:-1]
    if content != sealed(text):
        raise ValueError(f"{path.name} has changed since it was written, or another version wrote it")
    return json.loads(text)


def is_locked(path: Path) -> bool:
    """Whether another process holds a lock (`flock`) on a file; False if there is no file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # NFS refuses an exclusive lock on a file opened to read
    except BlockingIOError:
        return True
    except OSError:  # there is no file, or it is on a file system without locks, where no run starts
        return False
    return False


def folder_bytes(folder: Path) -> int:
    """The sizes of all files in a folder and in those below it."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def content_checksum(files: Iterable[Path]) -> str:
    """The first 32 digits of the SHA-256 over files, each unpacked if it is gzip."""
    return _checksum(tuple((file, file.stat().st_mtime_ns) for file in files))


@cache  # a table of many runs asks for the same files
def _checksum(files: tuple[tuple[Path, int], ...]) -> str:
    digest = hashlib.sha256()
    for file, _ in files:
        with file.open("rb") as packed:
            content = packed
            if packed.read(2) == b"\x1f\x8b":
                content = gzip.GzipFile(fileobj=packed)
            packed.seek(0)
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]
