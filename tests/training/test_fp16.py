"""fp16 scales the loss and skips updates that overflow. On a CPU, the tests make DeepSpeed accept fp16."""

import json
import math

import pytest
import torch
from deepspeed.accelerator import get_accelerator

from swep_ds.methods.base import MicroStep
from swep_ds.pipeline import prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import run_update
from swep_ds.training.sharding import full_weights
from tests.support import tiny_run

UPDATES, POWER = 20, 18  # a scale that overflows at first
SET = ["train.precision=fp16", "method.kl_target=4000", "method.noise_learning_rate=5e-3"]
SET.append("method.noise_max_grad_norm=0.3")


@pytest.fixture
def on_cpu(monkeypatch) -> None:
    resolve = prepare.resolve_ds_config
    monkeypatch.setattr(prepare, "resolve_ds_config", lambda *a, **more: resolve(*a, **more | {"on_cpu": False}))
    monkeypatch.setattr(type(get_accelerator()), "is_fp16_supported", lambda _: True)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_skipped_update_changes_no_weight_and_has_no_norm(tmp_path, on_cpu, stage):
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)), SET)
    file = tiny_run.ds_config(tmp_path, stage)
    scaling = {"enabled": "auto", "initial_scale_power": POWER, "hysteresis": 1}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fp16": scaling}))
    with process_group():
        job = prepare.prepare(recipe, str(file))
        engine = build_engine(job.objective, job.config, recipe.train, UPDATES)
        batches = iter(job.batches[update] for update in range(UPDATES))
        scale = 2.0**POWER
        skips = []
        before = weights_of(engine)
        while skips[-2:] != [False, False]:
            run_update(engine, batches, 1, MicroStep(len(skips)), engine.parts)
            numbers = engine.read()
            now = weights_of(engine)
            skips.append(engine.optimizer.overflow)
            assert skips[-1] == all(torch.equal(now[name], before[name]) for name in now)
            assert numbers["skipped_updates"] == sum(skips)
            if skips[-1]:
                scale /= 2
                assert numbers["grad_norm"] == numbers["noise_grad_norm"] == math.inf
            else:
                assert 0 < numbers["noise_grad_norm"] < numbers["grad_norm"] < 1000  # without the scale
            assert numbers["loss_scale"] == scale
            before = now
        assert skips[0]
        engine.destroy()


def weights_of(engine) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in full_weights(engine, engine.module, masters=True)}
