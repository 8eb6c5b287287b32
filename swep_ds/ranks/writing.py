"""Writing files: if it fails on any rank, all ranks end with one line that says why."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from swep_ds import ranks
from swep_ds.errors import RunExit, WriteFailed

T = TypeVar("T")


def write_on_all_ranks(step: Callable[[], T] | None, path: Path) -> T | None:
    """Runs `step`, which writes `path` or files below it, on the ranks that have one. Collective.

    Raises:
        WriteFailed: on all ranks, if a step met a full disk, an unwritable folder or the like.
        RunExit: any other that a step raised, on all ranks as well.
    """
    value, fault = None, None
    try:
        if step is not None:
            value = step()
    except RunExit as error:
        fault = error
    except (OSError, SafetensorError, UnicodeError) as error:  # UnicodeError: half a surrogate pair
        file, reason = getattr(error, "filename", None) or path, getattr(error, "strerror", None) or str(error)
        where = f"on rank {ranks.rank()}, host {socket.gethostname()}"
        fault = WriteFailed(f"cannot write {file}: {' '.join(reason.split())[:200]} ({where})")
    if faults := list(filter(None, ranks.gather(fault))):
        raise faults[0]
    return value


def write_on_rank0(step: Callable[[], T], path: Path) -> T | None:
    """`write_on_all_ranks` with a step on rank 0 only. Returns its value there, None on the other ranks."""
    return write_on_all_ranks(step if ranks.is_main() else None, path)
