"""Settings from YAML and `--set`: numbers and keys, and messages that name the place, the field and the fault."""

from pathlib import Path

import pytest
import yaml

from swep_ds.common.settings import parse_yaml
from swep_ds.pipeline.recipe import Recipe
from swep_ds.sweeps.sweep import read_sweep
from tests.support.bad_input import refused

MINIMAL = {"model": {"name": "m"}, "method": {"name": "mle"}, "data": {"train": "t", "eval": {"x": "y"}}}


def write(path: Path, tree: dict) -> Path:
    path.write_text(yaml.safe_dump(tree))
    return path


def message(name: object, *overrides: str) -> str:
    return refused(Recipe.load, str(name), overrides)


# YAML


def test_numbers_are_those_of_yaml_1_2_and_aliases_are_followed():
    numbers = {"3e-5": 3e-5, "1.0e-4": 1e-4, "-7": -7, "1_000": 1000, "010": "010", "0": 0, ".5": 0.5, "1:30": "1:30"}
    assert {text: parse_yaml(text, "x") for text in numbers} == numbers
    assert parse_yaml("a: &a {k: [1, 2]}\nb: *a\nc: {<<: *a, l: 3}", "x") == {
        "a": {"k": [1, 2]},
        "b": {"k": [1, 2]},
        "c": {"k": [1, 2], "l": 3},
    }
    assert parse_yaml("", "x") is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: !!python/object/apply:os.system [id]", "line 1, column 4: could not determine a constructor"),
        ("? [a]\n: b", "line 1, column 3: found unhashable key"),
        ("key: 1\nkey: 2", "line 2, column 1: key stands here a second time"),
        ("train:\n  epochs: 1\n epochs: [3\n", "line 3, column 2: expected <block end>, but found"),
        ("a: 2019-13-45", "month must be in 1..12"),
    ],
)
def test_a_text_that_is_not_yaml_has_a_place(tmp_path, text, part):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    said = message(file)
    assert said.startswith(f"{file}: not YAML ({part}")
    assert said.endswith("): correct it, or quote the value")
    assert refused(read_sweep, str(file), tmp_path / "runs") == said


# Places


def test_the_place_of_a_fault_is_the_file_or_the_override_that_gave_it(tmp_path):
    file = write(tmp_path / "r.yaml", MINIMAL | {"train": {"epochs": -1, "compile": True}})
    assert message(file, "seed=-1") == (
        f"--set seed: -1: must be greater than or equal to 0; {file}: train.epochs: -1: must be greater than 0"
    )
    assert message(file, "seed=1").startswith(f"{file}: train.epochs")
    fits = f"{file}: train.compile: is for extractive models: set it to false"
    assert message(file, "train.epochs=1", "task=generative") == fits
    assert message("quickstart", "method.name=ssmba").startswith("--recipe quickstart: data.augmented: ssmba trains on")
    assert message("quickstart", "data={}") == "--set data.train is required: set it"
    assert message("quickstart", "data.eval={my set: 5}").startswith("--set data.eval.my set: 5: must be a valid str")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=x", "seed: 'x': must be a valid integer, unable to parse string as an integer"),
        ("seed=1.5", "seed: 1.5: must be a valid integer, got a number with a fractional part"),
        ("train.epochs=long", "train.epochs: 'long': must be a valid number, unable to parse string as a number"),
        ("train.epochs=", "train.epochs: None: must be a valid number"),
        ("train.compile=ja", "train.compile: 'ja': must be a valid boolean, unable to interpret input"),
        ("train.schedule=Linear", "train.schedule: 'Linear': must be 'linear' or 'constant'"),
        ("model.name=3", "model.name: 3: must be a valid string"),
        ("data.eval=3", "data.eval: 3: must be a valid dictionary"),
        ("train.adam_betas=0.9", "train.adam_betas: 0.9: must be a valid tuple"),
        (" train.epochs = -1", "train.epochs: -1: must be greater than 0"),
        ("method=mle", "method: 'mle' is not a section: give its fields, such as method.name"),
        ("train=5", "train: 5 is not a section: give its fields, such as train.epochs"),
    ],
)
def test_a_wrong_value_is_shown_with_what_it_must_be(override, said):
    assert message("quickstart", override) == f"--set {said}"


def test_a_recipe_with_a_similar_name_is_suggested(tmp_path):
    for name in ("Quickstart", "quickstrat"):
        assert message(name) == f"--recipe {name}: no such recipe; did you mean 'quickstart'?"
    file = write(tmp_path / "r.yaml", {"extends": "bert_base_squd"})
    assert message(file) == f"{file}: extends bert_base_squd: no such recipe; did you mean 'bert_base_squad'?"
    assert message("zzz").endswith(", or give a YAML file")
    write(file, {"extend": "quickstart", "seed": 1})
    assert message(file) == f"{file}: extend is not a field; did you mean 'extends'?"


def test_a_file_of_another_kind_is_told(tmp_path):
    sections = "model, method, data, pretrain, train, eval, tracking"
    for tree in (["a"], "text"):
        file = write(tmp_path / "mine.yaml", tree)
        assert message(file) == f"{file}: a recipe is a mapping with the sections task, seed, {sections}"
    for tree in ({"variants": {"MLE": {}}, "seeds": [0]}, {"extends": "quickstart", "set": {"train.epochs": 1}}):
        file = write(tmp_path / "mine.yaml", tree)
        assert message(file) == f"{file}: is a sweep, not a recipe: swep-ds sweep {file}"
    file = write(tmp_path / "mine.yaml", {"extends": "paper_bert"})
    assert message(file) == f"{file}: extends paper_bert: is a sweep, not a recipe: swep-ds sweep paper_bert"
    mixed = write(tmp_path / "mine.yaml", MINIMAL | {"variants": {}})
    assert message(mixed).startswith(f"{mixed}: variants is not a field")


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (["a/b"], "becomes a file name"),
        ([".."], "becomes a file name"),
        (["News", "news"], "'News' and 'news' would share a file"),
        (["Held_Out"], "names the held-out training articles"),
    ],
)
def test_names_of_data_sets_become_files_in_one_folder(tmp_path, names, part):
    file = write(tmp_path / "r.yaml", MINIMAL | {"data": {"train": "t", "eval": dict.fromkeys(names, "y")}})
    assert part in message(file)


@pytest.mark.parametrize("override", ["train.micro_batch_size=yes", "seed=on", "data.max_train_examples=true"])
def test_a_truth_value_is_no_number(override):
    name = override.partition("=")[0]
    assert message("quickstart", override) == f"--set {name}: True is not a number: write one"


def test_files_that_extend_each_other_are_told(tmp_path):
    write(tmp_path / "one.yaml", {"extends": "two.yaml"})
    file = write(tmp_path / "two.yaml", {"extends": "one.yaml"})
    assert "one.yaml: extends " in message(file)
    assert message(file).endswith("two.yaml, which extends this one: files cannot go round in a circle")


def test_digits_that_are_no_number_stay_text(tmp_path):
    recipe = Recipe.load("quickstart", ["tracking.group=0823", "train.learning_rate=3e-5", "train.weight_decay=.5"])
    assert (recipe.tracking.group, recipe.train.learning_rate, recipe.train.weight_decay) == ("0823", 3e-5, 0.5)
    (tmp_path / "r.yaml").write_text(recipe.dump())
    assert Recipe.load(str(tmp_path / "r.yaml")) == recipe
