"""TCP ports for the programs that tests start.

Processes that ask at the same time, in one suite or in two on a machine, have separate ranges: each holds a lock on its
range for as long as it lives.
"""

import fcntl
import functools
import itertools
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FIRST, SIZE, RANGES = 10_000, 200, 50  # below the ports of the package and of outgoing connections


def free_port() -> int:
    """A free port that no other test gets for a long time."""
    for port in itertools.islice(_ports(), SIZE):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return port
    raise OSError(f"none of {SIZE} ports is free")


@functools.cache
def _ports() -> Iterator[int]:
    for number in range(RANGES):
        with suppress(OSError):  # another process has the range, or another user the file
            lock = Path(tempfile.gettempdir(), f"swep_ds-tests-ports-{number}.lock").open("w")  # noqa: SIM115
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _locks.append(lock)
            first = FIRST + number * SIZE
            return itertools.cycle(range(first, first + SIZE))
    raise OSError(f"all {RANGES} ranges of ports are taken")


_locks: list = []  # open files: closing one gives up its range
