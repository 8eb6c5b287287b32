"""Settings: what differs, what is left out, which of two layers counts, and what a field's comments say."""

from typing import ClassVar, Literal

import jsonschema
import pytest
from pydantic import Field

from swep_ds.common.settings import (
    Section,
    change,
    describe,
    differences,
    flatten,
    for_editors,
    load,
    sections_of,
    suggest,
    without,
)
from tests.support.bad_input import refused


class Plain(Section):
    name: Literal["plain"] = "plain"
    rate: float = 1.0  # learning rate


class Kind(Section):
    name: Literal["kind"] = "kind"
    size: int = 2


class Base(Section):
    # how many,
    count: int = 1  # at least
    limit: int | None = None  # the base's limit

    def doubled(self) -> int:
        count: int = self.count
        return 2 * count


class Recipe(Base):
    kinds: ClassVar = {"method": {"plain": Plain, "kind": Kind}}
    limit: float | None = None  # the recipe's limit
    method: Plain | Kind = Field(Plain(), discriminator="name")
    names: dict[str, str] = Field({})


def test_both_sides_of_a_difference_count_and_the_most_that_is_said():
    there, here = {"a": 1, "gone": 2, "same": None}, {"a": 3, "new": 4}
    assert differences(there, here) == "a 1 there, 3 here; new None there, 4 here; gone 2 there, None here"
    assert differences(there, here, most=1) == "a 1 there, 3 here; and 2 more"
    assert differences(there, dict(there)) == differences({}, {"none": None}) == ""


def test_sections_are_flattened_and_left_out_by_whole_names():
    tree = {"train": {"max": 1, "max_norm": 2}, "mix": [{"weight": 3}, {"weight": 4}], "eval": {}, "list": [5]}
    flat = {"train.max": 1, "train.max_norm": 2, "mix.0.weight": 3, "mix.1.weight": 4, "list": [5]}
    assert flatten(tree) == flat
    assert without(flat, ["train.max", "mix.1", "li"]) == {"train.max_norm": 2, "mix.0.weight": 3, "list": [5]}
    assert list(without(flat, ["train", "mix"])) == ["list"]


def test_the_file_that_extends_counts_and_another_kind_drops_the_settings_of_the_former(tmp_path):
    (tmp_path / "base.yaml").write_text("count: 2\nlimit: 5\nmethod: {name: plain, rate: 0.5}\nnames: {a: x, b: y}\n")
    above = tmp_path / "above.yaml"
    above.write_text("extends: base.yaml\ncount: 3\nnames: {b: z}\n")
    loaded = load(Recipe, str(above), tmp_path, "--file")
    assert (loaded.count, loaded.limit, loaded.names) == (3, 5, {"a": "x", "b": "z"})
    assert load(Recipe, "above", tmp_path, "--file", ["count=4", "names={c: w}"]).names == {"c": "w"}
    for method in (Plain(rate=0.5), Kind()):
        above.write_text(f"extends: base.yaml\nmethod: {{name: {method.name}}}\n")
        assert load(Recipe, str(above), tmp_path, "--file").method == method
    tree = {"method": {"name": "plain", "rate": 0.5}}
    assert change(Recipe, tree, [(["method", "rate"], 0.25), (["count"], 7)], "x").method.rate == 0.25
    assert tree == {"method": {"name": "plain", "rate": 0.5}}  # it may be used again


def test_yes_and_nan_are_no_numbers(tmp_path):
    for text, said in (
        ("count: yes", "count: 'yes': must be a valid integer"),
        ("limit: .nan", "must be a finite number"),
    ):
        (tmp_path / "r.yaml").write_text(text)
        assert said in refused(load, Recipe, str(tmp_path / "r.yaml"), tmp_path, "--file")


def test_the_comments_above_and_beside_a_field_are_its_meaning_and_the_last_class_counts():
    fields = Recipe.model_json_schema()["properties"]
    assert fields["count"]["description"] == "how many, at least"
    assert fields["limit"]["description"] == "the recipe's limit"
    assert sections_of(Recipe, "method") == [Plain, Kind]


class Line(Section):
    slope: float  # required


def test_fields_are_those_of_the_kind_that_was_chosen_and_a_file_that_extends_another_need_give_none():
    fields = {field.name: (field.value, field.default, field.type) for field in describe(Recipe(method=Kind(size=3)))}
    assert list(fields) == ["count", "limit", "method.name", "method.size", "names"]
    assert fields["method.size"] == (3, "2", "integer")
    for model, tree in ((Line, {}), (Line, {"extends": "line"}), (Recipe, {"method": {}})):
        jsonschema.validate(tree, for_editors(model))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"method": {"name": "plain", "size": 1}}, for_editors(Recipe))


@pytest.mark.parametrize(("name", "said"), [("cuont", "; did you mean 'count'?"), ("zzz", "; known are count, limit")])
def test_the_nearest_name_is_suggested(name, said):
    assert suggest(name, ["limit", "count"]) == said
