"""Messages about settings name the place, the field, the fault and the fix."""

from pathlib import Path

import pytest
import yaml

from swep_ds.errors import InputError
from swep_ds.recipe import Recipe

MINIMAL = {"model": {"name": "m"}, "method": {"name": "mle"}, "data": {"train": "t", "eval": {"x": "y"}}}


def write(path: Path, tree: dict) -> Path:
    path.write_text(yaml.safe_dump(tree))
    return path


def message(name: object, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        Recipe.load(str(name), overrides)
    return str(caught.value)


def test_the_place_of_a_fault_is_the_file_or_the_override_that_gave_it(tmp_path):
    file = write(tmp_path / "r.yaml", MINIMAL | {"train": {"epochs": -1, "packing": True}})
    assert message(file, "seed=-1") == (
        f"--set seed: -1: must be greater than or equal to 0; {file}: train.epochs: -1: must be greater than 0"
    )
    assert message(file, "seed=1").startswith(f"{file}: train.epochs")
    fits = "train.packing: is for extractive models: set it to false"
    assert message(file, "train.epochs=1", "task=generative") == f"{file}: {fits}"
    assert message(file, "train={packing: true}", "task=generative") == f"--set {fits}"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=x", "seed: 'x' is not a whole number"),
        ("seed=1.5", "seed: 1.5 is not a whole number"),
        ("train.epochs=long", "train.epochs: 'long' is not a number"),
        ("train.packing=ja", "train.packing: 'ja' is neither true nor false"),
        ("train.schedule=Linear", "train.schedule: 'Linear' is not known; did you mean 'linear'?"),
        ("train.execution=xx", "train.execution: 'xx' is not known; known are joint, split, stacked"),
        ("model.name=null", "model.name: None is not text: give a value"),
        ("model.name=3", "model.name: 3 is not text: quote it"),
        ("data.eval=3", "data.eval: 3 is not a mapping: write it as eval: {NAME: VALUE}"),
        ("train.adam_betas=0.9", "train.adam_betas: 0.9 is not a list: write it as adam_betas: [A, B]"),
        ("train.adam_betas=[0.9]", "train.adam_betas: [0.9] is too short: give 2 values or more"),
        ("train.adam_betas=[0.9, 0.9, 0.9]", "train.adam_betas: [0.9, 0.9, 0.9] is too long: give 2 values"),
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
