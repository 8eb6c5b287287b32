"""TCP ports for the programs that tests start. Test workers that run at the same time have separate ranges."""

import itertools
import os
import socket
from contextlib import suppress

FIRST, SIZE, WORKERS = 10_000, 500, 20  # below the ports of the package and of outgoing connections

_number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
_ports = itertools.cycle(range(FIRST + _number * SIZE, FIRST + (_number + 1) * SIZE))


def free_port() -> int:
    """A free port that no other test gets for a long time."""
    for port in itertools.islice(_ports, SIZE):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return port
    raise OSError(f"none of {SIZE} ports is free")
