"""A real Slurm of two nodes: a training that is asked to stop and resumes, and a sweep, both at the same time."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.support.cluster import NODES, CannotStart, cluster
from tests.support.fork_server import HANGS, ROOT, run_script
from tests.support.tiny_run import ds_config, metrics, prepare

pytestmark = pytest.mark.slow


class Jobs:
    """Submits jobs to the cluster from a folder outside the repository, and waits for them."""

    def __init__(self, folder: Path, env: dict[str, str]):
        self.folder = folder
        self.env = env | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "31000"}  # a rank's

    def command(self, *words: str) -> str:
        ended = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=HANGS)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def submit(self, kind: str, *words: str) -> str:
        """Returns the job's number."""
        words = ("submit", kind, "--cpu_ranks_per_node", "1", *words)
        ended = run_script("swep_ds", *words, cwd=self.folder, env=self.env)
        return re.match(r"job (\d+), ", ended.stdout)[1]

    def wait(self, condition, deadline: float, pause: float = 0.2) -> None:
        while not condition():
            logs = sorted(self.folder.rglob("*.log"))
            assert time.monotonic() < deadline, "\n".join(f"{file}:\n{file.read_text()[-3000:]}" for file in logs)
            time.sleep(pause)


def make(jobs: Jobs) -> None:
    deadline = time.monotonic() + HANGS
    # so many updates that the request to stop comes long before the last; the only checkpoint is the requested one
    sets = ["--set", "train.max_updates=100", "--set", "train.epochs=60", "--set", "train.micro_batch_size=4"]
    options = ["--ds_config", str(ds_config(jobs.folder, 2)), "--recipe", "recipe.yaml", "--output_dir", "stopped"]
    stopped = jobs.submit("train", "--nodes", "2", "--", *options, *sets)
    # the first thing to do: this training ends within seconds
    file = jobs.folder / "stopped" / "metrics.jsonl"
    jobs.wait(lambda: file.is_file() and file.read_bytes().count(b"\n") > 20, deadline)
    jobs.command("scancel", "--signal=USR1", stopped)
    sweep = {"recipe": "recipe.yaml", "set": {"train.max_updates": 2}, "variants": {"MLE": {"method.name": "mle"}}}
    (jobs.folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    options = ["sweep.yaml", "--ds_config", str(ds_config(jobs.folder, 0)), "--output_dir", "cells"]
    cells = jobs.submit("sweep", "--", *options)
    listed = ("squeue", "--noheader", "--format=%A %F")
    jobs.wait(lambda: not {stopped, cells} & {*jobs.command(*listed).split()}, deadline, pause=1)


def test_a_stopped_training_on_two_nodes_resumes_and_a_sweep_makes_a_run_per_array_task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")  # a short name: Slurm makes sockets below it
    prepare(folder, dropout=0.1, num_hidden_layers=1)
    (folder / "cluster").mkdir()
    try:
        with cluster(folder / "cluster") as env:
            make(Jobs(folder, env))
    except CannotStart as reason:
        pytest.skip(f"no Slurm here: {reason}")
    assert json.loads((folder / "stopped" / "results.json").read_text())["world_size"] == 2
    [file] = folder.glob("stopped.slurm-*.log")
    first, again = file.read_text().split(f"start 2, on {','.join(NODES)}\n")
    assert f"start 1, on {','.join(NODES)}\n" in first
    assert "\n0: training swep" in first
    assert "swep-ds: exit code 75: stopped on request: restart 1 of at most 20\n" in first
    [update] = re.findall(r"resuming from \S+: (\d+) of 100 updates", again)
    assert 20 < int(update) < 100
    assert again.endswith("swep-ds: done\n")
    updates = [line["update"] for line in metrics(folder / "stopped")]
    assert updates == sorted(set(updates))
    assert updates[-1] == 100
    [log] = folder.glob("cells/slurm-*_0.log")
    assert log.read_text().endswith("swep-ds: done\n")
    assert [file.parent.name for file in folder.glob("cells/*/results.json")] == ["mle-seed0"]
