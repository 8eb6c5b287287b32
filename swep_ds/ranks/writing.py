"""What a run writes: where that fails, on whichever rank, all ranks end alike, in one line that says why."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from swep_ds.errors import Ended, WriteFailed
from swep_ds.ranks import group as ranks

T = TypeVar("T")


def write_together(step: Callable[[], T] | None, path: Path) -> T | None:
    """Runs `step`, which writes `path` or below it, where a rank has one. All ranks call this together.

    Raises:
        WriteFailed: on all ranks if a step met a full disk, an unwritable folder or the like.
        Ended: any other of a step, on all ranks as well.
    """
    value, fault = None, None
    try:
        if step is not None:
            value = step()
    except Ended as error:
        fault = error
    except (OSError, SafetensorError, UnicodeError) as error:  # UnicodeError: half a surrogate pair
        file, reason = getattr(error, "filename", None) or path, getattr(error, "strerror", None) or str(error)
        where = f"on rank {ranks.rank()}, host {socket.gethostname()}"
        fault = WriteFailed(f"cannot write {file}: {' '.join(reason.split())[:200]} ({where})")
    faults = [one for one in ranks.gather(fault) if one]
    if faults:
        raise faults[0]
    return value


def on_main(step: Callable[[], None]) -> Callable[[], None] | None:
    """`step` on rank 0, nothing on the others: for `write_together`."""
    return step if ranks.is_main() else None
