"""scripts/train.py: how it starts and ends, and the one line it says about bad input."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from swep_ds.pipeline.inputs import input_checksums
from swep_ds.pipeline.recipe import Recipe
from tests.support.bad_input import error_line
from tests.support.fork_server import run_script
from tests.support.tiny_run import ROOT, TORCHRUN, ds_config, execute, launch, losses, make_runs, prepare, squad

TRAIN = ROOT / "scripts" / "train.py"
PYTHON = [sys.executable, str(TRAIN)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("script")
    prepare(path)
    return path


def arguments(folder: Path, output: str, *overrides: str, stage: int = 2) -> list[str]:
    sets = [part for override in overrides for part in ("--set", override)]
    config, recipe = str(ds_config(folder, stage)), str(folder / "recipe.yaml")
    return ["--ds_config", config, "--recipe", recipe, "--output_dir", str(folder / output), *sets]


# Bad settings: before anything is done


def test_bad_settings_are_one_line_and_exit_code_2(folder):
    ended = execute([*PYTHON, *arguments(folder, "never", "train.epocs=1")], check=False)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "train.epocs is not a field; did you mean 'train.epochs'?" in error_line(ended.stderr)
    assert not (folder / "never").exists()


# Bad input: all cases in one process, then one through every launcher


def change(document: dict, field: str, value: object) -> dict:
    """The document with another value in its second paragraph (of the first article)."""
    changed = json.loads(json.dumps(document))
    paragraph = changed["data"][0]["paragraphs"][1]
    if field == "context":
        paragraph["context"] = value
    elif field == "answer_start":
        paragraph["qas"][0]["answers"][0][field] += value
    else:
        paragraph["qas"][0][field] = value
    return changed


DOCUMENT = squad(8)
SECOND = DOCUMENT["data"][0]["paragraphs"][1]["qas"][0]["id"]
DATA = {  # name -> (file's content, what the message must say beside the file's name)
    "malformed": ('{"data": [', "not JSON: line 1"),
    "offset": (change(DOCUMENT, "answer_start", 1), f"question '{SECOND}': the answer"),
    "context": (change(DOCUMENT, "context", "  "), "context"),
    "empty": ({"data": []}, "holds no questions"),
    "ids": (change(DOCUMENT, "id", DOCUMENT["data"][0]["paragraphs"][0]["qas"][0]["id"]), "occurs twice"),
    "answers": (change(DOCUMENT, "answers", []), f"question '{SECOND}'"),
}
SETTINGS = {  # name -> (overrides, stage, parts of the message)
    "missing-data": (["data.train=nowhere/train.json"], 2, ["nowhere/train.json", "no such file"]),
    "missing-eval": (["data.eval.gone=nowhere/test.json"], 2, ["nowhere/test.json", "no such file"]),
    "no-room": (["data.max_length=20", "data.max_query_length=17"], 2, ["max_length 20 leaves no", "raise max_length"]),
    "too-long": (["data.max_length=65"], 2, ["data.max_length 65", "takes at most 64 tokens: lower it"]),
    "missing-model": (["model.name=nowhere/model"], 2, ["model.name nowhere/model"]),
    "fp16": (["train.precision=fp16"], 2, ["fp16 needs a GPU", "train.precision"]),
    "holdout": (["data.train={folder}/one.json", "data.holdout_fraction=0.2"], 2, ["data.holdout_fraction", "single"]),
    "checkpoint": ([], 2, ["no such folder", "--resume nowhere"]),
    "ds_config": ([], "contradicting", ["gradient_clipping = 3, but the recipe's train.max_grad_norm gives 1.0"]),
    "no-ds_config": ([], "missing", ["no such file: give a path, or a shipped one: zero0, zero1"]),
    "files": ([], 2, ["holds files that belong to no run"]),
}
if importlib.util.find_spec("wandb") is None:
    SETTINGS["wandb"] = (
        ["tracking.to=wandb_offline"],
        2,
        ["tracking.to: wandb is not installed", "pip install"],
    )


@pytest.fixture(scope="module")
def errors(folder) -> dict[str, str]:
    """Messages of runs that fail, all made in one process."""
    (folder / "contradicting.json").write_text('{"gradient_clipping": 3, "zero_optimization": {"stage": 2}}')
    (folder / "one.json").write_text(json.dumps({"data": squad(8)["data"][:1]}))
    (folder / "files").mkdir()
    (folder / "files" / "thesis.tex").write_text("")
    configs = {2: ds_config(folder, 2)} | {name: folder / f"{name}.json" for name in ("contradicting", "missing")}
    runs = []
    for name, (content, _) in DATA.items():
        file = folder / f"{name}.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        runs.append({"set": [f"data.train={file}"], "ds_config": str(configs[2]), "output_dir": str(folder / name)})
    for name, (overrides, config, _) in SETTINGS.items():
        sets = [override.format(folder=folder) for override in overrides]
        runs.append({"set": sets, "ds_config": str(configs[config]), "output_dir": str(folder / name)})
        if name == "checkpoint":
            runs[-1]["resume"] = "nowhere"
    runs = [run | {"recipe": str(folder / "recipe.yaml"), "fails": True} for run in runs]
    make_runs(folder, runs)
    return {name: Path(f"{folder / name}.error").read_text() for name in (*DATA, *SETTINGS)}


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_bad_data_names_file_and_place(errors, folder, name):
    assert str(folder / f"{name}.json") in errors[name]
    assert DATA[name][1] in errors[name]
    assert "\n" not in errors[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_bad_settings_name_the_field_and_the_fix(errors, name):
    for part in SETTINGS[name][2]:
        assert part in errors[name]
    assert "\n" not in errors[name]


@pytest.mark.slow
def test_a_start_that_is_refused_leaves_nothing(errors, folder):
    assert [name for name in (*DATA, *SETTINGS) if (folder / name).exists()] == ["files"]
    assert [file.name for file in (folder / "files").iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_bad_data_under_the_deepspeed_launcher_with_two_ranks(folder):
    (folder / "bad.json").write_text("{")
    ended = launch(2, TRAIN, *arguments(folder, "bad", f"data.train={folder / 'bad.json'}"), check=False)
    assert ended.returncode == 2
    assert "bad.json: not JSON: line 1" in error_line(ended.stderr)
    assert "task: extractive" not in ended.stdout  # no recipe, of a run that does not begin
    assert not (folder / "bad").exists()


# Good ends, and a bad one


@pytest.mark.slow
def test_plain_python_and_torchrun_make_the_same_run(folder):
    few = ["train.max_updates=2"]
    execute([*PYTHON, *arguments(folder, "python", *few, "train.micro_batch_size=4")])
    shell = [str(TORCHRUN), "--standalone", "--nproc_per_node", "2", str(TRAIN)]
    ended = execute([*shell, *arguments(folder, "torchrun", *few, "train.micro_batch_size=2")])
    assert losses(folder / "torchrun") == pytest.approx(losses(folder / "python"), rel=1e-5)
    for name, ranks in (("python", 1), ("torchrun", 2)):
        results = json.loads((folder / name / "results.json").read_text())
        assert results["world_size"] == ranks
        assert results["inputs"] == input_checksums(Recipe.load(str(folder / name / "recipe.yaml")))
        assert list(results["inputs"]) == ["data.train", "data.eval.test", "model.name"]
        files = {file.name for file in (folder / name).iterdir()} - {".lock"}
        promised = {"recipe.yaml", "ds_config.json", "metrics.jsonl", "health.jsonl", "checkpoints", "model"}
        assert files == promised | {
            "batch.json",
            "predictions",
            "confidence",
            "n_best",
            "results.json",
            "report.html",
            "noise.safetensors",
        }
    # the resolved copies: of the recipe with every setting, of the ds_config with no "auto" left
    saved = yaml.safe_load((folder / "torchrun" / "recipe.yaml").read_text())
    assert saved["train"]["micro_batch_size"] == 2
    assert saved["train"]["adam_betas"] == [0.9, 0.999]
    assert "auto" not in (folder / "torchrun" / "ds_config.json").read_text()
    assert "out-of-domain" not in ended.stdout  # a single data set
    assert re.search(r"│ test +│ +[\d.]+ │", ended.stdout)
    assert ended.stdout.count("task: extractive") == 1  # the recipe is shown, by one rank alone


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_with_a_clear_message(folder):
    settings = [
        "train.learning_rate=1000",
        "train.weight_decay=1000",
        "train.max_grad_norm=0",
        "train.checkpoint_every=1",
    ]
    ended = run_script(TRAIN, *arguments(folder, "diverged", *settings, stage=0), check=False)
    assert ended.returncode not in (0, 2)
    assert re.search(
        r"error: loss, gradient or weights are not finite numbers by update \d+ .*: lower train\.learning_rate",
        ended.stderr,
    )
    assert not (folder / "diverged" / "model").exists()
    kept = sorted((folder / "diverged" / "checkpoints").glob("update-*/complete.json"))
    assert len(kept) <= len(losses(folder / "diverged"))  # none of the update that was not finite


@pytest.mark.slow
def test_wandb_offline_keeps_its_run_in_the_runs_folder(folder):
    run_script(TRAIN, *arguments(folder, "tracked", "train.max_updates=2", "tracking.to=wandb_offline"))
    assert list((folder / "tracked" / "wandb").glob("offline-run-*/*.wandb"))
