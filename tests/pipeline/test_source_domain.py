"""Own training data over a shipped recipe: which test set is the source domain is said, never guessed."""

import pytest
import yaml

from swep_ds.pipeline.recipe import Recipe, warn_once
from tests.support.bad_input import refused

MINE = "data.train=mine.json"
HOLDS_OUT = "data.holdout_fraction=0.1"


@pytest.fixture
def child(tmp_path):
    def write(**data):
        path = tmp_path / "child.yaml"
        path.write_text(yaml.safe_dump({"extends": "bert_base_squad", "data": data}, sort_keys=False))
        return str(path)

    return write


def test_the_recipes_source_domain_stays_with_a_warning(child, caplog):
    for name, overrides in (("bert_base_squad", [MINE]), (child(train="mine.json"), [])):
        warn_once.cache_clear()
        caplog.clear()
        for _ in range(3):  # a sweep loads it for each run
            assert list(Recipe.load(name, overrides).data.eval) == ["squad"]
        [record] = caplog.records
        said = "data.train is 'mine.json', while the source domain, data.eval.squad ('rajpurkar/squad')"
        assert (record.levelname, said in record.message) == ("WARNING", True)
    warn_once.cache_clear()
    Recipe.make("bert_base_squad", data={"train": "mine.json"})
    assert len(caplog.records) == 2


def test_test_sets_that_are_added_would_count_as_out_of_domain(child):
    added = "data.eval.own=dev.json"
    for name, overrides in (
        ("bert_base_squad", [MINE, added]),
        ("bert_base_squad", [added, MINE]),
        (child(train="mine.json", eval={"own": "dev.json"}), []),
    ):
        said = refused(Recipe.load, name, overrides)
        assert "own would count as out of domain: name all test sets" in said
        assert said.endswith("as in --set 'data.eval={own: FILE}'")


@pytest.mark.parametrize(
    ("overrides", "sets"),
    [
        ([MINE, "data.eval={own: dev.json}"], ["own"]),
        ([MINE, "data.eval={own: dev.json, squad: rajpurkar/squad}"], ["own", "squad"]),
        ([MINE, "data.eval.own=dev.json", "data.eval.squad=rajpurkar/squad"], ["squad", "own"]),
        (["data.eval.amazon=amazon.json"], ["squad", "amazon"]),
        (["data.train=rajpurkar/squad", "data.eval.amazon=amazon.json"], ["squad", "amazon"]),
        ([MINE, HOLDS_OUT, "data.eval.amazon=amazon.json"], ["squad", "amazon"]),  # held_out is first
        ([HOLDS_OUT, "data.eval={amazon: amazon.json}"], ["amazon"]),
        ([MINE, HOLDS_OUT, "data.eval={own: mine.json}"], ["own"]),
        (["data.holdout_fraction=0"], ["squad"]),
    ],
)
def test_what_is_clear_is_taken_as_it_is(overrides, sets, caplog):
    assert list(Recipe.load("bert_base_squad", overrides).data.eval) == sets
    assert not caplog.records


@pytest.mark.parametrize("overrides", [[HOLDS_OUT], [HOLDS_OUT, "data.eval.amazon=amazon.json"]])
def test_the_training_domain_is_not_out_of_domain_beside_held_out_articles(overrides):
    said = refused(Recipe.load, "bert_base_squad", overrides)
    assert said.startswith("data.holdout_fraction 0.1: held-out articles are the source domain, and data.eval.squad (")


def test_overrides_are_compared_with_the_file_that_they_change(child, caplog):
    name = child(train="mine.json", eval={"squad": "dev.json"})
    assert list(Recipe.load(name, ["data.eval.amazon=a.json"]).data.eval) == ["squad", "amazon"]
    assert not caplog.records
    said = refused(Recipe.load, name, ["data.train=other.json", "data.eval.amazon=a.json"])
    assert "data.eval.squad ('dev.json'), is the recipe's" in said


@pytest.mark.parametrize("override", ["data=", "data.eval=5", "data.eval.squad=5"])
def test_malformed_sections_are_left_to_validation(override):
    assert refused(Recipe.load, "bert_base_squad", [MINE, override])
