"""Recipes, sweeps and overrides of a hostile kind: one bounded line each, never a traceback."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.common.errors import InputError
from swep_ds.common.settings import Section, parse_yaml, validate
from swep_ds.methods import METHODS
from swep_ds.pipeline.recipe import Recipe
from swep_ds.sweeps.sweep import read_sweep
from swep_ds.training.settings import TrainSection
from tests.support.bad_input import refused
from tests.support.hostile import NO_FILES

MINIMAL = {"model": {"name": "m"}, "method": {"name": "swep"}, "data": {"train": "t", "eval": {"x": "y"}}}
ODD = [True, False, None, "", "x", -1, 0, 1e26, float("inf"), float("nan"), [], [1], {}, {"x": 1}]
ODD += ["a\0b", "a\nb", "\u2028", "x" * 5000, [[[[]]]], b"bytes", {1: 2}, {None: {}}]


def message(path: object, *overrides: str) -> str:
    return checked(refused(Recipe.load, str(path), overrides))


def checked(said: str) -> str:
    assert said.isprintable()
    assert len(said) < 10_000
    return said


@pytest.fixture
def path(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(MINIMAL))
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: !!python/object/apply:os.system [id]", "not YAML"),
        ("? [a]\n: b", "not YAML"),
        ("a: \x07", "not YAML"),
        (f"{'k' * 200}: 1\n{'k' * 200}: 2", "a second time: keep one"),
        ("--- 1\n--- 2", "not YAML"),
    ],
    ids=lambda value: value[:20],
)
def test_a_text_that_is_not_yaml(path, tmp_path, text, part):
    (tmp_path / "bad.yaml").write_text(text)
    assert part in message(tmp_path / "bad.yaml")
    with pytest.raises(InputError) as caught:
        read_sweep(str(tmp_path / "bad.yaml"), tmp_path / "runs")
    assert part in checked(str(caught.value))
    if len(text) < 1000:
        assert part in message(path, f"data.eval={text}").replace("\\n", "\n")


def test_aliases_of_small_things_are_yaml():
    assert parse_yaml("a: &a {k: [1, 2]}\nb: *a\nc: {<<: *a, l: 3}", "x") == {
        "a": {"k": [1, 2]},
        "b": {"k": [1, 2]},
        "c": {"k": [1, 2], "l": 3},
    }
    assert parse_yaml("", "x") is None


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_not_a_regular_file(path, tmp_path, kind):
    source = tmp_path / "odd.yaml"
    NO_FILES[kind](source)
    assert "is not a regular file" in message(source)
    path.write_text(yaml.safe_dump(MINIMAL | {"extends": "odd.yaml"}))
    assert "odd.yaml" in message(path)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/r.yaml", "x" * 300 + ".yaml", "a\0b.yaml", "x" * 5000])
def test_a_name_that_cannot_be_looked_up(path, name):
    assert "no such recipe" in (said := message(name)) or "cannot be looked up" in said
    path.write_text(yaml.safe_dump(MINIMAL | {"extends": name}))
    message(path)


def test_no_utf_8(tmp_path):
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in message(tmp_path / "r.yaml")


def fields(section: type[Section] = Recipe, prefix: str = "") -> list[str]:
    """Dotted names of all fields, of every method too."""
    names = []
    for name, info in section.model_fields.items():
        kinds = [info.annotation, *getattr(info.annotation, "__args__", ())]
        below = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        names.append(f"{prefix}{name}")
        names += [field for kind in below for field in fields(kind, f"{prefix}{name}.")]
    return names


FIELDS = sorted({*fields(), *(f"method.{name}" for settings in METHODS.values() for name in settings.model_fields)})


def put(field: str, value: object) -> dict:
    tree = json.loads(json.dumps(MINIMAL))
    tree["pretrain"] = {"train": "p"}
    *parents, leaf = field.split(".")
    node = tree
    for parent in parents:
        node = node.setdefault(parent, {})
    node[leaf] = value
    return tree


def test_every_field_takes_or_refuses_anything(path):
    assert {"train.epochs", "pretrain.epochs", "method.ascent_steps", "tracking.project"} <= set(FIELDS)
    refused = 0
    for field in FIELDS:
        for value in ODD:
            try:
                recipe = validate(Recipe, put(field, value), path)
            except InputError as error:
                checked(str(error))
                refused += 1
            else:
                assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe, field
    assert refused > 10 * len(FIELDS)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_override_is_one_line_or_taken(name, value):
    try:
        Recipe.load("quickstart", [f"{name}={value}"])
    except InputError as error:
        checked(str(error))


@given(st.sampled_from(FIELDS), st.text(max_size=40))
def test_any_value_of_a_field_is_one_line_or_taken(field, value):
    try:
        Recipe.load("quickstart", [f"{field}={value}"])
    except InputError as error:
        checked(str(error))


@pytest.mark.parametrize(
    "field",
    [
        "seed",
        "method.beta",
        "data.holdout_fraction",
        "eval.beams",
        "train.epochs",
        "train.max_updates",
        "train.micro_batch_size",
        "train.learning_rate",
        "train.adam_betas",
    ],
)
@pytest.mark.parametrize("value", [True, False])
def test_true_is_not_a_number(path, field, value):
    given = [value, 0.9] if field == "train.adam_betas" else value
    said = message(path, f"{field}={json.dumps(given)}")
    assert said.startswith(("--set ", "with --set: "))
    assert said.endswith(f"{field}: {value} is not a number: write one")


@pytest.mark.parametrize(
    "override",
    [
        "train.epochs=1e9",
        "train.gradient_accumulation_steps=1e26",
        "train.micro_batch_size=10000000000",
        "train.stall_seconds=1e300",
        "data.max_length=1e12",
        "eval.beams=1e6",
        "pretrain.epochs=1e9",
    ],
)
def test_a_number_that_no_run_reaches_names_its_field(path, override):
    said = message(path, "pretrain.train=p", override)
    assert override.partition("=")[0] in said
    assert "less than or equal to" in said or "exceeded maximum size" in said


@pytest.mark.parametrize("text", ["a\0b", "a\nb", "a\x1b[31mb", "a\ud800b", "a\u2028b", "x" * 5000])
@pytest.mark.parametrize("field", ["model.name", "data.train", "data.eval.x", "tracking.project", "method.name"])
def test_text_is_one_line_of_characters(tmp_path, field, text):
    (tmp_path / "r.yaml").write_text(json.dumps(put(field, text)))
    said = message(tmp_path / "r.yaml")
    assert field.removesuffix(".x") in said
    assert field == "method.name" or "one line" in said or "shorten it" in said


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (["x" * 201], "shorten it to 200 bytes"),
        (["ä" * 101], "shorten it to 200 bytes"),
        (["."], "becomes a file name"),
        ([".."], "becomes a file name"),
        (["a/b"], "becomes a file name"),
        (["News", "news"], "'News' and 'news' would share a file"),
        (["\u00e9", "e\u0301"], "becomes a file name"),
        (["\u00e9", "\u00c9"], "would share a file"),
        (["Held_Out"], "names the held-out training articles"),
    ],
)
def test_names_of_data_sets_become_files_beside_each_other(tmp_path, names, part):
    tree = MINIMAL | {"data": {"train": "t", "eval": dict.fromkeys(names, "y")}}
    (tmp_path / "r.yaml").write_text(json.dumps(tree))
    assert part in message(tmp_path / "r.yaml")


def test_the_longest_name_becomes_a_file(tmp_path):
    (tmp_path / "r.yaml").write_text(json.dumps(MINIMAL | {"data": {"train": "t", "eval": {"x" * 200: "y"}}}))
    [name] = Recipe.load(str(tmp_path / "r.yaml")).data.eval
    (tmp_path / f".{name}.json.{2**22}").touch()  # as it is while it is written


def test_many_faults_are_counted(path):
    said = message(path, *(f"train.wrong{number}=1" for number in range(100)))
    assert said.endswith("; and 80 more")


def test_true_stays_true_where_a_field_is_a_switch():
    assert TrainSection(compile=True).compile is True


SWEEP = {"recipe": "quickstart", "variants": {"MLE": {"method.name": "mle"}}, "seeds": [0]}


@pytest.mark.parametrize("place", [["set"], ["set", "train.epochs"], ["variants"], ["variants", "MLE"], ["across"]])
@pytest.mark.parametrize("value", [*ODD[:8], *ODD[9:]], ids=lambda value: type(value).__name__)
def test_a_sweep_takes_or_refuses_anything(tmp_path, monkeypatch, place, value):
    tree = json.loads(json.dumps(SWEEP))
    node = tree
    for part in place[:-1]:
        node = node.setdefault(part, {})
    node[place[-1]] = value
    monkeypatch.setattr("swep_ds.sweeps.sweep.read_settings", lambda *_: (tmp_path / "sweep.yaml", tree))
    try:
        _, cells = read_sweep("of the test", tmp_path)
    except InputError as error:
        checked(str(error))
    else:
        assert len(cells) == 1


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"seeds": list(range(10_001))}, "are 10,001 runs: leave at most 10,000"),
        ({"across": {f"axis {n}": {f"p{k}": {} for k in range(10)} for n in range(10)}}, "10,000,000,000 runs"),
        ({"variants": {"x" * 250: {}}}, "is too long a name: shorten them"),
        ({"seeds": [True]}, "seeds: True is not a number"),
        ({"seeds": [-1]}, "seed: -1"),
        ({"variants": {"a\nb": {}}}, "write one line"),
        ({"across": {"x": {"a\nb": {}}}}, "write one line"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_sweep_without_end_or_names(tmp_path, changes, part):
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP | changes))
    with pytest.raises(InputError) as caught:
        read_sweep(str(tmp_path / "sweep.yaml"), tmp_path)
    assert part in checked(str(caught.value))
