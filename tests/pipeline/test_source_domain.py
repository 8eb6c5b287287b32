"""Own training data over a shipped recipe: which test set is the source domain is said, never guessed."""

import logging

import pytest
import yaml

from swep_ds.common.errors import InputError
from swep_ds.pipeline import recipe as recipe_module
from swep_ds.pipeline.recipe import Recipe

SQUAD = "data.eval.squad=dev-v1.1.json"
MINE = "data.train=mine.json"


@pytest.fixture(autouse=True)
def _warns_again():
    recipe_module._warn_once.cache_clear()


@pytest.fixture
def child(tmp_path):
    def write(**data):
        path = tmp_path / "child.yaml"
        path.write_text(yaml.safe_dump({"extends": "bert_base_squad", "data": data}, sort_keys=False))
        return str(path)

    return write


def test_the_recipes_source_domain_stays_with_a_warning(child, caplog):
    for name, overrides in (("bert_base_squad", [MINE]), (child(train="mine.json"), [])):
        recipe_module._warn_once.cache_clear()
        caplog.clear()
        for _ in range(3):  # a sweep loads it for each run
            assert list(Recipe.load(name, overrides).data.eval) == ["squad"]
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert (
            "data.train is 'mine.json', while the source domain, data.eval.squad ('rajpurkar/squad')" in record.message
        )
    recipe_module._warn_once.cache_clear()
    Recipe.make("bert_base_squad", data={"train": "mine.json"})
    assert caplog.records[-1].message.endswith('replace it: data={"eval": {NAME: FILE}}')


def test_test_sets_that_are_added_would_count_as_out_of_domain(child):
    added = "data.eval.own=dev.json"
    for name, overrides in (
        ("bert_base_squad", [MINE, added]),
        ("bert_base_squad", [added, MINE]),
        (child(train="mine.json", eval={"own": "dev.json"}), []),
    ):
        with pytest.raises(InputError, match="own would count as out of domain: name all test sets") as error:
            Recipe.load(name, overrides)
        assert "--set 'data.eval={own: FILE}'; or repeat --set data.eval.squad=rajpurkar/squad" in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "sets"),
    [
        ([MINE, "data.eval={own: dev.json}"], ["own"]),
        ([MINE, "data.eval={own: dev.json, squad: rajpurkar/squad}"], ["own", "squad"]),
        ([MINE, "data.eval.own=dev.json", "data.eval.squad=rajpurkar/squad"], ["squad", "own"]),
        ([MINE, SQUAD, "data.eval.amazon=amazon.json"], ["squad", "amazon"]),
        (["data.eval.amazon=amazon.json"], ["squad", "amazon"]),
        (["data.train=rajpurkar/squad", "data.eval.amazon=amazon.json"], ["squad", "amazon"]),
        ([MINE, "data.holdout_fraction=0.1", "data.eval.amazon=amazon.json"], ["squad", "amazon"]),  # held_out is first
    ],
)
def test_what_is_clear_is_taken_as_it_is(overrides, sets, child, caplog):
    assert list(Recipe.load("bert_base_squad", overrides).data.eval) == sets
    assert not caplog.records


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["data.holdout_fraction=0.1"], "squad"),
        (["data.holdout_fraction=0.1", "data.eval.amazon=amazon.json"], "squad"),
        (["data.holdout_fraction=0.1", "data.eval={amazon: amazon.json}"], None),
        ([MINE, "data.holdout_fraction=0.1", "data.eval={own: mine.json}"], None),
        (["data.holdout_fraction=0"], None),
    ],
)
def test_the_training_domain_is_not_out_of_domain_beside_held_out_articles(overrides, refused):
    if refused is None:
        Recipe.load("bert_base_squad", overrides)
        return
    with pytest.raises(InputError, match=rf"^data\.holdout_fraction 0\.1: .* data\.eval\.{refused} .*out of domain"):
        Recipe.load("bert_base_squad", overrides)


def test_overrides_are_held_against_the_file_that_they_change(child, caplog):
    name = child(train="mine.json", eval={"squad": "dev.json"})
    assert list(Recipe.load(name, ["data.eval.amazon=a.json"]).data.eval) == ["squad", "amazon"]
    assert not caplog.records
    with pytest.raises(InputError, match=r"data.eval.squad \('dev.json'\), is the recipe's"):
        Recipe.load(name, ["data.train=other.json", "data.eval.amazon=a.json"])


@pytest.mark.parametrize("override", ["data=", "data.eval=5", "data.eval.squad=5"])
def test_malformed_sections_are_left_to_validation(override):
    with pytest.raises(InputError):
        Recipe.load("bert_base_squad", [MINE, override])
