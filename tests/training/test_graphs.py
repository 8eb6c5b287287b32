"""What a CUDA graph replays trains what updates without graphs do; `tests/support/graph_stand_in.py` is the GPU."""

import pytest
import torch

from swep_ds.methods.base import MicroStep
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.engine import build_engine
from swep_ds.training.graphs import PATIENCE
from swep_ds.training.loop import observe, run_update, seed_dropout
from tests.support.engine_memory import make_config, make_objective
from tests.support.graph_stand_in import stand_in_graphs
from tests.support.tiny_batches import batch

UPDATES = 16  # of two shapes, each with two kinds of measurements, so that each is captured once and replayed twice
METHODS_AND_SETTINGS = {
    "mle": (),
    "swep": ("method.beta_schedule=linear_to_zero", "method.initialisation=default", "train.precision=bf16"),
    "swep, held": ("method.kl_target=30", "train.execution=joint"),
    "fgm": (),
    "adv_aug": (),
    "r_drop": (),
    "word_dropout": ("train.gradient_accumulation_steps=3",),
}


def trained(name: str, settings: tuple[str, ...], graphed: bool):
    """The weights after some updates of two shapes, all statistics, and the engine."""
    method = name.partition(",")[0]
    fixed = ["train.micro_batch_size=3", "train.learning_rate=1e-3", f"method.name={method}"]
    recipe = Recipe.load("quickstart", [*fixed, *settings, f"train.cuda_graphs={graphed}"])
    torch.manual_seed(0)
    objective = make_objective("bert", recipe)
    parts = objective.parts(recipe.train.execution)
    with stand_in_graphs(PATIENCE):
        engine = build_engine(objective, make_config(recipe, 1, micro_steps=len(parts)), recipe.train, UPDATES)
    engine.train()
    accumulation = recipe.train.gradient_accumulation_steps
    seen = []
    for update in range(UPDATES):
        lengths = (12, 7, 9) if update % 2 else (6, 6, 4)
        micro_batches = [batch(lengths, seed=10 * update + k, dtype=torch.float32) for k in range(accumulation)]
        seed_dropout(0, update)
        step = MicroStep(update, update / UPDATES, measure=update % 4 < 2, compare=update % 4 < 1)
        statistics = run_update(engine, iter(micro_batches), accumulation, step, parts)
        observe(engine.module.method, statistics)
        seen += statistics
    weights = [parameter.detach().clone() for parameter in engine.module.parameters()]
    engine.destroy()
    return weights, seen, engine


@pytest.mark.parametrize("name", METHODS_AND_SETTINGS)
def test_replays_train_what_updates_without_graphs_do_to_the_last_bit(name):
    settings = METHODS_AND_SETTINGS[name]
    with process_group():
        expected, expected_statistics, _ = trained(name, settings, False)
        weights, statistics, engine = trained(name, settings, True)
    assert all(map(torch.equal, weights, expected))
    for mine, theirs in zip(statistics, expected_statistics, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            assert float(mine[key]) == pytest.approx(float(value), rel=1e-7), key
    accumulates = "gradient_accumulation_steps" in "".join(settings)
    assert len(engine.graphs._graphs) == (8 if accumulates else 4)
