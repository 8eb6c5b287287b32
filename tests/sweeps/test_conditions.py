"""What a run's ds_config decides for all runs of a table."""

import json

from swep_ds.pipeline.prepare import resolve_ds_config
from swep_ds.pipeline.recipe import Recipe
from swep_ds.sweeps import conditions as room
from tests.support import tiny_run


def test_conditions_are_what_the_recipe_does_not_decide(tmp_path):
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)))

    def conditions(stage: int, recipe: Recipe, ranks: int, **how) -> dict:
        source = str(tiny_run.ds_config(tmp_path, stage))
        resolved = resolve_ds_config(source, recipe, world_size=ranks, on_cpu=True, **how)
        (tmp_path / "ds_config.json").write_text(json.dumps(resolved))
        return room.conditions(tmp_path)

    usual = conditions(2, recipe, 1, micro_steps=2, hidden_size=32)
    assert usual["ds_config zero_optimization.stage"] == 2
    train = recipe.train.model_copy(
        update={"micro_batch_size": 4, "learning_rate": 1.0, "precision": "bf16", "max_grad_norm": 0.0}
    )
    assert conditions(2, recipe.model_copy(update={"train": train}), 1, micro_steps=1, hidden_size=64) == usual
    assert conditions(0, recipe, 1, micro_steps=2, hidden_size=32) != usual
    assert conditions(2, recipe, 2, micro_steps=2, hidden_size=32) == usual
