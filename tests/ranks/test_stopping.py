"""Runs that are stopped and killed: how all ranks end, what they say, and that a resumed run is the same run. Ranks are
real processes, forked from one that has imported everything (`forked_ranks.py`)."""

import json
import re
import signal
from pathlib import Path

import pytest

from swep_ds.common.errors import EXIT_LOST, InputError
from swep_ds.ranks.stopping import _over_gloo
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import assert_same, complete, ds_config, metrics, prepare

pytestmark = pytest.mark.slow

UPDATES, EVERY = 10, 3  # logged after updates 1, 3, 6, 9, 10
SET = [f"train.max_updates={UPDATES}", f"train.log_every={EVERY}", "train.micro_batch_size=4"]
SET += ["train.average=ema", "train.average_decay=0.8", "method.kl_target=1000"]  # what else a checkpoint must hold
KILLED = -signal.SIGKILL


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
def folder(tmp_path_factory) -> Path:
    """The folder of all runs."""
    path = tmp_path_factory.mktemp("stopping")
    prepare(path, dropout=0.1)
    ds_config(path, 2)
    (path / "runs.json").write_text(json.dumps(RUNS))
    run_script(ROOT / "tests" / "support" / "forked_ranks.py", str(path / "runs.json"))
    return path


@pytest.fixture(scope="module")
def ended(folder) -> dict[str, dict]:
    return json.loads((folder / "results.json").read_text())


def test_a_run_that_is_stopped_and_then_loses_a_rank_becomes_the_whole_one(ended, folder):
    """A rank dies while it exports; in tests/training/test_resume.py, while a checkpoint is written."""
    assert ended["whole"]["codes"] == ended["finish"]["codes"] == [0, 0]
    assert ended["stop"]["codes"] == [75, 75]
    said, other = ended["stop"]["said"]
    [line] = [line for line in said.splitlines() if line.startswith("stopped: ")]
    assert line.startswith("stopped: on request (SIGINT) after update 6 of 10; its checkpoint is saved, and the same")
    assert "Traceback" not in said + other
    assert ended["kill"]["codes"] == [KILLED, EXIT_LOST]
    [error] = [line for line in ended["kill"]["said"][1].splitlines() if line.startswith("error: ")]
    assert re.match(r"error: rank 0 \(.*\) died; rank 1 was in ", error)
    run = folder / "stopped"
    assert [line["update"] for line in metrics(run)] == [1, 3, 6, 9, 10]
    assert_same(run, folder / "whole")
    assert complete(run) == [6, 10]
    lines = [json.loads(line) for line in (run / "health.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 3, 6, 9, 10]
    assert all(len(line["forward_seconds"]) == 2 and line["not_finite"] == [] for line in lines)


def test_a_request_during_a_checkpoint_needs_no_other_one(ended, folder):
    assert ended["in save"]["codes"] == [75, 75]
    assert "stopped: on request (SIGUSR1) after update 4 of 10; its checkpoint is saved" in ended["in save"]["said"][0]
    assert complete(folder / "in-save") == [4]
    assert [line["update"] for line in metrics(folder / "in-save")] == [1, 3, 4]


def test_ranks_whose_folders_differ_do_not_train(ended, folder):
    result = ended["apart"]
    assert result["codes"] == [2, 2]
    fault = "not shared (a file that rank 0 wrote there cannot be seen) on rank 1, host "
    assert f"error: --output_dir {folder / 'apart0'}: {fault}" in result["said"][0]
    assert not [*folder.glob("apart[01]")]


def test_a_wrong_network_interface_is_reported_in_one_line(monkeypatch):
    def refuse(**_) -> None:
        raise RuntimeError("Gloo connectFullMesh failed:\n[connect] timed out")

    monkeypatch.setattr("swep_ds.ranks.stopping.dist.new_group", refuse)
    with pytest.raises(InputError, match=r"Gloo .* timed out\): export GLOO_SOCKET_IFNAME on all nodes") as caught:
        _over_gloo()
    assert "\n" not in str(caught.value)
