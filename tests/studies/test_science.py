"""studies/science/gpu.sh: its commands on a CPU, and runs that share a GPU."""

from itertools import pairwise
from pathlib import Path

import pytest

from swep_ds.sweeps.sweep import read_sweep
from tests.benchmarks.test_gpu import Commands, make_inputs
from tests.support.fork_server import ROOT

SCRIPT = ROOT / "studies" / "science" / "gpu.sh"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[Path, Path]:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


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
