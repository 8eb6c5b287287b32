"""fp16 scales the loss and skips updates that overflow. On a CPU, the tests make DeepSpeed accept fp16."""

import json
import math
from pathlib import Path

import pytest
import torch
from deepspeed.accelerator import get_accelerator

from swep_ds.methods.base import MicroStep
from swep_ds.pipeline import prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.average import WeightAverage
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import run_update
from swep_ds.training.sharding import full_weights
from tests.support import tiny_run

UPDATES, POWER = 20, 18  # a scale that overflows at first
SET = ["train.precision=fp16", "train.average=ema", "train.average_decay=0.6", "method.kl_target=4000"]
SET += ["method.noise_learning_rate=5e-3", "method.noise_max_grad_norm=0.3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fp16")
    tiny_run.prepare(path)
    return path


@pytest.fixture
def on_cpu(monkeypatch) -> None:
    resolve = prepare.resolve_ds_config
    monkeypatch.setattr(prepare, "resolve_ds_config", lambda *a, **more: resolve(*a, **more | {"on_cpu": False}))
    monkeypatch.setattr(type(get_accelerator()), "is_fp16_supported", lambda _: True)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_skipped_update_changes_no_weight_counts_in_the_mean_and_has_no_norm(folder, on_cpu, stage):
    file = tiny_run.ds_config(folder, stage)
    scaling = {"enabled": "auto", "initial_scale_power": POWER, "hysteresis": 1}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fp16": scaling}))
    recipe = Recipe.load(str(folder / "recipe.yaml"), SET)
    with process_group():
        job = prepare.prepare(recipe, str(file))
        engine = build_engine(job.objective, job.config, recipe.train, UPDATES)
        average, parts = WeightAverage.of(engine, recipe.train, UPDATES), job.objective.parts("split")
        batches, skips, scale = iter(job.batches[update] for update in range(UPDATES)), [], 2.0**POWER
        weights, before = [], weights_of(engine)
        for update in range(UPDATES):
            run_update(engine, batches, 1, MicroStep(update), parts)
            average.add(update + 1)
            numbers, now = engine.read(), weights_of(engine)
            skips.append(engine.optimizer.overflow)
            assert skips[-1] == all(torch.equal(now[name], before[name]) for name in now)
            assert numbers["skipped_updates"] == sum(skips)
            if skips[-1]:
                scale /= 2
                assert numbers["grad_norm"] == numbers["noise_grad_norm"] == math.inf
            else:
                assert 0 < numbers["noise_grad_norm"] < numbers["grad_norm"] < 1000  # without the scale
            assert numbers["loss_scale"] == scale
            weights, before = [*weights, now], now
            if skips[-2:] == [False, False]:
                break
        assert skips[0]
        assert skips[-2:] == [False, False]
        with average.applied():
            mean = weights_of(engine)
        engine.destroy()
    shares = [0.6 ** (len(weights) - number) for number in range(1, len(weights) + 1)]
    for name in (name for name in mean if name.startswith("qa.")):
        expected = sum(s * w[name].double() for s, w in zip(shares, weights, strict=True)) / sum(shares)
        torch.testing.assert_close(mean[name].double(), expected, rtol=1e-6, atol=1e-7)


def weights_of(engine) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in full_weights(engine, engine.module, masters=True)}
