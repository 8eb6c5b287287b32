"""Ranks that meet, as threads of this process: one is missing, started twice, or at the port of another program."""

import itertools
import socket
import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from swep_ds.common.errors import InputError
from swep_ds.ranks import rendezvous
from swep_ds.ranks.group import free_port
from swep_ds.ranks.launch import Launch

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(rendezvous, "_meetings", itertools.repeat(0))
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.01)


def launch(rank: int, world: int, job: str | None = None) -> Launch:
    return Launch(rank, rank, world, HERE, 1, job)


def meet(*launches: Launch, port: int | None = None, faults=None, devices=None) -> list[str]:
    """The error that each ended with; empty if it met the others. The stores live until all have ended."""
    port, ends, stores = port or free_port(), [""] * len(launches), []

    def run(number: int, launch: Launch) -> None:
        try:
            stores.append(
                rendezvous.meet(launch, HERE, port, (faults or {}).get(number, ""), devices and devices[number])
            )
        except InputError as error:
            ends[number] = str(error)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(launches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def test_ranks_meet():
    assert meet(*(launch(rank, 3) for rank in range(3))) == ["", "", ""]


def test_a_fault_of_one_is_that_of_all():
    ends = meet(*(launch(rank, 3) for rank in range(3)), faults={2: "no device"})
    assert ends == ["no device"] * 3


def test_ranks_that_share_a_device_are_reported_at_once():
    ends = meet(*(launch(rank, 3) for rank in range(3)), devices=["GPU-a", "GPU-b", "GPU-a"])
    assert all(end.startswith("ranks 0 and 2 have the same device (host ") for end in ends)
    assert meet(*(launch(rank, 2) for rank in range(2)), devices=["GPU-a", "GPU-b"]) == ["", ""]


def test_two_processes_of_one_rank_are_reported_at_once():
    ends = meet(*(launch(rank, 3) for rank in (0, 1, 1)))
    assert all(end.startswith("RANK: two processes have 1 (host ") for end in ends)


def test_other_numbers_of_ranks_are_reported_at_once():
    ends = meet(launch(0, 2), launch(1, 3))
    assert all(end.startswith("WORLD_SIZE: ") for end in ends)


def test_a_rank_that_does_not_come_is_named(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "QUIET_SECONDS", 0.0)
    for seconds in (3, 30, 300):  # the two that come must meet in it; on a busy machine that takes longer
        monkeypatch.setattr(rendezvous, "JOIN", timedelta(seconds=seconds))
        ends = meet(launch(0, 4), launch(2, 4))
        if named := any(" for ranks 1, 3 of 4: start all ranks" in end for end in ends):
            break
    assert named
    assert "waiting for rank" in capsys.readouterr().err
    monkeypatch.setattr(rendezvous, "JOIN", timedelta(seconds=0.3))
    [alone] = meet(launch(1, 2))
    assert " for rank 0 at MASTER_ADDR 127.0.0.1, MASTER_PORT " in alone


def test_a_port_in_use_is_reported_by_rank_0():
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        [end] = meet(launch(0, 2), port=port)
    assert end.startswith(f"MASTER_PORT {port}: another process listens on it, such as another run: choose a free port")


def test_a_program_that_is_not_rank_0_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.5)
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        [end] = meet(launch(1, 2), port=port)
    assert end.startswith(f"MASTER_ADDR {HERE}, MASTER_PORT {port}: what listens there is no rank 0 (no answer within")


def test_a_run_that_is_there_already_is_left_alone():
    port, first = free_port(), []
    threads = [
        threading.Thread(target=lambda rank=rank: first.append(rendezvous.meet(launch(rank, 2), HERE, port, "")))
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(first) == 2
    [end] = meet(launch(1, 2), port=port)
    assert "another run, or more than 2 ranks, use it: choose a free port" in end


def test_a_second_start_by_torchrun_finds_none_of_the_first(monkeypatch):
    """Its agent serves the store of all starts."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    agent = dist.TCPStore(HERE, free_port(), is_master=True, wait_for_workers=False)
    for start in "01":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", start)
        assert meet(launch(0, 2), launch(1, 2), port=agent.port) == ["", ""]


def test_ranks_of_another_job_do_not_mix():
    """Two `deepspeed` commands at once: one's rank 1 reaches the other's rank 0."""
    ends = meet(launch(0, 2, "parent 5"), launch(1, 2, "parent 5"), launch(1, 2, "parent 6"))
    assert ends[:2] == ["", ""]
    assert "rank 0 of another run" in ends[2]


def test_an_address_of_another_machine_is_reported_by_rank_0(monkeypatch):
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.2)
    with pytest.raises(InputError, match=r"^MASTER_ADDR 192\.0\.2\.1: rank 0 cannot reach itself there"):
        rendezvous.meet(launch(0, 1), "192.0.2.1", free_port(), "")
