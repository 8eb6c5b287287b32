"""studies/science/gpu.sh: its commands on a CPU, and runs that share a GPU."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from swep_ds.sweeps.sweep import read_sweep
from tests.benchmarks.test_gpu import Commands, make_inputs, run, stand_in
from tests.support.fork_server import ROOT

SCRIPT = ROOT / "studies" / "science" / "gpu.sh"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[Path, Path]:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def test_a_missing_data_set_is_named_before_the_first_step(tmp_path):
    ended = run([SCRIPT, tmp_path, tmp_path, tmp_path / "out"])
    assert ended.returncode == 2
    assert f"DATA {tmp_path}: has no " in ended.stderr
    assert not (tmp_path / "out").exists()


def test_the_commands_of_the_experiment(tmp_path, inputs):
    commands = Commands()
    commands.run(tmp_path, SCRIPT, *inputs, tmp_path / "out")
    assert [Path(words[3]).stem for words in commands] == ["e1", "e2"]
    for _, _, _, sweep, *options in commands:
        overrides = [value for name, value in pairwise(options) if name == "--set"]
        _, cells = read_sweep(sweep, tmp_path, overrides)
        assert {cell.seed for cell in cells} == {100}
        data = cells[0].recipe.data
        assert all(Path(source).is_file() for source in (data.train, *data.eval.values()))


MPS = """#!/bin/sh
echo "$CUDA_MPS_PIPE_DIRECTORY ${1:-$(cat)}" >>"$0.calls"
[ -z "$1" ] && echo 4711
exit 0
"""


@pytest.mark.parametrize("works", [True, False])
def test_runs_share_the_gpu_by_mps_if_it_works(tmp_path, inputs, works):
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(MPS)
    control.chmod(0o755)
    environment = {"REHEARSE": "", "JOBS": "3", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with stand_in(tmp_path, lambda words: (int(not works and "ones" in words[-1]), "")) as python:
        environment |= {"PYTHON": str(python), "CUDA_MPS_PIPE_DIRECTORY": ""}
        ended = run([SCRIPT, *inputs, tmp_path / "out"], **environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ("MPS: 3 runs at a time share" if works else "3 runs at a time take turns") in ended.stdout
    made = [line.split(maxsplit=1) for line in Path(f"{control}.calls").read_text().splitlines()]
    asked = ["-d", "get_server_list", "quit -t 5"] if works else ["-d", "quit -t 5"]
    assert [words for _, words in made] == asked
    [folder] = {folder for folder, _ in made}
    assert not Path(folder).exists()
