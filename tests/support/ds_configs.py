"""ds_configs written to a file and resolved with a recipe."""

import json
from pathlib import Path

from swep_ds.pipeline.recipe import Recipe
from swep_ds.training.ds_config import complete_ds_config
from tests.support.bad_input import refused

TRAIN = {"micro_batch_size": 4, "gradient_accumulation_steps": 3, "learning_rate": 2e-4, "max_grad_norm": 0.5}
TRAIN |= {"weight_decay": 0.01, "adam_betas": [0.8, 0.98], "adam_epsilon": 1e-6}


def recipe(**train) -> Recipe:
    sections = {"model": {"name": "m"}, "method": {"name": "swep"}, "data": {"train": "t", "eval": {"x": "y"}}}
    return Recipe.model_validate(sections | {"train": TRAIN | train})


def write(folder: Path, config: object) -> Path:
    (folder / "ds.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder / "ds.json"


def resolve(source: Path, backwards=2, world_size=2, on_cpu=True, **train) -> dict:
    """For a model of hidden size 16."""
    given = {"world_size": world_size, "backwards": backwards, "hidden_size": 16, "on_cpu": on_cpu}
    return complete_ds_config(str(source), recipe(**train).train, **given)


def message(source: Path, **changes) -> str:
    """What `resolve` raises."""
    said = refused(resolve, source, **changes)
    assert said.isprintable()
    assert str(source) in said
    return said
