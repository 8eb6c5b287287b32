"""The questions that results are of, read set by set."""

import pytest

from swep_ds.errors import InputError
from swep_ds.pipeline.examples import reported_examples
from swep_ds.recipe import HOLDOUT, Recipe

GONE = "gone.json"


def test_one_set_is_read_as_among_all_of_them():
    options = ["data.holdout_fraction=0.1", "eval.select_on=held_out", "data.max_eval_examples=50"]
    recipe = Recipe.load("quickstart", options)
    whole = reported_examples(recipe)
    assert list(whole) == [HOLDOUT, *recipe.data.eval]
    for name in (HOLDOUT, "news"):
        assert reported_examples(recipe, [name]) == {name: whole[name]}


def test_a_source_that_cannot_be_read_does_not_take_the_others_along():
    recipe = Recipe.load("quickstart", ["data.holdout_fraction=0.1", f"data.eval.lost={GONE}"])
    assert list(reported_examples(recipe, ["news", HOLDOUT])) == [HOLDOUT, "news"]
    for names in (None, ["lost"]):
        with pytest.raises(InputError, match=r"^data\.eval\.lost: .*gone\.json"):
            reported_examples(recipe, names)
    without_training_data = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": GONE})})
    assert list(reported_examples(without_training_data, ["news"])) == ["news"]
    with pytest.raises(InputError, match=r"the recipe has no test set nyt \(there: held_out, encyclopedia, "):
        reported_examples(recipe, ["nyt"])
