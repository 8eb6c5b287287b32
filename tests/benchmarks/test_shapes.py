"""Real shapes beside the plan: a tiny one goes the whole way, and every row is measured and planned."""

import json

from benchmarks.shapes.__main__ import rows
from tests.support.fork_server import run_script


def test_a_tiny_shape_is_trained_resumed_and_compared_with_its_plan(tmp_path):
    said = run_script("benchmarks.shapes", "smoke", "--json", str(tmp_path / "figures.json")).stdout
    first, second = json.loads((tmp_path / "figures.json").read_text())["shapes"]["smoke"]
    assert (first["ds_config"], first["ranks"], second["ds_config"], second["ranks"]) == ("zero1", 1, "zero3", 2)
    assert "loading a checkpoint" in second["peaks"]
    assert (first["saves"], second["saves"]) == (2, 1)
    for run in (first, second):
        measured = rows(run)
        assert list(measured) == ["start", "training", "evaluation", "export", "checkpoint", "disk"]
        size, planned = measured["checkpoint"]
        assert 0.95 < planned / size < 1.05  # memory of so small a model is mostly not the model's
        size, planned = measured["disk"]
        assert 0.9 < planned / size < 1.1
    assert said.count("GiB measured") == 12
