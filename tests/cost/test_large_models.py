"""Every model of docs/large_models.md is reached by a command whose recipe and ds_config go together."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from swep_ds.pipeline.prepare import resolve_ds_config
from swep_ds.pipeline.recipe import RECIPES, Recipe
from tests.support.tiny_run import ROOT

BLOCK, *_ = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "large_models.md").read_text(), re.DOTALL)
COMMANDS = [dict(zip(words[2::2], words[3::2], strict=True)) for words in map(shlex.split, BLOCK.splitlines())]
MODELS = {command["--set"].removeprefix("model.name=").split("/")[1]: command for command in COMMANDS}


def resolve(recipe: Recipe, ds_config: Path | str) -> dict:
    return resolve_ds_config(str(ds_config), recipe, world_size=2, micro_steps=2, hidden_size=64, on_cpu=False)


@pytest.mark.parametrize("model", MODELS)
def test_recipe_and_ds_config_go_together(model):
    command = MODELS[model]
    recipe = Recipe.load(command["--recipe"], [command["--set"]])
    assert recipe.model.name.endswith(model)
    assert (recipe.task == "generative") == ("t5" in model)
    assert resolve(recipe, ROOT / command["--ds_config"])["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
    assert len(MODELS) >= 13


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_loads_with_the_ds_config_in_its_head(path):
    head = path.read_text().replace("\\\n#", "").splitlines()[0]
    words = shlex.split(head.lstrip("# "))
    recipe = Recipe.load(path.stem, [b for a, b in pairwise(words) if a == "--set"])
    resolve(recipe, dict(pairwise(words)).get("--ds_config", "zero2"))
    # transformers: gradients should not be clipped for Adafactor
    assert (recipe.train.max_grad_norm == 0) == (recipe.train.optimizer == "adafactor")
