"""Connected ranks: real processes that import no PyTorch, and the sockets of 1,024 ranks.

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

from swep_ds.common.errors import EXIT_FAULT, EXIT_LOST
from swep_ds.ranks import heartbeat
from swep_ds.ranks.heartbeat import PROBES, HeartbeatClient, HeartbeatServer, Stream, verdict
from tests.support.fork_server import HANGS, ROOT

HOSTS = ("north", "north", "south", "south")
# Called as: rank address-file; then takes orders from standard input, and says when it has taken one
RANK = f"""
import json, os, sys, threading, time
from swep_ds.ranks import heartbeat
from swep_ds.ranks.signals import exit_single_rank
rank, file, hosts = int(sys.argv[1]), sys.argv[2], {HOSTS!r}
if rank == 0:
    beat = heartbeat.HeartbeatServer(hosts)
    with open(file + ".new", "w") as new:
        json.dump(beat.address, new)
    os.replace(file + ".new", file)
else:
    while not os.path.exists(file):
        time.sleep(0.01)
    address = heartbeat.Address(*json.load(open(file)))
    beat = heartbeat.HeartbeatClient(rank, hosts, "localhost", address, reports=rank == 2)
print("here", flush=True)
for order in sys.stdin:
    order, _, what = order.strip().partition(" ")
    if order in ("stop", "raise", "busy", "end"):
        print("taken", flush=True)
    if order == "progress":
        beat.progress(what)
    elif order == "hear":  # rank 0: until all are there
        while [status.step for status in list(beat._statuses.values())] != [what] * 4:
            time.sleep(0.01)
    elif order == "patience":
        heartbeat.LEAVE_SECONDS = float(what)
    elif order == "watch":
        beat.watch(float(what))
    elif order == "stop":
        beat.stop(what)
    elif order == "raise":
        threading.Thread(target=beat.fail, args=(ValueError(what),)).start()
    elif order == "busy":  # holds the interpreter's lock for seconds
        sys.setswitchinterval(1000)
        end = time.monotonic() + float(what)
        while time.monotonic() < end:
            pass
        sys.setswitchinterval(0.005)
    elif order == "end":
        beat.close()
        break
    if order in ("progress", "hear", "patience", "watch"):
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
            subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(folder / "address")], env=env, **pipes)
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


def test_the_death_of_rank_0_is_reported_by_one_rank_of_each_machine(ranks):
    ranks.tell("progress update 7, data")
    ranks.tell("progress update 7, step", 2)
    ranks.processes[0].kill()
    codes, said = ranks.end()
    assert codes == [-signal.SIGKILL, *[EXIT_LOST] * 3]
    assert said[1] == f"error: {ranks.name(0)} died; rank 1 (north) was in update 7, data\n"
    assert said[2] == f"error: {ranks.name(0)} died; rank 2 (south) was in update 7, step\n"
    assert said[3] == ""


def test_ranks_that_die_together_are_reported_together(ranks):
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
    ranks.tell("raise out of luck", rank)
    codes, said = ranks.end()
    assert codes == [1, 1, 1, 1]
    assert "ValueError: out of luck" in said[rank]
    assert f"error: {ranks.name(rank)} ended with ValueError: out of luck in set-up\n" in said[0]
    assert "out of luck" in said[2]


def test_an_exception_that_a_death_caused_is_not_reported(ranks):
    ranks.tell("patience 3600", 1, 2)
    ranks.processes[0].send_signal(signal.SIGSTOP)  # so that it sees all at once
    ranks.tell("raise connection closed by peer", 1, 2)
    ranks.processes[3].kill()
    ranks.processes[3].wait()
    ranks.processes[0].send_signal(signal.SIGCONT)
    codes, said = ranks.end()
    assert codes == [*[EXIT_LOST] * 3, -signal.SIGKILL]
    assert said[0] == f"error: {ranks.name(3)} died, last seen in set-up\n"
    assert "Traceback" not in said[1] + said[2]


def test_a_verdict_leaves_out_what_a_death_may_have_caused():
    faults = [("rank 1 ended with ValueError", EXIT_FAULT), ("rank 2 died", EXIT_LOST), ("rank 3 died", EXIT_LOST)]
    assert verdict(faults) == ("rank 2 died; rank 3 died", EXIT_LOST)
    assert verdict(faults[:1]) == ("rank 1 ended with ValueError", EXIT_FAULT)
    assert verdict(faults[1:2] * 10) == ("; ".join(["rank 2 died"] * 8) + "; and 2 more", EXIT_LOST)


def test_a_rank_with_an_exception_ends_though_rank_0_hangs(ranks):
    ranks.tell("patience 0.1", 1)
    ranks.processes[0].send_signal(signal.SIGSTOP)
    ranks.tell("raise out of luck", 1)
    assert ranks.processes[1].wait(timeout=HANGS) == EXIT_FAULT
    assert "ValueError: out of luck" in ranks.processes[1].stderr.read()
    ranks.processes[0].send_signal(signal.SIGCONT)
    for rank in (0, 2, 3):
        assert ranks.processes[rank].wait(timeout=HANGS) == EXIT_FAULT


def test_all_end_where_nothing_can_be_said(tmp_path):
    with open("/dev/full", "w") as full:
        ranks = Ranks(tmp_path, stderr=full)
    try:
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
    ranks.tell("busy 1.5", 2)  # which is not a death
    ranks.tell("watch 1", 0)
    behind = rf"warning: no progress for \d+ s: {re.escape(ranks.name(1))} has been in update 5, data for \d+ s; "
    ranks.report(behind + "ranks 0, 2-3 wait in update 5, step\n")
    ranks.tell("progress update 5, step", 1)
    ranks.tell("hear update 5, step", 0)
    ranks.processes[2].send_signal(signal.SIGSTOP)
    silent = rf"{re.escape(ranks.name(2))} has been silent for \d+ s, last in update 5, step; "
    ranks.report(rf"warning: no progress for \d+ s: {silent}ranks 0-1, 3 wait in update 5, step\n")
    ranks.processes[2].send_signal(signal.SIGCONT)
    ranks.tell("end")
    assert ranks.end()[0] == [0] * 4


def serve(world_size: int) -> HeartbeatServer:
    return HeartbeatServer(["here"] * world_size)


def test_strangers_are_turned_away_and_nobody_listens_once_all_are_there():
    server = serve(2)
    place = ("127.0.0.1", server.address.port)
    with socket.create_connection(place) as wrong, socket.create_connection(place) as mute:
        wrong.sendall(b'{"token": "guess", "rank": 1, "pid": 1}\n')
        assert wrong.recv(1) == b""
        for noise in (os.urandom(8192), b"[" * 4000 + b"\n", b"7\n", b"\n"):
            with socket.create_connection(place) as stranger, suppress(ConnectionResetError):
                stranger.sendall(noise)
                stranger.settimeout(HANGS)
                assert stranger.recv(1) == b""
        client = Stream(socket.create_connection(place))
        client.send(token=server.address.token, rank=1, pid=1)
        assert mute.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    assert PROBES["TCP_KEEPIDLE"] + PROBES["TCP_KEEPINTVL"] * PROBES["TCP_KEEPCNT"] <= 15  # s, as docs/clusters.md says
    assert PROBES["TCP_USER_TIMEOUT"] <= 15_000  # ms
    for name, value in PROBES.items():  # the kernel notices a machine that vanishes
        assert client.socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
    client.send(goodbye=True)
    client.socket.close()
    server.close()


def test_a_stranger_whose_noise_comes_with_the_last_ranks_hello_does_no_harm():
    server = serve(2)
    place = ("127.0.0.1", server.address.port)
    with socket.create_connection(place) as noisy, socket.create_connection(place) as last:
        client = Stream(last)
        until(lambda: len(server._ranks) == 2)
        looks_away, looks_again, deliver = threading.Event(), threading.Event(), server._deliver
        server._deliver = lambda _: (looks_away.set(), looks_again.wait())  # so that one look at the sockets finds both
        server._send()
        looks_away.wait()
        server._deliver = deliver
        client.send(token=server.address.token, rank=1, pid=1)
        noisy.sendall(b"GET /\n")
        looks_again.set()
        until(lambda: list(server._ranks.values()) == [1])
        client.send(at=(3, "update 1, step"))
        until(lambda: server._statuses[1].steps == 3)
        client.send(goodbye=True)
    server.close()


def test_a_thread_that_breaks_ends_its_process(monkeypatch):
    left = queue.SimpleQueue()
    monkeypatch.setattr(heartbeat, "exit_process", lambda text, code: left.put((text, code)))
    serve(2)._send(at=None)
    text, code = left.get(timeout=HANGS)
    assert "TypeError" in text
    assert code == EXIT_FAULT


def test_a_rank_that_is_slow_to_go_does_not_take_rank_0_for_dead(monkeypatch):
    left = []
    monkeypatch.setattr(heartbeat, "exit_process", lambda text, code: left.append(text))
    monkeypatch.setattr(heartbeat, "LEAVE_SECONDS", 0.1)
    server = serve(2)
    client = HeartbeatClient(1, ["here"] * 2, "127.0.0.1", server.address, reports=True)
    until(lambda: len(server._statuses) == 2)
    server.close()
    for stream in server._streams.values():
        stream.socket.shutdown(socket.SHUT_WR)  # as the end of its process does
    until(lambda: client._stream.socket not in {key.fileobj for key in client._selector.get_map().values()})
    assert client._thread.is_alive()
    client.close()
    until(lambda: not client._thread.is_alive() and not server._thread.is_alive())
    assert left == []


def until(condition) -> None:
    deadline = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_1024_ranks_are_tied_and_send_a_few_messages_a_second():
    server = serve(1024)
    clients = []
    for rank in range(1, 1024):
        clients.append(Stream(socket.create_connection(("127.0.0.1", server.address.port))))
        clients[-1].send(token=server.address.token, rank=rank, pid=rank)
    until(lambda: len(server._statuses) == 1024)
    assert server._period >= 4  # s: so many messages a second, whatever the number of ranks
    for client in clients:
        client.send(at=(5, "update 1, step"))
    until(lambda: {status.steps for status in server._statuses.values()} == {0, 5})
    for client in clients:
        client.send(goodbye=True)
        client.socket.close()
    server.close()
    until(lambda: not server._thread.is_alive())


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
