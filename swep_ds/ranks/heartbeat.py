"""A connection from every rank to rank 0: when a rank dies, all others end within seconds, and one line names it.

On several nodes without Slurm no launcher ends them or says which rank died first. The kernel closes a dead process's
sockets, but no busy one's; of a vanished machine TCP keep-alive tells within 15 s (`PROBES`). The main threads may wait
in a collective, so this module's thread ends the process itself (`os._exit`). Nothing is sent while all goes well.
"""

import json
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from swep_ds.common.console import say_on_stderr
from swep_ds.common.errors import EXIT_FAULT, EXIT_INTERRUPTED, EXIT_LOST, printable

PROBES = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 15_000}  # s, s, times, ms
CONNECT_SECONDS = 60.0
CAUSE_SECONDS = 1.0  # before an exception is reported: the death that may have caused it is reported first
LEAVE_SECONDS = 10.0  # for the other end to answer a rank that ends
STALL_SECONDS = 600.0  # in one step, until a rank says so


def listen(world_size: int) -> socket.socket:
    """Rank 0's socket, on a port that the system chooses."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=world_size, dualstack_ipv6=dual)


def accept(listener: socket.socket, world_size: int) -> dict[int, Connection]:
    """Rank 0's connections to all other ranks, by rank. Raises OSError if one does not come."""
    peers: dict[int, Connection] = {}
    listener.settimeout(CONNECT_SECONDS)
    with listener:
        while len(peers) < world_size - 1:
            connection = _watched(listener.accept()[0])
            peers[json.loads(connection.recv_bytes())] = connection
    return peers


def connect(rank: int, host: str, port: int) -> dict[int, Connection]:
    """Another rank's connection, to rank 0. Raises OSError if it cannot be reached."""
    connection = _watched(socket.create_connection((host, port), timeout=CONNECT_SECONDS))
    connection.send_bytes(json.dumps(rank).encode())
    return {0: connection}


def _watched(peer: socket.socket) -> Connection:
    peer.setblocking(True)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(peer.detach())


class Heartbeat:
    """A thread that reads this rank's connections and ends the process when another rank dies. Messages call the ranks
    by `names`, in their order; this rank prints how the run ended if it `reports`."""

    def __init__(self, rank: int, names: Sequence[str], peers: dict[int, Connection], *, reports: bool):
        self.step = "set-up"
        self._step_began = math.inf  # until the first step; inf again once it was said that the step takes long
        self._rank = rank
        self._names = names
        self._peers = peers
        self._reports = reports
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="heartbeat")
        self._thread.start()

    def progress(self, step: str) -> None:
        self.step = step
        self._step_began = time.monotonic()

    def fail(self, error: BaseException) -> NoReturn:
        """Ends all ranks after an exception on this one, whose traceback is printed here."""
        if isinstance(error, KeyboardInterrupt):
            self._end_all(f"by SIGINT to {self._names[self._rank]}", EXIT_INTERRUPTED)
        time.sleep(CAUSE_SECONDS)
        with suppress(OSError):  # such as a full disk behind stderr
            traceback.print_exception(error)
        text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self._end_all(f"{self._names[self._rank]} ended with {text} in {self.step}", EXIT_FAULT)

    def close(self) -> None:
        """Ends the heartbeat. Collective, after a barrier: from then on no rank misses another."""
        self._send(goodbye=True)
        self._thread.join(LEAVE_SECONDS)

    def _serve(self) -> None:
        ranks = {connection: rank for rank, connection in self._peers.items()}
        while ranks:
            for connection in wait(list(ranks), timeout=0.5):
                self._read(ranks.pop(connection), connection)
            seconds = time.monotonic() - self._step_began
            if seconds > STALL_SECONDS:
                self._step_began = math.inf
                say_on_stderr(f"warning: {self._names[self._rank]} has been in {self.step} for {seconds:.0f} s")

    def _read(self, rank: int, connection: Connection) -> None:
        """Takes a rank's only message: it is done, or the run ends."""
        try:
            message = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            self._reports |= self._rank == 1  # on behalf of rank 0's machine
            self._end_all(f"{self._names[rank]} died; rank {self._rank} was in {self.step}", EXIT_LOST)
        if "end" in message:
            self._end_all(message["end"], message["code"])

    def _send(self, **message: Any) -> None:
        for connection in self._peers.values():
            with suppress(OSError):  # it is gone, which `_read` notices
                connection.send_bytes(json.dumps(message).encode())

    def _end_all(self, text: str, code: int) -> NoReturn:
        """Ends this process, from any thread, and all others through rank 0."""
        self._ending.acquire()  # for good: the main thread may come as well
        self._send(end=text, code=code)
        title = {EXIT_INTERRUPTED: "stopped"}.get(code, "error")
        try:
            if self._reports:
                print(printable(f"{title}: {text}"), file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
