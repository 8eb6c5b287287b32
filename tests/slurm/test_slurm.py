"""A real Slurm of two nodes: a training to its end, one that is asked to stop, and a sweep, all at the same time."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support.cluster import NODES, CannotStart, cluster
from tests.support.fork_server import HANGS, ROOT
from tests.support.tiny_run import ds_config, metrics, prepare

pytestmark = pytest.mark.slow

SUBMIT = ROOT / "scripts" / "slurm" / "submit.py"
# so many updates that the request to stop comes long before the last; the only checkpoint is the requested one
SETTINGS = ["train.max_updates=200", "train.epochs=60", "train.micro_batch_size=4"]
EXACT = ("update", "loss", "nll_clean", "nll_noisy", "kl_per_token", "learning_rate")


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
        command = [sys.executable, str(SUBMIT), kind, "--cpu_ranks_per_node", "1", *words]
        return re.match(r"job (\d+), ", self.command(*command))[1]

    def train(self, output: str, *words: str, nodes: int = 2) -> str:
        sets = [part for setting in SETTINGS for part in ("--set", setting)]
        options = ["--ds_config", str(ds_config(self.folder, 2)), "--recipe", "recipe.yaml", "--output_dir", output]
        return self.submit("train", "--nodes", str(nodes), *words, "--", *options, *sets)

    def wait(self, condition, deadline: float) -> None:
        while not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def ended(self, *jobs: str) -> bool:
        listed = self.command("squeue", "--noheader", "--format=%A %F").split()
        return not set(jobs) & set(listed)

    def said(self) -> str:
        """The end of every log."""
        return "\n".join(f"{file}:\n{file.read_text()[-3000:]}" for file in sorted(self.folder.rglob("*.log")))


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Jobs:
    """All jobs, after they have ended."""
    folder = tmp_path_factory.mktemp("slurm")
    prepare(folder, dropout=0.1)
    (folder / "cluster").mkdir()
    try:
        with cluster(folder / "cluster") as env:
            jobs = Jobs(folder, env)
            make(jobs)
            return jobs
    except CannotStart as reason:
        pytest.skip(f"no Slurm here: {reason}")


def make(jobs: Jobs) -> None:
    deadline = time.monotonic() + HANGS
    stopped = jobs.train("stopped")
    # the first thing to do: this training ends within seconds
    file = jobs.folder / "stopped" / "metrics.jsonl"
    jobs.wait(lambda: file.is_file() and file.read_bytes().count(b"\n") > 20, deadline)
    jobs.command("scancel", "--signal=USR1", stopped)
    whole = jobs.train("whole")
    variants = {"MLE": {"method.name": "mle"}, "Bad": {"data.train": "gone.json"}}
    sweep = {"recipe": "recipe.yaml", "set": {"train.max_updates": 2}, "variants": variants}
    (jobs.folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    options = ["sweep.yaml", "--ds_config", str(ds_config(jobs.folder, 0)), "--output_dir", "cells"]
    cells = jobs.submit("sweep", "--parallel", "2", "--", *options)
    jobs.wait(lambda: jobs.ended(stopped, whole, cells), deadline)


def log(jobs: Jobs, name: str) -> str:
    (file,) = jobs.folder.glob(f"{name}.slurm-*.log")
    return file.read_text()


def test_a_training_on_two_nodes_runs_to_its_end(done):
    results = json.loads((done.folder / "whole" / "results.json").read_text())
    assert results["world_size"] == 2
    said = log(done, "whole")
    assert f"start 1, on {','.join(NODES)}\n" in said
    assert said.endswith("swep-ds: done\n")
    assert "\n0: training swep" in said


def test_a_training_that_was_asked_to_stop_resumes_and_ends_bit_identical(done):
    whole, stopped = done.folder / "whole", done.folder / "stopped"
    said = log(done, "stopped")
    assert "swep-ds: exit code 75: stopped on request: restart 1 of at most 20\n" in said
    again = said.partition(f"start 2, on {','.join(NODES)}\n")[2]
    assert re.search(r"resuming from \S+: (\d+) of 200 updates", again)
    assert said.endswith("swep-ds: done\n")
    mine, other = metrics(stopped), metrics(whole)
    assert [{name: line[name] for name in EXACT} for line in mine] == [
        {name: line[name] for name in EXACT} for line in other
    ]
    for name in ("model/model.safetensors", "predictions/test.json"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    assert [json.loads((run / "results.json").read_text())["eval"] for run in (stopped, whole)]


def test_a_sweep_makes_a_run_per_array_task_and_names_what_failed(done):
    folder = done.folder / "cells"
    assert sorted(file.parent.name for file in folder.glob("*/results.json")) == ["mle-seed0"]
    good, bad = (next(folder.glob(f"slurm-*_{number}.log")).read_text() for number in range(2))
    assert good.endswith("swep-ds: done\n")
    assert bad.endswith("swep-ds: exit code 2: bad input, see the line above: not restarted\n")
    assert "bad-seed0: FAILED, exit code 2: error: data.train: data source 'gone.json': no such file" in bad
    table = [sys.executable, str(ROOT / "scripts" / "sweep.py"), "sweep.yaml", "--output_dir", "cells", "--table"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(table, cwd=done.folder, env=env, capture_output=True, text=True)
    assert "missing: Bad, seed 0: exit code 2: error: data.train: data source 'gone.json'" in ended.stdout
