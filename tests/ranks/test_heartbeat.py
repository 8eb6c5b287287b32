"""Ranks tied together: real processes of the standard library alone, and 1,024 ranks' worth of sockets.

tests/ranks/test_stopping.py has the same under DeepSpeed.
"""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from swep_ds.errors import EXIT_FAULT, EXIT_LOST
from swep_ds.ranks import heartbeat as lifeline
from swep_ds.ranks.heartbeat import PROBES, HeartbeatServer, Stream
from tests.support.fork_server import HANGS, ROOT

HOSTS = ("north", "north", "south", "south")
# Called as: rank ticket-file; then takes orders from standard input, and says when it has taken one
RANK = f"""
import json, os, sys, threading, time
from swep_ds.ranks import heartbeat as lifeline
from swep_ds.ranks.signals import leave_alone
rank, file, hosts = int(sys.argv[1]), sys.argv[2], {HOSTS!r}
if rank == 0:
    line = lifeline.HeartbeatServer(4, hosts, "localhost")
    with open(file + ".new", "w") as ticket:
        json.dump(line.ticket, ticket)
    os.replace(file + ".new", file)
else:
    while not os.path.exists(file):
        time.sleep(0.01)
    ticket = lifeline.Address(*json.load(open(file)))
    line = lifeline.HeartbeatClient(rank, 4, hosts, "localhost", ticket, tells=rank == 2)
print("here", flush=True)
for order in sys.stdin:
    order, _, what = order.strip().partition(" ")
    if order in ("stop", "raise", "busy", "end"):
        print("taken", flush=True)
    if order == "progress":
        line.progress(what)
    elif order == "hear":  # rank 0: until all are there
        while [standing.step for standing in list(line._standings.values())] != [what] * 4:
            time.sleep(0.01)
    elif order == "hold":
        lifeline.HOLD_SECONDS = float(what)
    elif order == "watch":
        line.watch(float(what))
    elif order == "stop":
        line.stop(what)
    elif order == "raise":
        line.fail(ValueError(what))
    elif order == "busy":  # holds the interpreter's lock for seconds
        sys.setswitchinterval(1000)
        end = time.monotonic() + float(what)
        while time.monotonic() < end:
            pass
        sys.setswitchinterval(0.005)
    elif order == "end":
        line.close()
        break
    if order in ("progress", "hear", "hold", "watch"):
        print("taken", flush=True)
else:
    time.sleep(3600)  # in a collective, as it were
"""


class Ranks:
    """Four processes, of two machines by name."""

    def __init__(self, folder: Path, stderr=subprocess.PIPE):
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr, "text": True}
        self.processes = [
            subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(folder / "ticket")], env=env, **pipes)
            for rank in range(4)
        ]
        for process in self.processes:
            assert process.stdout.readline() == "here\n"

    def tell(self, order: str, *ranks: int) -> None:
        """Returns when they have taken the order."""
        for rank in ranks or range(4):
            self.processes[rank].stdin.write(f"{order}\n")
            self.processes[rank].stdin.flush()
        for rank in ranks or range(4):
            assert self.processes[rank].stdout.readline() == "taken\n"

    def name(self, rank: int) -> str:
        return f"rank {rank} ({HOSTS[rank]}, pid {self.processes[rank].pid})"

    def report(self, pattern: str) -> None:
        """Waits for such a report of rank 0. On a busy machine others, of ranks that could not run, come before it."""
        while line := self.processes[0].stderr.readline():
            if re.fullmatch(pattern, line):
                return
        raise AssertionError(f"rank 0 ended without a report like {pattern}")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def end(self) -> tuple[list[int], list[str]]:
        """Exit codes and what the ranks said on stderr. Those that nothing ends sleep for an hour: none is left."""
        ended = [process.communicate(timeout=HANGS)[1] for process in self.processes]
        return [process.returncode for process in self.processes], ended


@pytest.fixture
def ranks(tmp_path):
    four = Ranks(tmp_path)
    yield four
    four.close()


def test_a_clean_end_is_silent(ranks):
    ranks.tell("progress update 1, step")
    ranks.tell("end")
    assert ranks.end() == ([0, 0, 0, 0], [""] * 4)


@pytest.mark.parametrize("victim", [3, 1])
def test_a_killed_rank_is_named_and_all_end(ranks, victim):
    ranks.tell("progress update 41, backward")
    ranks.tell("hear update 41, backward", 0)
    ranks.processes[victim].kill()
    codes, said = ranks.end()
    assert codes == [-signal.SIGKILL if rank == victim else EXIT_LOST for rank in range(4)]
    expected = f"error: {ranks.name(victim)} died, last seen in update 41, backward\n"
    assert said == [expected, "", expected, ""]  # one rank of each machine tells


def test_the_death_of_rank_0_is_told_by_one_rank_of_each_machine(ranks):
    ranks.tell("progress update 7, data")
    ranks.tell("progress update 7, step", 2)
    ranks.processes[0].kill()
    codes, said = ranks.end()
    assert codes == [-signal.SIGKILL, *[EXIT_LOST] * 3]
    assert said[1] == f"error: {ranks.name(0)} died; rank 1 (north) was in update 7, data\n"
    assert said[2] == f"error: {ranks.name(0)} died; rank 2 (south) was in update 7, step\n"
    assert said[3] == ""


def test_ranks_that_die_together_are_told_together(ranks):
    ranks.processes[0].send_signal(signal.SIGSTOP)  # so that it sees both at once
    for rank in (2, 3):
        ranks.processes[rank].kill()
        ranks.processes[rank].wait()
    ranks.processes[0].send_signal(signal.SIGCONT)
    codes, said = ranks.end()
    assert codes[:2] == [EXIT_LOST] * 2
    assert f"{ranks.name(2)} died, last seen in set-up" in said[0]
    assert f"{ranks.name(3)} died, last seen in set-up" in said[0]


@pytest.mark.parametrize("rank", [0, 3])
def test_an_exception_shows_its_traceback_and_the_others_say_where_it_was(ranks, rank):
    ranks.tell("hold 0", rank)
    ranks.tell("raise out of luck", rank)
    codes, said = ranks.end()
    assert codes == [1, 1, 1, 1]
    assert "ValueError: out of luck" in said[rank]
    assert f"error: {ranks.name(rank)} ended with ValueError: out of luck in set-up\n" in said[0]
    assert "out of luck" in said[2]


def test_an_exception_that_a_death_caused_is_not_told(ranks):
    ranks.tell("hold 3600")
    ranks.tell("raise connection closed by peer", 0, 1, 2)
    ranks.processes[3].kill()
    codes, said = ranks.end()
    assert codes == [*[EXIT_LOST] * 3, -signal.SIGKILL]
    assert said[0] == f"error: {ranks.name(3)} died, last seen in set-up\n"


def test_all_end_where_nothing_can_be_said(tmp_path):
    with open("/dev/full", "w") as full:
        ranks = Ranks(tmp_path, stderr=full)
    try:
        ranks.tell("hold 0", 1)
        ranks.tell("raise out of luck", 1)
        assert ranks.end()[0] == [1] * 4
    finally:
        ranks.close()


def test_a_stop_on_one_rank_ends_all_with_75(ranks):
    ranks.tell("stop SIGUSR1", 3)
    codes, said = ranks.end()
    assert codes == [75] * 4
    assert said[0].startswith("stopped: on request (SIGUSR1 to rank 3, south), outside training; checkpoints stay")


def test_stalls_name_who_is_behind_and_who_is_silent_and_busy_ranks_are_none(ranks):
    ranks.tell("progress update 5, data")
    ranks.tell("progress update 5, step", 0, 2, 3)
    ranks.tell("busy 1.5", 2)  # which is no death
    ranks.tell("watch 1", 0)
    behind = rf"warning: no progress for \d+ s: {re.escape(ranks.name(1))} is in update 5, data, since \d+ s; "
    ranks.report(behind + "ranks 0, 2-3 wait in update 5, step\n")
    ranks.tell("progress update 5, step", 1)
    ranks.tell("hear update 5, step", 0)
    ranks.processes[2].send_signal(signal.SIGSTOP)
    silent = rf"{re.escape(ranks.name(2))} has been silent for \d+ s, last in update 5, step; "
    ranks.report(rf"warning: no progress for \d+ s: {silent}ranks 0-1, 3 wait in update 5, step\n")
    ranks.processes[2].send_signal(signal.SIGCONT)
    ranks.tell("end")
    assert ranks.end()[0] == [0] * 4


def hub(world_size: int) -> HeartbeatServer:
    return HeartbeatServer(world_size, ["here"] * world_size, "127.0.0.1")


def test_strangers_are_turned_away_and_nobody_listens_once_all_are_there():
    rank_0 = hub(2)
    place = ("127.0.0.1", rank_0.ticket.port)
    with socket.create_connection(place) as wrong, socket.create_connection(place) as mute:
        wrong.sendall(b'{"token": "guess", "rank": 1, "pid": 1}\n')
        assert wrong.recv(1) == b""
        for noise in (os.urandom(8192), b"[" * 4000 + b"\n", b"7\n", b"\n"):
            with socket.create_connection(place) as stranger, suppress(ConnectionResetError):
                stranger.sendall(noise)
                stranger.settimeout(HANGS)
                assert stranger.recv(1) == b""
        rank_1 = Stream(socket.create_connection(place))
        rank_1.send(token=rank_0.ticket.token, rank=1, pid=1)
        assert mute.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    for name, value in PROBES.items():  # a machine that vanishes is noticed by the kernel
        assert rank_1.socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
    rank_1.send(goodbye=True)
    rank_1.socket.close()
    rank_0.close()


def test_a_stranger_whose_noise_comes_with_the_last_ranks_hello_does_no_harm():
    rank_0 = hub(2)
    place = ("127.0.0.1", rank_0.ticket.port)
    with socket.create_connection(place) as noisy, socket.create_connection(place) as last:
        rank_1 = Stream(last)
        until(lambda: len(rank_0._guests) == 2)
        looks_away, looks_again = threading.Event(), threading.Event()
        rank_0._do(lambda: (looks_away.set(), looks_again.wait()))  # so that one look at the sockets finds both
        looks_away.wait()
        rank_1.send(token=rank_0.ticket.token, rank=1, pid=1)
        noisy.sendall(b"GET /\n")
        looks_again.set()
        until(lambda: not rank_0._guests)
        rank_1.send(at=(3, "update 1, step"))
        until(lambda: rank_0._standings[1].steps == 3)
        rank_1.send(goodbye=True)
    rank_0.close()


def test_a_thread_that_breaks_ends_its_process(monkeypatch):
    left = queue.SimpleQueue()
    monkeypatch.setattr(lifeline, "leave", lambda text, code: left.put((text, code)))
    hub(2)._do(lambda: 1 / 0)
    text, code = left.get(timeout=HANGS)
    assert "ZeroDivisionError" in text
    assert code == EXIT_FAULT


def test_a_rank_that_is_slow_to_go_does_not_take_rank_0_for_dead(monkeypatch):
    left = []
    monkeypatch.setattr(lifeline, "leave", lambda text, code: left.append(text))
    monkeypatch.setattr(lifeline, "GOODBYE_SECONDS", 0.4)
    rank_0 = hub(2)
    rank_1 = lifeline.HeartbeatClient(1, 2, ["here"] * 2, "127.0.0.1", rank_0.ticket, tells=True)
    until(lambda: len(rank_0._standings) == 2)
    rank_0.close()
    until(lambda: not rank_0._thread.is_alive())
    for stream in rank_0._streams.values():
        stream.socket.close()  # as the end of its process does
    until(lambda: rank_1._stream.socket not in {key.fileobj for key in rank_1._selector.get_map().values()})
    assert rank_1._thread.is_alive()
    rank_1.close()
    until(lambda: not rank_1._thread.is_alive())
    assert left == []


def until(condition) -> None:
    deadline = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_1024_ranks_are_tied_and_send_a_few_messages_a_second():
    rank_0 = hub(1024)
    spokes = []
    for rank in range(1, 1024):
        spokes.append(Stream(socket.create_connection(("127.0.0.1", rank_0.ticket.port))))
        spokes[-1].send(token=rank_0.ticket.token, rank=rank, pid=rank)
    until(lambda: len(rank_0._standings) == 1024)
    assert rank_0._period >= 4  # s: so many messages a second, whatever the number of ranks
    for spoke in spokes:
        spoke.send(at=(5, "update 1, step"))
    until(lambda: {one.steps for one in rank_0._standings.values()} == {0, 5})
    for spoke in spokes:
        spoke.send(goodbye=True)
        spoke.socket.close()
    rank_0.close()
    until(lambda: not rank_0._thread.is_alive())


def test_a_message_is_a_line_of_json():
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        receiver = Stream(server.accept()[0])
    left.sendall(json.dumps({"at": [1, "x"]}).encode() + b'\n{"at"')
    assert receiver.receive() == [{"at": [1, "x"]}]
    left.sendall(b": 2}\n")
    assert receiver.receive() == [{"at": 2}]
    assert receiver.receive() == []
    left.close()
    with pytest.raises(EOFError):
        receiver.receive()
