"""What a run writes: where that fails, on whichever rank, all ranks end alike, in one line that says why."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from swep_ds.errors import RunExit, WriteFailed
from swep_ds.ranks import group as ranks

T = TypeVar("T")


def write_on_all_ranks(step: Callable[[], T] | None, path: Path) -> T | None:
    """Runs `step`, which writes `path` or below it, where a rank has one. All ranks call this together.

    Raises:
        WriteFailed: on all ranks if a step met a full disk, an unwritable folder or the like.
        RunExit: any other of a step, on all ranks as well.
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
    faults = [one for one in ranks.gather(fault) if one]
    if faults:
        raise faults[0]
    return value


def write_on_rank0(step: Callable[[], T], path: Path) -> T | None:
    """`write_on_all_ranks` where only rank 0 has a step; returns its value there, None on the other ranks."""
    return write_on_all_ranks(step if ranks.is_main() else None, path)
