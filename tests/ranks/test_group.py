"""How ranks end when one of them fails: real processes, forked from one that has imported everything. And a fault in
writing, on whichever rank, is one exception on all of them."""

import json
import os
import pickle
import re
import socket
import sys
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from safetensors import SafetensorError

from swep_ds.common.errors import InputError, RunExit, WriteFailed
from swep_ds.ranks import group
from swep_ds.ranks.group import process_group
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0
from tests.support.fork_server import HANGS, free_port, run_script


def become(case: str, rank: int) -> None:
    """A rank of three, until it ends."""
    from swep_ds.ranks import group

    if case == "missing":
        if rank == 2:
            return
        group.JOIN = timedelta(seconds=3)
        group.QUIET_SECONDS = 0.1
    group.ALONE_SECONDS = 0 if case == "alone" else HANGS
    with group.process_group():
        assert dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout == timedelta(hours=6)
        group.progress("update 2, step")
        if rank == 1:
            raise InputError("seen by one rank") if case == "alone" else ZeroDivisionError("of the test")
        while True:
            group.gather("of the others")


def fork(folder: Path) -> None:
    """Makes each case; `results.json` has the ranks' exit codes and what they said."""
    from swep_ds.commands.cli import main

    results = {}
    for case in ("missing", "alone", "raise"):
        port = str(free_port())
        children = []
        for rank in range(3):
            children.append(os.fork())
            if not children[-1]:
                os.dup2(os.open(folder / f"{case}.{rank}", os.O_CREAT | os.O_WRONLY), 2)
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                main(lambda case=case, rank=rank: become(case, rank))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        results[case] = [codes, [(folder / f"{case}.{rank}").read_text() for rank in range(3)]]
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    fork(Path(sys.argv[1]))


@pytest.mark.slow
def test_one_rank_that_is_missing_or_fails_ends_all(tmp_path):
    run_script(Path(__file__), str(tmp_path))
    ended = json.loads((tmp_path / "results.json").read_text())
    codes, said = ended["missing"]
    assert codes == [2, 2, 0]
    place = r"MASTER_ADDR 127\.0\.0\.1, MASTER_PORT \d+"
    assert re.search(rf"^waiting for all 3 ranks to reach {place}, 0 minutes at most$", said[0], re.MULTILINE)
    assert re.search(rf"^error: {place}: the ranks cannot form a process group \(.*2/3.*RANK", said[0], re.MULTILINE)
    for case, error in (("alone", "InputError: seen by one rank"), ("raise", "ZeroDivisionError: of the test")):
        codes, said = ended[case]
        assert codes == [1, 1, 1]
        assert error in said[1]
        assert f"ended with {error} in update 2, step\n" in said[0]
        assert "Traceback" not in said[0]


def refused(said: str) -> None:
    with pytest.raises(InputError, match=said), process_group():
        pytest.fail("joined it")


def start_as(monkeypatch, **variables: str) -> None:
    for name, value in ({"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"} | variables).items():
        monkeypatch.setenv(name, value)


def test_a_process_group_of_the_caller_is_refused_and_stays():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        refused("has a process group already")
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_rank_without_a_device_says_so(monkeypatch):
    start_as(monkeypatch, RANK="3", LOCAL_RANK="2", WORLD_SIZE="4")
    for devices, fix in ((1, "start fewer ranks"), (0, "for a run on the CPU set DS_ACCELERATOR=cpu")):
        gpus = Mock(**{"device_name.return_value": "gpu", "device_count.return_value": devices})
        monkeypatch.setattr("swep_ds.ranks.group.get_accelerator", lambda gpus=gpus: gpus)
        refused(rf"^rank 3 wants device 2 of a node with {devices}: {fix}$")


def test_a_port_that_another_run_listens_on_is_named(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        start_as(monkeypatch, RANK="0", WORLD_SIZE="1", MASTER_PORT=port)
        refused(rf"MASTER_PORT {port}: the ranks cannot form a process group .*address already in use.* another port")


def on_rank(monkeypatch, rank: int, others: list[RunExit | None]) -> None:
    monkeypatch.setattr(group, "rank", lambda: rank)
    monkeypatch.setattr(group, "gather", lambda mine: [*others, pickle.loads(pickle.dumps(mine))])
    monkeypatch.setattr(group, "_hosts", list("abcd"))


def test_file_reason_rank_and_host_in_one_line(monkeypatch):
    """A fault in a file of weights; a full disk: tests/training/test_checkpoints.py."""
    on_rank(monkeypatch, 3, [None, None, None])
    with pytest.raises(WriteFailed) as caught:
        write_on_all_ranks(Mock(side_effect=SafetensorError("Error: I/O error:\nfull")), Path("run"))
    said = "cannot write run: Error: I/O error: full: make room or change permissions, and start again"
    assert str(caught.value) == f"{said} (on rank 3, host d)"


@pytest.mark.parametrize("fault", [WriteFailed("cannot write x"), InputError("tracking.to: x")])
def test_the_fault_of_any_rank_is_raised_on_every_rank_with_its_place(monkeypatch, fault):
    for others, step, place in (
        ([fault], None, r" \(on rank 0, host a\)"),
        ([None], Mock(side_effect=fault), r" \(on rank 1, host b\)"),
        ([fault], Mock(side_effect=fault), ""),  # the same on all: no place
    ):
        on_rank(monkeypatch, 1, others)
        with pytest.raises(type(fault), match=f"^{fault}{place}$"):
            write_on_all_ranks(step, Path("run"))
    with pytest.raises(KeyError):  # a fault of the program
        write_on_all_ranks(Mock(side_effect=KeyError("x")), Path("run"))


def test_only_rank_0_writes_what_is_for_it(monkeypatch, tmp_path):
    for rank, value in ((1, None), (0, 1)):
        on_rank(monkeypatch, rank, [])
        assert write_on_rank0(lambda: (tmp_path / "file").write_text("x"), tmp_path) == value
        assert (tmp_path / "file").exists() == (rank == 0)


def test_rank_0_says_once_what_a_long_step_read_or_wrote(monkeypatch, capsys):
    def steps(rank: int) -> str:
        clock = iter([0.0, 1.9, 10.0, 13.0, 20.0])
        monkeypatch.setattr("swep_ds.ranks.group.time.monotonic", lambda: next(clock))
        monkeypatch.setattr(group, "rank", lambda: rank)
        for name in ("short", "long"):
            with group.step(name, lambda: 2_500_000_000):
                pass
        with pytest.raises(OSError, match="full"), group.step("failed", lambda: 1):
            raise OSError("full")
        return capsys.readouterr().out

    assert steps(0) == "long: 2.50 GB in 3 s\n"
    assert steps(1) == ""
