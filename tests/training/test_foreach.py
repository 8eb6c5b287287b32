"""DeepSpeed's step with foreach operations computes what it computes without, to the last bit."""

import math

import pytest
import torch

from swep_ds.methods.base import MicroStep
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import run_update, seed_dropout
from tests.support.engine_memory import make_config, make_objective
from tests.support.tiny_batches import batch

UPDATES = 2
SET = ["train.micro_batch_size=3", "train.learning_rate=1e-3"]
# ZeRO stage, precision, and whether the noise generator's gradient is clipped apart
CASES = [(1, "bf16", True), (2, "bf16", False), (2, "fp32", False), (3, "bf16", True)]


def trained(stage: int, precision: str, apart: bool) -> tuple[list[torch.Tensor], list[float]]:
    """The float32 weights after UPDATES, each of which clips, and the norms of their gradients."""
    limits = ["train.max_grad_norm=0.1", *(["method.noise_max_grad_norm=0.05"] if apart else [])]
    recipe = Recipe.load("quickstart", [*SET, *limits, f"train.precision={precision}"])
    torch.manual_seed(0)
    objective = make_objective("bert", recipe)
    config = make_config(recipe, stage)
    engine = build_engine(objective, config, recipe.train, 100)
    engine.train()
    norms = []
    for update in range(UPDATES):
        seed_dropout(0, update)
        micro_batches = iter([batch(seed=update, dtype=torch.float32)])
        run_update(engine, micro_batches, 1, MicroStep(update), objective.parts("split"))
        norms.append(float(engine.grad_norm))
    name = "fp32_partitioned_groups_flat" if stage == 3 else "single_partition_of_fp32_groups"
    masters = [flat.detach().clone() for flat in getattr(engine.optimizer, name)]
    engine.destroy()
    return masters, norms


@pytest.mark.parametrize(("stage", "precision", "apart"), CASES)
def test_an_update_is_deepspeeds_own_to_the_last_bit(monkeypatch, stage, precision, apart):
    with process_group():
        weights, norms = trained(stage, precision, apart)
        monkeypatch.setattr("swep_ds.training.engine.use_foreach", lambda _: None)
        expected, expected_norms = trained(stage, precision, apart)
    assert norms == expected_norms
    assert all(math.isfinite(norm) and norm > 0.1 for norm in norms)
    assert all(map(torch.equal, weights, expected))
