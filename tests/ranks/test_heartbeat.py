"""Connected ranks, as real processes that import no PyTorch; tests/ranks/test_stopping.py has the same in trainings."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from swep_ds.common.errors import EXIT_INTERRUPTED, EXIT_LOST
from swep_ds.ranks.heartbeat import PROBES, accept, connect, listen
from tests.support.fork_server import HANGS, ROOT

HOSTS = ("north", "north", "south", "south")
# Called as: rank file-of-the-port; then runs lines from standard input, and says when it has run one
RANK = f"""
import sys, threading, time
from pathlib import Path
from swep_ds.ranks import heartbeat
rank, file, hosts = int(sys.argv[1]), Path(sys.argv[2]), {HOSTS!r}
names = [f"rank {{rank}} ({{host}})" for rank, host in enumerate(hosts)]
if rank == 0:
    listener = heartbeat.listen(4)
    file.with_suffix(".new").write_text(str(listener.getsockname()[1]))
    file.with_suffix(".new").rename(file)
    peers = heartbeat.accept(listener, 4)
else:
    while not file.exists():
        time.sleep(0.01)
    peers = heartbeat.connect(rank, "localhost", int(file.read_text()))
beat = heartbeat.Heartbeat(rank, names, peers, reports=rank in (0, 2))
print("here", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
beat.close()
"""


@pytest.fixture
def ranks(tmp_path) -> Iterator[list[subprocess.Popen]]:
    """Four processes, of two machines by name."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options["env"] = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RANK]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path / "port")], **options) for rank in range(4)]
    for process in processes:
        assert process.stdout.readline() == "here\n"
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def tell(line: str, processes: list[subprocess.Popen]) -> None:
    """Returns when they have run the line."""
    for process in processes:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout.readline() == "done\n"


def ended(processes: list[subprocess.Popen]) -> tuple[list[int], list[str]]:
    """Exit codes and what the ranks said on stderr."""
    said = [process.stderr.read() for process in processes]
    return [process.wait(HANGS) for process in processes], said


@pytest.mark.parametrize(
    ("killed", "tellers"),  # one on each machine, which says it once
    [
        (3, {0: "rank 3 (south) died; rank 0", 2: "rank 3 (south) died; rank 0"}),
        (0, {1: "rank 0 (north) died; rank 1", 2: "rank 0 (north) died; rank 2"}),
    ],
)
def test_a_killed_rank_is_named_once_on_each_machine_and_all_end(ranks, killed, tellers):
    tell("beat.progress('update 41, backward')", ranks)
    if killed == 3:  # an exception that the death caused is not reported
        tell("heartbeat.CAUSE_SECONDS = 3600", ranks[1:2])
        tell("threading.Thread(target=beat.fail, args=(ValueError('closed by peer'),)).start()", ranks[1:2])
    ranks[killed].kill()
    codes, said = ended(ranks)
    assert codes == [-signal.SIGKILL if rank == killed else EXIT_LOST for rank in range(4)]
    lines = {rank: f"error: {text} was in update 41, backward\n" for rank, text in tellers.items()}
    assert said == [lines.get(rank, "") for rank in range(4)]


def test_ctrl_c_on_one_rank_ends_all_without_a_traceback(ranks):
    ranks[3].stdin.write("beat.fail(KeyboardInterrupt())\n")
    ranks[3].stdin.flush()
    codes, said = ended(ranks)
    assert codes == [EXIT_INTERRUPTED] * 4
    assert said == ["stopped: by SIGINT to rank 3 (south)\n", "", "stopped: by SIGINT to rank 3 (south)\n", ""]


def test_ranks_say_once_where_they_have_been_for_long(ranks):
    tell("heartbeat.STALL_SECONDS = 1", ranks)
    for rank, step in ((1, "update 5, data"), (0, "update 5, step")):
        tell(f"beat.progress({step!r})", [ranks[rank]])
        warning = ranks[rank].stderr.readline()
        assert re.fullmatch(rf"warning: rank {rank} \(north\) has been in {step} for \d+ s\n", warning)
    for process in ranks:
        process.stdin.close()  # ends it
        process.stdin = None
    assert ended(ranks) == ([0] * 4, [""] * 4)


def test_the_kernel_notices_a_vanished_machine_within_15_seconds():
    """As docs/clusters.md says."""
    assert PROBES == {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 15_000}
    listener = listen(2)
    peers = connect(1, "localhost", listener.getsockname()[1]) | accept(listener, 2)
    for connection in peers.values():
        with socket.socket(fileno=os.dup(connection.fileno())) as watched:
            for name, value in PROBES.items():
                assert watched.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        connection.close()
