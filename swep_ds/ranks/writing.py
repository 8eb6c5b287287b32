"""Writing files: if it fails on any rank, all ranks end with one line that says why; and where all ranks can write."""

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from swep_ds import ranks
from swep_ds.common.errors import InputError, WriteFailed

SHARED_SECONDS = 5.0  # until a file that another node has written must be visible
T = TypeVar("T")


def write_on_all_ranks(step: Callable[[], T] | None, path: Path) -> T | None:
    """`ranks.on_all_ranks` on the ranks that have a `step`, which writes `path` or files below it. A full disk, an
    unwritable folder or the like is WriteFailed. Collective."""

    def write() -> T | None:
        try:
            return step and step()
        except (OSError, SafetensorError) as error:
            file = getattr(error, "filename", None) or path
            why = " ".join((getattr(error, "strerror", None) or str(error)).split())
            raise WriteFailed(f"cannot write {file}: {why}: make room or change permissions, and start again") from None

    return ranks.on_all_ranks(write)


def write_on_rank0(step: Callable[[], T], path: Path) -> T | None:
    """`write_on_all_ranks` with a step on rank 0 only. Returns its value there, None on the other ranks."""
    return write_on_all_ranks(step if ranks.is_main() else None, path)


def check_shared(folder: Path) -> None:
    """Raises InputError on every rank if one cannot write its parts of checkpoints into `folder`, or does not see those
    of rank 0.

    Collective. Every rank writes a file and looks for rank 0's; all files and new folders are removed again.
    """
    fix = "name a folder on a file system that all nodes share"
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    token = ranks.gather(secrets.token_hex(8))[0]
    file = folder / f".preflight-{token}-{ranks.rank()}"

    def write() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError as error:
            raise InputError(f"--output_dir {folder}: not writable ({error.strerror}): {fix}") from None

    def look() -> None:
        deadline = time.monotonic() + SHARED_SECONDS
        while not (folder / f".preflight-{token}-0").exists():
            if time.monotonic() > deadline:
                fault = "not shared (a file that rank 0 wrote there cannot be seen)"
                raise InputError(f"--output_dir {folder}: {fault}: {fix}")
            time.sleep(0.05)

    try:
        ranks.on_all_ranks(write)
        ranks.on_all_ranks(look)
    finally:
        with suppress(OSError):  # the folder is not writable, or another rank's file is still there
            file.unlink(missing_ok=True)
            for path in new_folders:
                path.rmdir()
