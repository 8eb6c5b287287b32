"""`swep-ds recipes`: what it lists, and that every field has a meaning."""

import json
import re
import sys

import jsonschema
import pytest
import yaml

from swep_ds.commands import recipes as command
from swep_ds.common.settings import describe, flatten, for_editors
from swep_ds.methods import METHODS
from swep_ds.pipeline.recipe import RECIPES, Recipe
from swep_ds.sweeps.sweep import SWEEPS, Sweep
from tests.support.bad_input import refused

FILES = {"recipe": sorted(RECIPES.glob("*.yaml")), "sweep": sorted(SWEEPS.glob("*.yaml"))}


@pytest.fixture
def printed(monkeypatch, capsys):
    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["swep-ds recipes", *words])
        command.recipes()
        return capsys.readouterr().out

    return call


def test_all_recipes_sweeps_and_methods_are_listed_with_a_sentence(printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    lines = printed().splitlines()
    assert (lines[0], lines[len(FILES["recipe"]) + 1]) == ("recipes:", "sweeps:")
    listed = [line for line in lines if line.startswith("  ")]
    names = [file.stem for files in FILES.values() for file in files]
    assert [line.split()[0] for line in listed] == [*names, *METHODS]
    assert all(len(line.split()) > 5 and line[-1] in ".?" for line in listed[: len(names)])
    assert (
        "  pdr                PDR: the divergence of the predictions on clean and on virtually adversarial embeddings"
        in lines
    )


def test_a_name_prints_its_files(printed):
    text = printed("official")
    assert text.endswith((RECIPES / "official.yaml").read_text())
    both = printed("quickstart")
    assert all((folder / "quickstart.yaml").read_text() in both for folder in (RECIPES, SWEEPS))
    assert printed(str(RECIPES / "official.yaml")) == text


def test_a_wrong_name_is_told_as_the_user_gave_it(printed):
    for words, said in (
        (["ofical"], "NAME ofical: no such recipe or sweep; did you mean 'official'?"),
        (["ofical.yaml"], "ofical.yaml: no such file"),
        (["official", "--schema"], "NAME official: --schema is for all files alike: leave out NAME"),
        (["paper_bert", "--fields"], "NAME paper_bert: no such recipe; "),
    ):
        assert refused(printed, *words).startswith(said)


def test_every_field_is_explained():
    for name in METHODS:
        recipe = Recipe.load("synthetic", ["pretrain.train=x", f"method.name={name}", "data.augmented=y"])
        values = recipe.model_dump(mode="json")
        fields = list(describe(recipe))
        names = {name for name in flatten(values) if not name.startswith("data.eval.")}
        assert {field.name for field in fields} >= names | {"data.eval"}
        assert [field.name for field in fields if not field.meaning or not field.type] == []
        defaults = {"method.name": json.dumps(name), "train.adam_betas": "[0.9, 0.999]", "model.name": "required"}
        assert {field.name: field.default for field in fields if field.name in defaults} == defaults


def test_fields_are_printed_with_value_type_default_and_meaning(printed):
    text = printed("official", "--fields")
    assert printed(str(RECIPES / "official.yaml"), "--fields") == text
    assert 'data.windows_without_answer: "cls"\n    cls | drop; default: "cls"\n    extractive: train them' in text
    assert "method.beta: 2.0\n    number, at least 0; default: 1.0\n" in text
    assert "; default: false\n    at ZeRO-2 and 3: reduce gradients once an update" in text  # a comment above the field
    required = {"new_wikipedia": ["model.name", "data.train"], "synthetic": ["pretrain.train"], "quickstart": []}
    for name, left_open in required.items():
        assert re.findall(r"^([\w.]+): required$", printed(name, "--fields"), re.MULTILINE) == left_open


@pytest.mark.parametrize(("kind", "model"), [("recipe", Recipe), ("sweep", Sweep)])
def test_the_schema_for_editors_admits_every_shipped_file_and_no_unknown_field(printed, kind, model):
    shown = json.loads(printed("--schema", kind))
    assert shown == for_editors(model)
    checker = jsonschema.Draft202012Validator(shown)
    for file in FILES[kind]:
        checker.validate(yaml.safe_load(file.read_text()))
    assert list(checker.iter_errors({"sede": 1}))
    if kind == "recipe":
        assert list(checker.iter_errors({"train": {"epocs": 1}}))
        assert list(checker.iter_errors({"method": {"name": "mle", "beta": 1}}))
