"""Requests to stop: in one process, and Ctrl-C in a script. And runs that are stopped and killed: how all ranks end,
what they say, and that a resumed run is the same run. Ranks are real processes, forked from one that has imported
everything (`forked_ranks.py`)."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from swep_ds.common.errors import EXIT_LOST, Stopped
from swep_ds.ranks import stopping
from swep_ds.ranks.group import process_group
from swep_ds.ranks.stopping import SIGNALS, StopRequest, StopVote, _over_gloo
from tests.support.bad_input import refused
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import assert_same, complete, ds_config, execute, metrics, prepare

UPDATES, EVERY = 10, 3  # logged after updates 1, 3, 6, 9, 10
SET = [f"train.max_updates={UPDATES}", f"train.log_every={EVERY}", "train.micro_batch_size=4"]
SET += ["train.average=ema", "train.average_decay=0.8", "method.kl_target=1000"]  # what else a checkpoint must hold
INTERRUPTED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests behind its back ignores it
from swep_ds.commands.cli import main
def sleeps():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(3600)
    finally:
        print("cleaned up")
main(sleeps)
"""


def on(name: str, output_dir: str, faults: dict[int, list] | None = None, *settings: str) -> dict:
    return {"name": name, "ranks": 2, "output_dir": output_dir, "set": [*SET, *settings], "faults": faults or {}}


RUNS = [
    on("whole", "whole"),
    on("stop", "stopped", {1: ["update 5, backward", "SIGINT"]}),
    on("kill", "stopped", {0: ["export", "SIGKILL"]}),
    on("finish", "stopped"),
    on("apart", "apart{rank}"),
    on("in save", "in-save", {1: ["update 4, checkpoint", "SIGUSR1"]}, "train.checkpoint_every=4"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, dict[str, dict]]:
    """The folder of all runs, and how they ended."""
    path = tmp_path_factory.mktemp("stopping")
    prepare(path, dropout=0.1, num_hidden_layers=1)
    ds_config(path, 2)
    (path / "runs.json").write_text(json.dumps(RUNS))
    run_script(ROOT / "tests" / "support" / "forked_ranks.py", str(path / "runs.json"))
    return path, json.loads((path / "results.json").read_text())


@pytest.mark.slow
def test_a_run_that_is_stopped_and_then_loses_a_rank_becomes_the_whole_one(finished):
    """A rank dies while it exports; in tests/training/test_resume.py, while a checkpoint is written."""
    folder, ended = finished
    assert ended["whole"]["codes"] == ended["finish"]["codes"] == [0, 0]
    assert ended["stop"]["codes"] == [75, 75]
    said, other = ended["stop"]["said"]
    [line] = [line for line in said.splitlines() if line.startswith("stopped: ")]
    assert line.startswith("stopped: on request (SIGINT) after update 6 of 10; its checkpoint is saved, and the same")
    assert "Traceback" not in said + other
    assert ended["kill"]["codes"] == [-signal.SIGKILL, EXIT_LOST]
    [error] = [line for line in ended["kill"]["said"][1].splitlines() if line.startswith("error: ")]
    assert re.match(r"error: rank 0 \(.*\) died; rank 1 was in ", error)
    run = folder / "stopped"
    assert [line["update"] for line in metrics(run)] == [1, 3, 6, 9, 10]
    assert_same(run, folder / "whole")
    assert complete(run) == [6, 10]
    lines = [json.loads(line) for line in (run / "health.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 3, 6, 9, 10]
    assert all(len(line["forward_seconds"]) == 2 and line["not_finite"] == [] for line in lines)


@pytest.mark.slow
def test_a_request_during_a_checkpoint_needs_no_other_one(finished):
    folder, ended = finished
    assert ended["in save"]["codes"] == [75, 75]
    assert "stopped: on request (SIGUSR1) after update 4 of 10; its checkpoint is saved" in ended["in save"]["said"][0]
    assert complete(folder / "in-save") == [4]
    assert [line["update"] for line in metrics(folder / "in-save")] == [1, 3, 4]


@pytest.mark.slow
def test_ranks_whose_folders_differ_do_not_train(finished):
    folder, ended = finished
    result = ended["apart"]
    assert result["codes"] == [2, 2]
    fault = "not shared (a file that rank 0 wrote there cannot be seen): name a folder"
    assert f"error: --output_dir {folder / 'apart1'}: {fault}" in result["said"][0]
    assert "(on rank 1, host " in result["said"][0]
    assert not [*folder.glob("apart[01]")]


def test_a_wrong_network_interface_is_reported_in_one_line(monkeypatch):
    fault = RuntimeError("Gloo connectFullMesh failed:\n[connect] timed out")
    monkeypatch.setattr("swep_ds.ranks.stopping.dist.new_group", Mock(side_effect=fault))
    assert re.search(r"Gloo .* timed out\): export GLOO_SOCKET_IFNAME on all nodes", refused(_over_gloo))


def test_ctrl_c_ends_a_script_with_one_line():
    ended = execute([sys.executable, "-c", INTERRUPTED], check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "cleaned up\n", "stopped: by SIGINT\n")


@pytest.fixture
def request_(monkeypatch):
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    variables = set(os.environ)
    monkeypatch.setattr(stopping, "request", request)
    with process_group():
        assert os.environ["RANK"] == "0"
        yield request
    assert set(os.environ) == variables  # nothing of the group is left for another one
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(*numbers: int, then: BaseException | None = None) -> None:
    """A training loop in which these signals come."""
    with StopVote() as vote:
        for number in numbers:
            os.kill(os.getpid(), number)
        assert vote.asked() == numbers[0]
        if then:
            raise then


def test_signals_are_requests_in_the_training_loop_of_a_script_only_and_what_a_shell_ignores_is_ignored(request_):
    with pytest.raises(KeyboardInterrupt):
        signalled(signal.SIGINT)
    assert not request_.number
    request_.allowed = True
    with pytest.raises(KeyboardInterrupt):  # what is left over when the loop ends
        signalled(signal.SIGINT)
    assert request_.number == signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    request_.number = 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for a program behind its back
    with StopVote():
        os.kill(os.getpid(), signal.SIGINT)
    assert not request_.number


def test_ranks_that_get_different_signals_agree_on_one_of_them(request_, monkeypatch):
    """The other one of two ranks has had SIGUSR1."""
    combine = {dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.SUM: torch.add}

    def all_reduce(vote, op=dist.ReduceOp.SUM, group=None, async_op=False):
        other = torch.tensor(request_.number and signal.SIGUSR1, dtype=torch.int32)
        vote.copy_(combine[op](vote, other))
        return Mock()

    monkeypatch.setattr(stopping.ranks, "world_size", lambda: 2, raising=False)
    monkeypatch.setattr(stopping.ranks, "on_all_ranks", lambda step: Mock(), raising=False)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    vote = StopVote()
    request_.number = signal.SIGTERM
    assert [vote.asked() for _ in range(3)] == [0, signal.SIGTERM, signal.SIGTERM]  # after the update that it came in


def test_a_second_signal_counts_after_a_while(request_, monkeypatch):
    request_.allowed = True
    with pytest.raises(Stopped):  # the deepspeed command forwards a signal that the ranks have had
        signalled(signal.SIGTERM, signal.SIGUSR1, then=Stopped("of the test"))
    os.kill(os.getpid(), signal.SIGTERM)  # still taken, though the loop has ended: the run's exit code is 75
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.0)
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    os.kill(os.getpid(), signal.SIGUSR1)  # Slurm's, which sends it again while the run saves
    assert raised == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert raised == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
