"""A connection from every rank to rank 0: the death of one ends all within seconds, and stalls are reported.

Notable:
- The kernel closes a dead process's sockets, however it died, and rank 0 reads the end of the stream at once. A busy
  process, even one whose interpreter is locked, closes nothing: there are no false alarms.
- A machine that vanished closes nothing either; the kernel's probes notice it within 15 s (`PROBES`).
  A network outage of that length ends a healthy run.
- The main threads may wait in a collective for hours, so this module's thread ends the process itself (`os._exit`).
  Checkpoints are complete or ignored at any moment.
- A rank that ends cleanly says goodbye, after a barrier.
- The training loop only sets an attribute. The thread sends it, a few hundred messages a second over all ranks.
"""

import hmac
import json
import os
import queue
import resource
import secrets
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from swep_ds.common.console import say_on_stderr
from swep_ds.common.errors import EXIT_FAULT, EXIT_INTERRUPTED, EXIT_LOST, EXIT_STOPPED
from swep_ds.ranks.signals import exit_process, request, stopped_at_once
from swep_ds.ranks.stalls import RankStatus, StallWatch

PROBES = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 15_000}  # s, s, times, ms
PERIOD = 0.25  # s between two messages of a rank; longer above `MESSAGES` a second over all ranks
MESSAGES = 250
CONNECT_SECONDS = 30.0
GRACE_SECONDS = 1.0  # from a first fault to the end of all ranks: others may follow, and the cause may come second
LEAVE_SECONDS = 10.0  # for rank 0 to answer a rank that ends
MAX_MESSAGE_BYTES = 4096  # bytes of a message
SHOWN = 8  # faults in a message


class Address(NamedTuple):
    """What a rank needs to connect to rank 0, which hands it out through the process group."""

    port: int
    token: str  # identifies this run's ranks
    pid: int


class Heartbeat:
    """A thread that serves this rank's sockets, and delivers messages of the main thread to rank 0.

    A subclass has `_deliver(message)`, and `_tick(now)` for what is due.

    Args:
        hosts: the hosts of all ranks, in their order.
        reports: whether this rank prints how the run ended.
    """

    def __init__(self, rank: int, hosts: Sequence[str], *, reports: bool):
        _allow_files(len(hosts))
        self.rank, self.hosts, self._reports = rank, hosts, reports
        self.position = (0, "set-up")  # number of steps taken, and the last one; all ranks take the same steps
        self._period = max(PERIOD, len(hosts) / MESSAGES)
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._closed = False
        self._traceback = ""  # set by the exception that ends this rank
        self._selector = selectors.DefaultSelector()
        wake, self._alarm = socket.socketpair()
        self._selector.register(wake, selectors.EVENT_READ, lambda: wake.recv(64))
        self._thread = threading.Thread(target=self._serve, daemon=True, name="heartbeat")

    def progress(self, step: str) -> None:
        """Notes that this rank begins a step."""
        self.position = (self.position[0] + 1, step)

    def watch(self, seconds: float) -> None:
        """From now on rank 0 warns which ranks are behind when none has moved for `seconds`."""
        if self.rank == 0:
            self._send(watch=seconds)

    def stop(self, name: str) -> None:
        """Ends all ranks on a signal of that name."""
        text = stopped_at_once(f"{name} to rank {self.rank}, {self.hosts[self.rank]}")
        self._send(stop=text, code=request.exit_code)

    def fail(self, error: BaseException) -> NoReturn:
        """Ends all ranks after an exception on this one.

        Its traceback is printed unless another rank died, which may have caused it.
        """
        self._traceback = "".join(traceback.format_exception(error)).rstrip()
        text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self._send(fault=f"ended with {text} in {self.position[1]}")
        self._thread.join(LEAVE_SECONDS)  # it ends the process, unless rank 0 hangs
        exit_process(self._traceback, EXIT_FAULT)

    def close(self) -> None:
        """Ends the heartbeat. Collective, after a barrier: from then on no rank misses another."""
        self._send(goodbye=True)
        self._thread.join(LEAVE_SECONDS)

    def _send(self, **message: Any) -> None:
        self._messages.put(message)
        self._alarm.send(b".")

    def _serve(self) -> None:
        try:
            while not self._closed:
                for key, _ in self._selector.select(self._period):
                    key.data()
                while not self._messages.empty():
                    self._deliver(self._messages.get())
                self._tick(time.monotonic())
        except Exception:  # without this thread the others would wait for a dead rank
            exit_process(traceback.format_exc(), EXIT_FAULT)

    def _end(self, text: str, code: int) -> NoReturn:
        title = "stopped" if code in (EXIT_STOPPED, EXIT_INTERRUPTED) else "error"
        lines = [self._traceback if code == EXIT_FAULT else "", f"{title}: {text}" if self._reports else ""]
        exit_process("\n".join(filter(None, lines)), code)


class Stream:
    """A socket that carries messages, each one line of JSON."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES.items():
            if hasattr(socket, name):  # Linux has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.setblocking(False)
        self.socket, self._in, self._out = connection, b"", b""

    def send(self, **message: Any) -> None:
        """Sends as much as goes without waiting; `flush` sends the rest."""
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Whether all is sent. `receive` reports a closed connection."""
        with suppress(OSError):
            self._out = self._out[self.socket.send(self._out) :]
        return not self._out

    def receive(self) -> list[dict[str, Any]]:
        """The messages since the last call.

        Raises:
            EOFError: the other end is closed or unreachable.
            ValueError, RecursionError: these are not messages of this module.
        """
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError(f" ({error.strerror})") from None
        if not data:
            raise EOFError
        *lines, self._in = (self._in + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if len(self._in) > MAX_MESSAGE_BYTES or not all(isinstance(message, dict) for message in messages):
            raise ValueError
        return messages


class HeartbeatServer(Heartbeat):
    """Rank 0's end. Listens until all ranks have connected. Raises OSError: it cannot listen to any port."""

    def __init__(self, hosts: Sequence[str]):
        super().__init__(0, hosts, reports=True)
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, backlog=len(hosts), dualstack_ipv6=dual)
        self._listener.setblocking(False)
        self.address = Address(self._listener.getsockname()[1], secrets.token_hex(16), os.getpid())
        self._ranks: dict[Stream, int | None] = {}  # by connection; None: it has not said which
        self._statuses = {0: RankStatus(0, hosts[0], os.getpid())}
        self._streams: dict[int, Stream] = {}  # to the ranks that have not said goodbye
        self._faults: dict[int, tuple[str, int]] = {}  # by rank: the first one, with its exit code
        self._end_at = float("inf")
        self._watch: StallWatch | None = None
        self._looked, self._leaving = 0.0, False
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread.start()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone already
            return
        stream = Stream(connection)
        self._ranks[stream] = None
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(stream))

    def _read(self, stream: Stream) -> None:
        try:
            for message in stream.receive() if stream in self._ranks else ():  # dropped since the selector saw it?
                if (rank := self._ranks[stream]) is None:
                    self._greet(stream, message)
                else:
                    self._take(rank, message)
        except (EOFError, ValueError, RecursionError) as end:
            rank = self._drop(stream)
            if self._streams.pop(rank, None):  # without a goodbye
                self._fault(rank, f"died{end}, last seen in {self._statuses[rank].step}", EXIT_LOST)

    def _greet(self, stream: Stream, hello: dict[str, Any]) -> None:
        if not hmac.compare_digest(str(hello.get("token")).encode(), self.address.token.encode()):
            raise ValueError("a stranger")
        rank = self._ranks[stream] = hello["rank"]
        self._streams[rank] = stream
        self._statuses[rank] = RankStatus(rank, self.hosts[rank], hello["pid"], heard=time.monotonic())
        if len(self._statuses) == len(self.hosts):
            self._selector.unregister(self._listener)
            self._listener.close()
            for stranger in [stream for stream, rank in self._ranks.items() if rank is None]:
                self._drop(stranger)

    def _drop(self, stream: Stream) -> int | None:
        self._selector.unregister(stream.socket)
        stream.socket.close()
        return self._ranks.pop(stream)

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        if "at" in message:
            self._statuses[rank].hear(*message["at"], time.monotonic())
        elif "stop" in message:
            if not self._faults:
                self._end_all(message["stop"], message["code"])
        elif "fault" in message:
            self._fault(rank, message["fault"], EXIT_FAULT)
        elif "goodbye" in message:
            del self._streams[rank]

    def _deliver(self, message: dict[str, Any]) -> None:
        """Takes a message of rank 0 itself."""
        if "watch" in message:
            self._watch = StallWatch(message["watch"], time.monotonic())
        elif "goodbye" in message:
            # stays until the others say it too: its end could cut off what they still read. A rank that is slow to say
            # it knows from this goodbye that rank 0 did not die
            for stream in self._streams.values():
                stream.send(goodbye=True)
            self._leaving = True
        else:
            self._take(0, message)

    def _fault(self, rank: int, text: str, code: int) -> None:
        self._faults.setdefault(rank, (f"{self._statuses[rank]} {text}", code))
        self._end_at = min(self._end_at, time.monotonic() + GRACE_SECONDS)

    def _end_all(self, text: str, code: int) -> NoReturn:
        for stream in self._streams.values():
            stream.send(end=text, code=code)
        self._end(text, code)

    def _tick(self, now: float) -> None:
        if self._leaving:  # all ranks are past the last barrier: a death no longer concerns the others
            self._closed = not self._streams
            return
        if now >= self._end_at:
            self._end_all(*verdict(self._faults.values()))
        if now - self._looked < self._period:
            return
        self._looked = now
        self._statuses[0].hear(*self.position, now)
        if self._watch and (report := self._watch.look(list(self._statuses.values()), now)):
            say_on_stderr(f"warning: {report}")


class HeartbeatClient(Heartbeat):
    """Another rank's end. Raises OSError: rank 0 cannot be reached."""

    def __init__(self, rank: int, hosts: Sequence[str], name: str, address: Address, *, reports: bool):
        super().__init__(rank, hosts, reports=reports)
        self._server = f"rank 0 ({hosts[0]}, pid {address.pid})"
        self._stream = Stream(socket.create_connection((name, address.port), timeout=CONNECT_SECONDS))
        self._stream.send(token=address.token, rank=rank, pid=os.getpid())
        self._selector.register(self._stream.socket, selectors.EVENT_READ, self._read)
        self._sent, self._parted = 0.0, False
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._stream.receive():
                if "goodbye" in message:
                    self._parted = True
                else:
                    self._end(message["end"], message["code"])
        except EOFError as end:
            if self._parted:
                self._selector.unregister(self._stream.socket)
                return
            self._reports |= self.rank == 1  # on behalf of rank 0's machine
            host = self.hosts[self.rank]
            self._end(f"{self._server} died{end}; rank {self.rank} ({host}) was in {self.position[1]}", EXIT_LOST)

    def _tick(self, now: float) -> None:
        if self._stream.flush() and now - self._sent >= self._period:
            self._sent = now
            self._stream.send(at=self.position)

    def _deliver(self, message: dict[str, Any]) -> None:
        self._stream.send(**message)
        if "goodbye" in message:
            self._stream.socket.close()
            self._closed = True


def verdict(faults: Iterable[tuple[str, int]]) -> tuple[str, int]:
    """What ended the run, and its exit code. Exceptions beside a death may be its consequence, and are left out."""
    faults = list(faults)
    deaths = [text for text, code in faults if code == EXIT_LOST]
    texts = deaths or [text for text, _ in faults]
    more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more, EXIT_LOST if deaths else EXIT_FAULT


def _allow_files(world_size: int) -> None:
    """Raises the limit on open files: rank 0 has a socket for every rank here, and so have all ranks in gloo."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * world_size + 1024
    if soft != resource.RLIM_INFINITY and soft < needed:
        ceiling = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
