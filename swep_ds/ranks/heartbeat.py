"""A connection from every rank to rank 0: the death of one ends all within seconds, and who holds up the rest is named.

Notable:
- The kernel closes a dead process's sockets, however it died: rank 0 reads the end of the stream at once. A process
  that is only busy, with its interpreter locked, closes nothing: no false alarm.
- A machine that vanished closes nothing either; the kernel's probes notice it within 15 s (`PROBES`).
  So much of an outage of the network ends a healthy run.
- The main threads wait in a collective by then, for ever or until their backend gives up, so the thread of this
  module ends the process itself (`os._exit`). Checkpoints bear that at any moment.
- A rank that ended cleanly has said goodbye, after a barrier.
- The training loop only sets an attribute; the thread sends it on, a few hundred messages a second over all ranks.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from swep_ds.errors import EXIT_FAULT, EXIT_INTERRUPTED, EXIT_LOST, EXIT_STOPPED
from swep_ds.ranks.signals import exit_after, leave, request, stopped_at_once
from swep_ds.ranks.stalls import RankStatus, StallWatch
from swep_ds.terminal import warn

PROBES = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 15_000}  # s, s, times, ms
PERIOD = 0.25  # s between two messages of a rank; longer where there are more than `MESSAGES` / s
MESSAGES = 250
CONNECT_SECONDS = 30.0
TOGETHER_SECONDS = 0.2  # deaths within this are told together, as of the ranks of a machine
HOLD_SECONDS = 2.0  # an exception may be no more than the echo of another rank's death, which is then told
GOODBYE_SECONDS = 10.0
LONGEST = 4096  # bytes of a message
SHOWN = 8  # ranks that a message describes one by one


class Address(NamedTuple):
    """What a rank needs to connect to rank 0, which hands it out through the process group."""

    port: int
    token: str  # no stray connection has it
    pid: int


class Heartbeat:
    """What both ends share: a thread that waits for its sockets, and takes what the main thread hands over."""

    def __init__(self, rank: int, world_size: int, hosts: Sequence[str], *, tells: bool):
        _allow_files(world_size)
        self.rank, self.hosts, self._tells = rank, hosts, tells
        self.at = (0, "set-up")  # steps taken, and the last one; all ranks take the same steps
        self._period = max(PERIOD, world_size / MESSAGES)
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        awake, self._alarm = socket.socketpair()
        self._selector.register(awake, selectors.EVENT_READ, lambda: awake.recv(64))
        self._thread = threading.Thread(target=self._serve, daemon=True, name="lifeline")

    def progress(self, step: str) -> None:
        """Where this rank is from now on."""
        self.at = (self.at[0] + 1, step)

    def stop(self, name: str) -> None:
        """Ends all ranks on a signal of that name."""
        text = stopped_at_once(f"{name} to rank {self.rank}, {self.hosts[self.rank]}")
        self._do(lambda: self._tell_stop(text, request.exit_code))

    def fail(self, error: BaseException) -> NoReturn:
        """Ends all ranks after an exception on this one, whose traceback is printed; unless another rank's death is
        told first, which it may come from."""
        time.sleep(HOLD_SECONDS)
        exit_after(GOODBYE_SECONDS, EXIT_FAULT)  # whatever becomes of what follows
        with suppress(OSError):
            traceback.print_exception(error)
        said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self._do(lambda: self._tell_fault(f"ended with {said} in {self.at[1]}"))
        self._thread.join()  # it ends the process
        os._exit(EXIT_FAULT)

    def close(self) -> None:
        """All ranks call this after a barrier: from then on none misses another."""
        self._do(self._say_goodbye)
        self._thread.join(GOODBYE_SECONDS)

    def _do(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._alarm.send(b".")

    def _serve(self) -> None:
        try:
            while not self._closed:
                for key, _ in self._selector.select(self._period):
                    key.data()
                while not self._orders.empty():
                    self._orders.get()()
                self._tick(time.monotonic())
        except Exception:  # without this thread a dead rank would be waited for
            leave(traceback.format_exc(), EXIT_FAULT)

    def _end(self, text: str, code: int) -> NoReturn:
        title = "stopped" if code in (EXIT_STOPPED, EXIT_INTERRUPTED) else "error"
        leave(f"{title}: {text}" if self._tells else None, code)

    def _tell_stop(self, text: str, code: int) -> None:
        raise NotImplementedError

    def _tell_fault(self, text: str) -> None:
        raise NotImplementedError

    def _say_goodbye(self) -> None:
        raise NotImplementedError

    def _tick(self, now: float) -> None:
        raise NotImplementedError


class Stream:
    """Messages of one line of JSON each over a socket."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES.items():
            if hasattr(socket, name):  # Linux has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.setblocking(False)
        self.socket, self._in, self._out = connection, b"", b""

    def send(self, **message: Any) -> None:
        """As much as goes without waiting; `flush` sends the rest."""
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Whether all is sent. Where nobody reads any more, `receive` says so."""
        with suppress(OSError):
            self._out = self._out[self.socket.send(self._out) :]
        return not self._out

    def receive(self) -> list[dict[str, Any]]:
        """What came since the last call.

        Raises:
            EOFError: the other end is closed or cannot be reached any more.
            ValueError: no messages of this module.
        """
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError(error.strerror) from None
        if not data:
            raise EOFError
        *lines, self._in = (self._in + data).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except RecursionError:
            raise ValueError from None
        if len(self._in) > LONGEST or not all(isinstance(message, dict) for message in messages):
            raise ValueError
        return messages


class HeartbeatServer(Heartbeat):
    """Rank 0's end. Listens until all ranks are there.

    Args:
        address: what other ranks reach this host by, where they are all on it; else every address is listened to.

    Raises:
        OSError: no port can be listened to.
    """

    def __init__(self, world_size: int, hosts: Sequence[str], address: str, *, tells: bool = True):
        super().__init__(0, world_size, hosts, tells=tells)
        elsewhere = len(set(hosts)) > 1
        if elsewhere and socket.has_dualstack_ipv6():
            self._server = socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=world_size, dualstack_ipv6=True
            )
        else:
            family, *_, found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
            place = ("", 0) if elsewhere else found[:2]
            self._server = socket.create_server(place, family=family, backlog=world_size)
        self._server.setblocking(False)
        self.ticket = Address(self._server.getsockname()[1], secrets.token_hex(16), os.getpid())
        self._guests: set[Stream] = set()  # have not said yet which rank they are
        self._standings = {0: RankStatus(0, hosts[0], os.getpid())}
        self._streams: dict[int, Stream] = {}  # of the ranks that have not said goodbye
        self._world_size = world_size
        self._faults: list[tuple[str, int]] = []  # with the exit codes that they call for
        self._told_at = float("inf")
        self._watch: StallWatch | None = None
        self._looked = 0.0
        self._selector.register(self._server, selectors.EVENT_READ, self._welcome)
        self._thread.start()

    def watch(self, seconds: float) -> None:
        """From now on says, on stderr, which ranks are behind whenever none has moved for so long."""
        self._do(lambda: setattr(self, "_watch", StallWatch(seconds, time.monotonic())))

    def _welcome(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:  # it is gone already
            return
        guest = Stream(connection)
        self._guests.add(guest)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._meet(guest))

    def _meet(self, guest: Stream) -> None:
        if guest not in self._guests:  # turned away since the selector saw its message
            return
        try:
            messages = guest.receive()
        except (EOFError, ValueError):
            self._drop(guest)
            return
        if not messages:
            return
        hello, *others = messages
        if not hmac.compare_digest(str(hello.get("token")).encode(), self.ticket.token.encode()):
            self._drop(guest)
            return
        self._guests.discard(guest)
        rank = hello["rank"]
        self._streams[rank] = guest
        self._standings[rank] = RankStatus(rank, self.hosts[rank], hello["pid"], heard=time.monotonic())
        self._selector.modify(guest.socket, selectors.EVENT_READ, lambda: self._read(rank, guest))
        for message in others:
            self._hear(rank, message)
        if len(self._standings) == self._world_size:
            self._selector.unregister(self._server)
            self._server.close()
            for stranger in list(self._guests):
                self._drop(stranger)

    def _drop(self, stream: Stream) -> None:
        self._guests.discard(stream)
        self._selector.unregister(stream.socket)
        stream.socket.close()

    def _read(self, rank: int, stream: Stream) -> None:
        try:
            for message in stream.receive():
                self._hear(rank, message)
        except EOFError as error:
            self._drop(stream)
            if self._streams.pop(rank, None):  # without a goodbye
                reason, standing = f" ({error})" if error.args else "", self._standings[rank]
                self._fault(f"{standing} died{reason}, last seen in {standing.step}", EXIT_LOST)

    def _hear(self, rank: int, message: dict[str, Any]) -> None:
        if "at" in message:
            self._standings[rank].hear(*message["at"], time.monotonic())
        elif "stop" in message:
            self._tell_stop(message["stop"], message["code"])
        elif "fault" in message:
            del self._streams[rank]
            self._fault(f"{self._standings[rank]} {message['fault']}", EXIT_FAULT)
        elif "goodbye" in message:
            del self._streams[rank]

    def _fault(self, text: str, code: int) -> None:
        self._faults.append((text, code))
        self._told_at = min(self._told_at, time.monotonic() + TOGETHER_SECONDS)

    def _tell_fault(self, text: str) -> None:
        self._fault(f"{self._standings[0]} {text}", EXIT_FAULT)

    def _tell_stop(self, text: str, code: int) -> None:
        if not self._faults:
            self._end_all(text, code)

    def _end_all(self, text: str, code: int) -> NoReturn:
        for stream in self._streams.values():
            stream.send(end=text, code=code)
        self._end(text, code)

    def _tick(self, now: float) -> None:
        if self._closed:  # all ranks were past the last barrier: what they died of after it is no concern of others
            return
        if now >= self._told_at:
            texts, codes = zip(*self._faults, strict=True)
            more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
            self._end_all("; ".join(texts[:SHOWN]) + more, EXIT_LOST if set(codes) == {EXIT_LOST} else EXIT_FAULT)
        if now - self._looked < self._period:
            return
        self._looked = now
        self._standings[0].hear(*self.at, now)
        if self._watch and (report := self._watch.look(list(self._standings.values()), now)):
            warn(f"warning: {report}")

    def _say_goodbye(self) -> None:
        """Waits for the others' goodbyes: who closed first could cut off what the other still reads. One that is slow
        to say it knows from rank 0's that nobody is missed any more."""
        for stream in self._streams.values():
            stream.send(goodbye=True)
        deadline = time.monotonic() + GOODBYE_SECONDS / 2
        while self._streams and time.monotonic() < deadline:
            for key, _ in self._selector.select(self._period):
                key.data()
        self._closed = True


class HeartbeatClient(Heartbeat):
    """Another rank's end.

    Raises:
        OSError: rank 0 cannot be reached.
    """

    def __init__(self, rank: int, world_size: int, hosts: Sequence[str], address: str, ticket: Address, *, tells: bool):
        super().__init__(rank, world_size, hosts, tells=tells)
        self._hub = f"rank 0 ({hosts[0]}, pid {ticket.pid})"
        self._stream = Stream(socket.create_connection((address, ticket.port), timeout=CONNECT_SECONDS))
        self._stream.send(token=ticket.token, rank=rank, pid=os.getpid())
        self._selector.register(self._stream.socket, selectors.EVENT_READ, self._read)
        self._sent, self._parted = 0.0, False
        self._thread.start()

    def watch(self, seconds: float) -> None:
        """Rank 0 watches."""

    def _read(self) -> None:
        try:
            for message in self._stream.receive():
                if "goodbye" in message:
                    self._parted = True
                else:
                    self._end(message["end"], message["code"])
        except EOFError as error:
            if self._parted:
                self._selector.unregister(self._stream.socket)
                return
            reason = f" ({error})" if error.args else ""
            self._tells |= self.rank == 1  # for the machine that was rank 0's
            host = self.hosts[self.rank]
            self._end(f"{self._hub} died{reason}; rank {self.rank} ({host}) was in {self.at[1]}", EXIT_LOST)

    def _tick(self, now: float) -> None:
        if self._stream.flush() and now - self._sent >= self._period:
            self._sent = now
            self._stream.send(at=self.at)

    def _tell_stop(self, text: str, code: int) -> None:
        self._stream.send(stop=text, code=code)

    def _tell_fault(self, text: str) -> None:
        self._stream.send(fault=text)
        leave(None, EXIT_FAULT)

    def _say_goodbye(self) -> None:
        self._stream.send(goodbye=True)
        self._stream.socket.close()
        self._closed = True


def _allow_files(world_size: int) -> None:
    """Rank 0 has a socket for every rank here, and all have in gloo: more than many systems allow, unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * world_size + 1024
    if soft != resource.RLIM_INFINITY and soft < needed:
        ceiling = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
