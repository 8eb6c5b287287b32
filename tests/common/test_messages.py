"""Messages about settings name the place, the field, the fault and the fix."""

from pathlib import Path

import pytest
import yaml

from swep_ds.pipeline.recipe import Recipe
from tests.support.bad_input import refused

MINIMAL = {"model": {"name": "m"}, "method": {"name": "mle"}, "data": {"train": "t", "eval": {"x": "y"}}}


def write(path: Path, tree: dict) -> Path:
    path.write_text(yaml.safe_dump(tree))
    return path


def message(name: object, *overrides: str) -> str:
    return refused(Recipe.load, str(name), overrides)


def test_the_place_of_a_fault_is_the_file_or_the_override_that_gave_it(tmp_path):
    file = write(tmp_path / "r.yaml", MINIMAL | {"train": {"epochs": -1, "compile": True}})
    assert message(file, "seed=-1") == (
        f"--set seed: -1: must be greater than or equal to 0; {file}: train.epochs: -1: must be greater than 0"
    )
    assert message(file, "seed=1").startswith(f"{file}: train.epochs")
    fits = "with --set: train.compile: is for extractive models: set it to false"
    assert message(file, "train.epochs=1", "task=generative") == fits
    assert message("quickstart", "method.name=ssmba").startswith("with --set: data.augmented: ssmba trains on")
    assert message("quickstart", f"seed={10**40}").startswith(f"--set seed: {10**40}: must be less than")
    assert message("quickstart", "data={}").startswith("--set data.train is required: ")
    file = write(tmp_path / "r.yaml", MINIMAL | {"data": {"train": "t", "eval": {"a/b": "x"}}})
    assert message(file, "data.eval.w=y").startswith(f"{file}: data.eval: the name 'a/b' becomes a file name")
    assert message("quickstart", "data.eval={my set: 5}").startswith("--set data.eval.my set: 5 is not text: quote it")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=x", "seed: 'x' is not a whole number"),
        ("seed=1.5", "seed: 1.5 is not a whole number"),
        ("train.epochs=long", "train.epochs: 'long' is not a number"),
        ("train.compile=ja", "train.compile: 'ja' is neither true nor false"),
        ("train.schedule=Linear", "train.schedule: 'Linear' is not known; did you mean 'linear'?"),
        ("train.execution=xx", "train.execution: 'xx' is not known; known are joint, split, stacked"),
        ("model.name=null", "model.name: is empty: give a value"),
        ("model.name=3", "model.name: 3 is not text: quote it"),
        ("model.name={a: b}", "model.name: {'a': 'b'} is not text"),
        ("train.epochs=", "train.epochs: is empty: give a value"),
        ("data.train_fraction=", "data.train_fraction: is empty: give a value"),
        (
            "data.eval=3",
            "data.eval: 3 is not a mapping: write it as eval: {NAME: VALUE}, or --set data.eval.NAME=VALUE",
        ),
        (
            "train.adam_betas=0.9",
            "train.adam_betas: 0.9 is not a list: write it as adam_betas: [A, B], or --set 'train.adam_betas=[A, B]'",
        ),
        ("train.adam_betas=[0.9]", "train.adam_betas: [0.9] has too few values: give at least 2"),
        ("train.adam_betas=[0.9, 0.9, 0.9]", "train.adam_betas: [0.9, 0.9, 0.9] has too many values: give at most 2"),
        (" train.epochs = -1", "train.epochs: -1: must be greater than 0"),
        ("train.adam_epsilon=-1", "train.adam_epsilon: -1: must be greater than 0"),
    ],
)
def test_a_wrong_value_is_called_by_what_it_is_not(override, said):
    assert message("quickstart", override) == f"--set {said}"


def test_a_recipe_with_a_similar_name_is_suggested(tmp_path):
    for name in ("Quickstart", "quickstrat"):
        assert message(name) == f"--recipe {name}: no such recipe; did you mean 'quickstart'?"
    file = write(tmp_path / "r.yaml", {"extends": "bert_base_squd"})
    assert message(file) == f"{file}: extends bert_base_squd: no such recipe; did you mean 'bert_base_squad'?"
    assert message("zzz").endswith(", or give a YAML file")


def test_a_misspelt_extends_is_named_alone(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("extend: quickstart\n1: 2\n")
    assert message(file) == f"{file}: extend is not a field; did you mean 'extends'?"
    file.write_text("1: 2\nnull: 3\n2020-01-01: 4\n")
    assert message(file).startswith(f"{file}: ")


def test_what_is_not_yaml_has_a_place(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("extends: quickstart\ntrain:\n  epochs: 1\n epochs: [3\n")
    said = "not YAML (line 4, column 2: expected <block end>, but found '<block mapping start>'): correct it, or quote"
    assert message(file) == f"{file}: {said} the value"


@pytest.mark.parametrize(
    "tree",
    [
        {"variants": {"MLE": {"method.name": "mle"}}, "seeds": [0]},
        {"extends": "quickstart", "set": {"train.epochs": 1}},
        {"recipe": "quickstart", "across": {}},
    ],
)
def test_a_sweep_is_recognised_and_its_command_named(tmp_path, tree):
    file = write(tmp_path / "mine.yaml", tree)
    assert message(file) == f"{file}: is a sweep, not a recipe: swep-ds sweep {file}"
    file = write(tmp_path / "mine.yaml", {"extends": "paper_bert"})
    assert message(file) == f"{file}: extends paper_bert: is a sweep, not a recipe: swep-ds sweep paper_bert"
    assert message("paper_bert") == "--recipe paper_bert: is a sweep, not a recipe: swep-ds sweep paper_bert"
    mixed = write(tmp_path / "mine.yaml", MINIMAL | {"variants": {}})
    assert message(mixed).startswith(f"{mixed}: variants is not a field")
