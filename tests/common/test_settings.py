"""Settings from YAML and `--set`: numbers and keys, and messages that name the place, the field and the fault."""

import pytest

from swep_ds.sweeps.sweep import read_sweep
from tests.pipeline.test_recipe import MINIMAL, message, write
from tests.support.bad_input import refused


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: !!python/object/apply:os.system [id]", "line 1, column 4: could not determine a constructor"),
        ("key: 1\nkey: 2", "line 2, column 1: key stands here a second time"),
        ("train:\n  epochs: 1\n epochs: [3\n", "line 3, column 2: expected <block end>, but found"),
    ],
)
def test_a_text_that_is_not_yaml_has_a_place(tmp_path, text, part):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    said = message(file)
    assert said.startswith(f"{file}: not YAML ({part}")
    assert said.endswith("): correct it, or quote the value")
    assert refused(read_sweep, str(file), tmp_path / "runs") == said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=x", "seed: 'x': must be a valid integer, unable to parse string as an integer"),
        ("train.epochs=", "train.epochs: None: must be a valid number"),
        ("train.epochs=yes", "train.epochs: True: must be a number"),
        ("train.max_updates=on", "train.max_updates: True: must be a number"),
        ("method.beta=true", "method.beta: True: must be a number"),
        ("train.compile=ja", "train.compile: 'ja': must be a valid boolean, unable to interpret input"),
        ("train.schedule=Linear", "train.schedule: 'Linear': must be 'linear' or 'constant'"),
        ("data.eval={my set: 5}", "data.eval.my set: 5: must be a valid string"),
        (" train.epochs = -1", "train.epochs: -1: must be greater than 0"),
        ("data={}", "data.train is required: set it"),
    ],
)
def test_a_wrong_value_is_shown_with_what_it_must_be(override, said):
    assert message("quickstart", override) == f"--recipe quickstart: {said}"


def test_faults_of_a_file_and_of_overrides_are_in_one_line(tmp_path):
    file = write(tmp_path / "r.yaml", MINIMAL | {"train": {"epochs": -1, "compile": True}})
    fault = f"{file}: seed: -1: must be greater than or equal to 0; train.epochs: -1: must be greater than 0"
    assert message(file, "seed=-1") == fault
    fits = f"{file}: train.compile: is for extractive models: set it to false"
    assert message(file, "train.epochs=1", "task=generative") == fits


def test_a_similar_name_is_suggested(tmp_path):
    for name in ("Quickstart", "quickstrat"):
        assert message(name) == f"--recipe {name}: no such recipe; did you mean 'quickstart'?"
    file = write(tmp_path / "r.yaml", {"extends": "bert_base_squd"})
    assert message(file) == f"{file}: extends bert_base_squd: no such recipe; did you mean 'bert_base_squad'?"
    write(file, MINIMAL | {"extend": "quickstart"})
    assert message(file) == f"{file}: extend is not a field; did you mean 'extends'?"


def test_a_file_that_is_no_recipe_is_told(tmp_path):
    sections = "task, seed, model, method, data, pretrain, train, eval, tracking"
    for tree in (["a"], "text", {"variants": {"MLE": {}}, "seeds": [0]}):
        file = write(tmp_path / "mine.yaml", tree)
        assert message(file) == f"{file}: a recipe is a mapping with the sections {sections}"
    mixed = write(tmp_path / "mine.yaml", MINIMAL | {"variants": {}})
    assert message(mixed).startswith(f"{mixed}: variants is not a field")
    write(tmp_path / "one.yaml", {"extends": "two.yaml"})
    file = write(tmp_path / "two.yaml", {"extends": "one.yaml"})
    assert message(file).endswith("two.yaml, which extends this one: files cannot go round in a circle")
