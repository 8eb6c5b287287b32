"""scripts/train.py: how it starts and ends, and the one line it says about bad input."""

import json
import re
from pathlib import Path

import pytest
import yaml

from swep_ds.pipeline.inputs import input_checksums
from swep_ds.pipeline.recipe import Recipe
from tests.support.bad_input import error_line
from tests.support.fork_server import python_stand_in, run_script
from tests.support.tiny_run import ROOT, TORCHRUN, complete, ds_config, execute, losses, prepare

TRAIN = ROOT / "scripts" / "train.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("script")).parent


def arguments(folder: Path, output: str, *overrides: str, stage: int = 2) -> list[str]:
    sets = [part for override in overrides for part in ("--set", override)]
    config, recipe = str(ds_config(folder, stage)), str(folder / "recipe.yaml")
    return ["--ds_config", config, "--recipe", recipe, "--output_dir", str(folder / output), *sets]


def test_bad_data_ends_all_ranks_with_one_line(folder):
    (folder / "bad.json").write_text("{")
    bad = arguments(folder, "bad", f"data.train={folder / 'bad.json'}")
    ended = run_script(TRAIN, *bad, ranks=2, check=False)
    assert ended.returncode == 2
    assert "bad.json: not JSON (" in error_line(ended.stderr)
    assert "task: extractive" not in ended.stdout  # no recipe, of a run that does not begin
    assert not (folder / "bad").exists()


# Good ends, and a bad one


@pytest.mark.slow
def test_plain_python_and_torchrun_make_the_same_run(folder):
    run_script(TRAIN, *arguments(folder, "python", "train.max_updates=2", "train.micro_batch_size=4"))
    split = arguments(folder, "torchrun", "train.max_updates=2", "train.micro_batch_size=2")
    options = ["--standalone", "--nproc_per_node", "2", "--no-python"]
    ended = execute([str(TORCHRUN), *options, python_stand_in(), "-u", str(TRAIN), *split])
    assert losses(folder / "torchrun") == pytest.approx(losses(folder / "python"), rel=1e-5)
    promised = {"recipe.yaml", "ds_config.json", "metrics.jsonl", "health.jsonl", "checkpoints", "model", "batch.json"}
    promised |= {"predictions", "scores", "confidence", "n_best", "results.json", "report.html", "noise.safetensors"}
    for name, ranks in (("python", 1), ("torchrun", 2)):
        results = json.loads((folder / name / "results.json").read_text())
        assert results["world_size"] == ranks
        assert results["inputs"] == input_checksums(Recipe.load(str(folder / name / "recipe.yaml")))
        assert list(results["inputs"]) == ["data.train", "data.eval.test", "model.name"]
        assert {file.name for file in (folder / name).iterdir()} - {".lock"} == promised
    # the resolved copies: of the recipe with every setting, of the ds_config with no "auto" left
    saved = yaml.safe_load((folder / "torchrun" / "recipe.yaml").read_text())
    assert saved["train"]["micro_batch_size"] == 2
    assert saved["train"]["adam_betas"] == [0.9, 0.999]
    assert "auto" not in (folder / "torchrun" / "ds_config.json").read_text()
    assert "out-of-domain" not in ended.stdout  # a single data set
    assert re.search(r"│ test +│ +[\d.]+ │", ended.stdout)
    assert ended.stdout.count("task: extractive") == 1  # one rank shows the recipe


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_with_a_clear_message(folder):
    settings = ["train.learning_rate=1000", "train.weight_decay=1000", "train.max_grad_norm=0"]
    diverging = arguments(folder, "diverged", *settings, "train.checkpoint_every=1", stage=0)
    ended = run_script(TRAIN, *diverging, check=False)
    assert ended.returncode not in (0, 2)
    said = r"error: loss, gradient or weights are not finite numbers by update \d+ .*: lower train\.learning_rate"
    assert re.search(said, ended.stderr)
    run = folder / "diverged"
    assert not (run / "model").exists()
    assert len(complete(run)) <= len(losses(run))  # none of the update that was not finite
