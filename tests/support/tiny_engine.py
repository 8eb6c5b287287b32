"""What this package's engine computes for tiny models and batches: the reference for other training loops."""

from functools import cache

import torch

from swep_ds.data.batches import Batch
from swep_ds.methods import METHODS, build
from swep_ds.methods.base import MicroStep
from swep_ds.methods.objective import Objective
from swep_ds.methods.settings import Settings
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.ds_config import complete_ds_config
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import observe, run_update
from tests.support import tiny_batches, tiny_models
from tests.support.tiny_run import ROOT

SEED, UPDATES, RATE = 11, 4, 1e-2
# sizes that matter in a model as small as this one
SETTINGS = {
    "swep": {"beta": 1e-3, "initialisation": "default", "noise_learning_rate": 5e-2},
    "r_drop": {"divergence_weight": 5.0},
    "r3f": {"noise_size": 0.1},
    "pdr": {"start_size": 0.01},
    "lnsr": {"noise_scale": 0.5},
}
VARIANTS = {
    "swep-linear": ("swep", {"beta_schedule": "linear_to_zero"}),
    "swep-held": ("swep", {"kl_target": 30.0, "beta": 0.1}),
    "swep-hidden": ("swep", {"separate_hidden_pass": True, "noise": "additive"}),
}
ON_RANKS = METHODS["swep"](beta=1e-3, initialisation="default", kl_target=1000.0, noise_learning_rate=5e-2)
VARIANTS |= {name: (name, {}) for name, kind in METHODS.items() if not kind.needs_gradient and name != "ssmba"}


def settings(variant: str) -> Settings:
    name, changes = VARIANTS[variant]
    return METHODS[name](**SETTINGS.get(name, {}) | changes)


def batches(architecture: str, accumulation: int = 1) -> list[Batch]:
    """The micro-batches of all updates, padded alike; each has windows of its own."""
    kind = tiny_batches.generative if architecture in tiny_models.SEQ2SEQ else tiny_batches.batch
    listed = []
    for number in range(UPDATES * accumulation):
        batch = kind(seed=number, dtype=torch.float32)
        listed.append(batch._replace(sample_id=batch.sample_id + 10 * number))
    return listed


@cache
@process_group()
def expected_losses(variant: str, architecture: str, accumulation: int, smoothing: float = 0) -> list[float]:
    """The loss of each update."""
    method, generative = settings(variant), architecture in tiny_models.SEQ2SEQ
    execution = "joint" if accumulation > 1 else "split"
    train = {"learning_rate": RATE, "execution": execution, "gradient_accumulation_steps": accumulation}
    sections = {"train": train | {"micro_batch_size": 3}, "task": "generative" if generative else "extractive"}
    sections |= {"model": {"name": "tiny"}, "data": {"train": "none", "eval": {}}}
    recipe = Recipe.model_validate(sections | {"method": method.model_dump()})
    qa = (GenerativeQA if generative else ExtractiveQA)(tiny_models.model(architecture))
    torch.manual_seed(SEED)
    objective = Objective(qa, build(method, qa.hidden_size, qa.embedding_size), SEED, smoothing)
    backwards = len(objective.parts(execution))
    given = {"world_size": 1, "backwards": backwards, "hidden_size": 16, "on_cpu": True}
    config = complete_ds_config(str(ROOT / "ds_configs" / "zero0.json"), recipe.train, **given)
    engine = build_engine(objective, config, recipe.train, updates=UPDATES)
    engine.train()
    stream, losses = iter(batches(architecture, accumulation)), []
    for update in range(UPDATES):
        statistics = run_update(engine, stream, accumulation, MicroStep(update, update / UPDATES))
        observe(objective.method, statistics)
        losses.append(sum(float(seen["loss"]) for seen in statistics) / accumulation)
    engine.destroy()
    return losses


def inputs(batch: Batch) -> dict[str, torch.Tensor]:
    """A batch as a Hugging Face model takes it, with `sample_id`."""
    given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "sample_id": batch.sample_id}
    if batch.target_ids is not None:
        return given | {"labels": batch.target_ids}
    return given | {"start_positions": batch.start_position, "end_positions": batch.end_position}
