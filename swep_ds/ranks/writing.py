"""Writing files: if it fails on any rank, all ranks end with one line that says why; and where all ranks can write."""

import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from swep_ds import ranks
from swep_ds.common.errors import InputError, RunExit, WriteFailed

SHARED_SECONDS = 5.0  # until a file that another node has written must be visible
T = TypeVar("T")


def write_on_all_ranks(step: Callable[[], T] | None, path: Path) -> T | None:
    """Runs `step`, which writes `path` or files below it, on the ranks that have one. Raises on every rank what a step
    raised, as WriteFailed if it met a full disk, an unwritable folder or the like. Collective."""
    value = None
    fault = None
    try:
        if step is not None:
            value = step()
    except RunExit as error:
        fault = error
    except (OSError, SafetensorError) as error:
        file = getattr(error, "filename", None) or path
        why = " ".join((getattr(error, "strerror", None) or str(error)).split())
        where = f"on rank {ranks.rank()}, host {socket.gethostname()}"
        fault = WriteFailed(f"cannot write {file}: {why} ({where}): make room or change permissions, and start again")
    for other in ranks.gather(fault):
        if other is not None:
            raise other
    return value


def write_on_rank0(step: Callable[[], T], path: Path) -> T | None:
    """`write_on_all_ranks` with a step on rank 0 only. Returns its value there, None on the other ranks."""
    return write_on_all_ranks(step if ranks.is_main() else None, path)


def check_shared(folder: Path) -> None:
    """Raises InputError on every rank if one cannot write its parts of checkpoints into `folder`, or does not see those
    of rank 0.

    Collective. Every rank writes a file and looks for rank 0's; all files and new folders are removed again.
    """
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    token = ranks.gather(secrets.token_hex(8))[0]
    rank_0_file = folder / f".preflight-{token}-0"
    this_file = folder / f".preflight-{token}-{ranks.rank()}"
    fault = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        this_file.touch()
    except OSError as error:
        fault = f"not writable ({error.strerror})"
    rank_0_writes = ranks.gather(fault)[0] is None
    deadline = time.monotonic() + SHARED_SECONDS
    while rank_0_writes and fault is None and not rank_0_file.exists():
        if time.monotonic() > deadline:
            fault = "not shared (a file that rank 0 wrote there cannot be seen)"
        time.sleep(0.05)
    ranks.gather(None)  # all have looked
    with suppress(OSError):  # the folder is not writable, or another rank's file is still there
        this_file.unlink(missing_ok=True)
        for path in new_folders:
            path.rmdir()
    for rank, other in enumerate(ranks.gather(fault)):
        if other is not None:
            raise InputError(
                f"--output_dir {folder}: {other} on rank {rank}, host {ranks.host(rank)}: name a folder on a file "
                "system that all nodes share"
            )
