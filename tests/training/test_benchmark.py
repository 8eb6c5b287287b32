"""What a benchmark of updates says about each method, on a tiny model; no timing is judged."""

import json
import sys

import pytest

from tests.tiny_run import ROOT, ds_config, execute, prepare

BENCH = [sys.executable, str(ROOT / "scripts" / "bench_training.py")]
# (passes, forwards of the model) in an update; Adv-Aug reads its inputs in each of its 5 ascent steps
EXPECTED = {"mle": (1, 1), "adv_aug": (2, 2 + 5), "swep": (2, 2), "swep:joint": (2, 2)}


def bench(folder, *arguments: str, stage: int = 2, check: bool = True):
    recipe, config = str(prepare(folder)), str(ds_config(folder, stage))
    few = ["--updates", "2", "--warmup", "0", "--json", str(folder / "bench.json")]
    return execute([*BENCH, "--recipe", recipe, "--ds_config", config, *few, *arguments], check)


@pytest.mark.slow
def test_methods_are_measured_side_by_side(tmp_path):
    ended = bench(tmp_path, "--methods", *EXPECTED, stage=3)
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    assert {name: (row["passes"], row["forwards"]) for name, row in rows.items()} == EXPECTED
    d = 16  # of the tiny model, as its hidden width: two layers with bias, d -> d -> 2d
    assert {name: row["extra_parameters"] for name, row in rows.items() if row["extra_parameters"]} == {
        "swep": 3 * d**2 + 3 * d,
        "swep:joint": 3 * d**2 + 3 * d,
    }
    assert rows["mle"]["time_ratio"] == rows["mle"]["memory_ratio"] == 1
    assert all(0 < row["state_bytes"] < row["peak_bytes"] for row in rows.values())
    # weights, gradients and Adam's two moments of the noise generator, 4 bytes each; padding and buckets aside
    extra = rows["swep"]["state_bytes"] - rows["mle"]["state_bytes"]
    assert extra >= 4 * 4 * (3 * d**2 + 3 * d)
    assert rows["swep"]["peak_bytes"] < rows["swep:joint"]["peak_bytes"]
    assert all(name in ended.stdout for name in rows)


def test_ssmba_is_measured_as_mle(tmp_path):
    ended = bench(tmp_path, "--methods", "mle", "ssmba", check=False)
    assert (ended.returncode, ended.stderr) == (2, "error: --methods ssmba: ssmba's update is mle's: measure mle\n")


def test_a_method_that_is_none_is_named_with_the_nearest(tmp_path):
    ended = bench(tmp_path, "--methods", "mle", "swap", check=False)
    assert ended.returncode == 2
    assert "'swap' is not a method; did you mean 'swep'?" in ended.stderr
