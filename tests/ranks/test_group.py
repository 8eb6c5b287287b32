"""How ranks end when one of them fails: real processes, forked from one that has imported everything."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from swep_ds.common.errors import InputError
from swep_ds.ranks.group import process_group
from tests.support.fork_server import HANGS, run_script
from tests.support.ports import free_port


class OneGpu:
    """An accelerator, of a node with one."""

    device_name = staticmethod(lambda: "gpu")
    device_count = staticmethod(lambda: 1)
    set_device = staticmethod(lambda device: None)
    communication_backend_name = staticmethod(lambda: "gloo")


def become(case: str, rank: int) -> None:
    """A rank of three, until it ends."""
    from swep_ds.ranks import group

    if case == "few devices" and rank:  # their node has lost some; rank 0 is on another
        group.get_accelerator = OneGpu
    if case == "no way to rank 0" and rank == 2:

        def refuse(*_, **__):
            raise ConnectionRefusedError("of the test")

        group.HeartbeatClient = refuse
    group.ALONE_SECONDS = 0 if case == "alone" else HANGS
    with group.process_group():
        assert dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout == timedelta(hours=6)
        if case == "alone" and rank == 1:
            raise InputError("seen by one rank")
        while case == "alone":
            group.gather("of the others")


def fork(folder: Path) -> None:
    """Makes each case; `results.json` has the ranks' exit codes and what they said."""
    from swep_ds.commands.cli import main

    results = {}
    for case in CASES:
        port, children = str(free_port()), []
        for rank in range(3):
            children.append(os.fork())
            if not children[-1]:
                os.dup2(os.open(folder / f"{case}.{rank}", os.O_CREAT | os.O_WRONLY), 2)
                local = str(max(0, rank - 1)) if case == "few devices" else str(rank)
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": local, "WORLD_SIZE": "3"}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                main(lambda case=case, rank=rank: become(case, rank))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        results[case] = [codes, [(folder / f"{case}.{rank}").read_text() for rank in range(3)]]
    (folder / "results.json").write_text(json.dumps(results))


CASES = ("few devices", "no way to rank 0", "alone")


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, tuple[list[int], list[str]]]:
    folder = tmp_path_factory.mktemp("distributed")
    run_script(Path(__file__), str(folder))
    return json.loads((folder / "results.json").read_text())


pytestmark = pytest.mark.slow


def test_a_process_group_of_the_caller_is_refused_and_stays():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(InputError, match="has a process group already"), process_group():
            pytest.fail("joined it")
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_rank_without_a_device_is_reported_by_all(ended):
    codes, said = ended["few devices"]
    assert codes == [2, 2, 2]
    reported = "error: rank 2 wants device 1 of a node with 1: start fewer ranks\n"
    assert said == [reported, reported, ""]


def test_without_a_gpu_the_cpu_is_named(monkeypatch):
    class NoGpu(OneGpu):
        device_count = staticmethod(lambda: 0)

    monkeypatch.setattr("swep_ds.ranks.group.get_accelerator", NoGpu)
    said = r"device 0 of a node with 0: for a run on the CPU set DS_ACCELERATOR=cpu$"
    with pytest.raises(InputError, match=said), process_group():
        pytest.fail("joined it")


def test_a_rank_that_cannot_reach_rank_0_is_reported_and_the_others_leave(ended):
    codes, said = ended["no way to rank 0"]
    assert codes == [2, 2, 2]
    assert "port " in said[0]
    assert said[0].endswith(f"on all ports (on rank 2, host {os.uname().nodename})\n")
    assert said[1:] == ["", ""]


def test_a_rank_that_ends_alone_ends_the_others(ended):
    codes, said = ended["alone"]
    assert codes == [1, 1, 1]
    assert "InputError: seen by one rank" in said[1]
    assert "ended with InputError: seen by one rank in set-up\n" in said[0]


def test_code_that_ends_the_process_during_a_run_is_an_error_not_success():
    with pytest.raises(InputError, match=r"^sys\.exit\(0\) was called during the run: remove it"), process_group():
        sys.exit(0)
    assert not dist.is_initialized()


if __name__ == "__main__":
    fork(Path(sys.argv[1]))
