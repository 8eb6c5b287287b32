"""fp16 skips updates that overflow; TF32 and the choice of attention kernels hold in an engine's passes alone; and
what `train.deterministic` switches on. On a CPU, the tests make DeepSpeed accept fp16. A step with foreach operations
computes what DeepSpeed's own does."""

import json
import math
import os

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from torch.backends.cuda import cudnn_sdp_enabled

from benchmarks.training.updates import EngineUpdate
from swep_ds.common.errors import InputError
from swep_ds.methods.base import MicroStep
from swep_ds.methods.noise_effect import nearest
from swep_ds.models.backends import tf32_products
from swep_ds.pipeline import checks, prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.group import CUBLAS, FLASH_ATTENTION, process_group, set_deterministic
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import run_update, seed_dropout
from tests.support import ds_configs, tiny_run
from tests.support.engine_memory import make_config, make_objective
from tests.support.engine_runs import weights_of
from tests.support.tiny_batches import batch
from tests.support.tiny_objective import objective

UPDATES, POWER = 20, 18  # a scale that overflows at first


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_update_that_fp16_skips_changes_no_weight_and_has_no_norm(tmp_path, monkeypatch, stage):
    resolve = checks.complete_ds_config
    monkeypatch.setattr(checks, "complete_ds_config", lambda *a, **more: resolve(*a, **more | {"on_cpu": False}))
    monkeypatch.setattr(type(get_accelerator()), "is_fp16_supported", lambda _: True)
    settings = ["train.precision=fp16", "method.kl_target=4000", "method.noise_learning_rate=5e-3"]
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)), [*settings, "method.noise_max_grad_norm=0.3"])
    file = tiny_run.ds_config(tmp_path, stage)
    scaling = {"enabled": "auto", "initial_scale_power": POWER, "hysteresis": 1}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fp16": scaling}))
    with process_group():
        job = prepare.prepare(checks.read_and_check(recipe, str(file)))
        engine = build_engine(job.objective, job.config, recipe.train, UPDATES)
        batches = iter(job.batches[update] for update in range(UPDATES))
        scale, skips, before = 2.0**POWER, [], weights_of(engine)
        while skips[-2:] != [False, False]:
            run_update(engine, batches, 1, MicroStep(len(skips)))
            numbers, now = engine.read(), weights_of(engine)
            skips.append(engine.deepspeed.optimizer.overflow)
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


@pytest.mark.parametrize(("precision", "expected"), [("tf32", "high"), ("fp32", "highest")])
def test_an_engine_chooses_its_kernels_and_leaves_those_of_the_process(tmp_path, precision, expected):
    """TF32 where its precision is tf32, and never cuDNN's attention."""
    given = {"micro_batch_size": 3, "gradient_accumulation_steps": 1, "precision": precision}
    source = ds_configs.write(tmp_path, {"zero_optimization": {"stage": 1}})
    config = ds_configs.resolve(source, world_size=1, on_cpu=False, **given)
    module, seen = objective("swep").float(), set()

    def note(name: str):
        return lambda *_: seen.add((name, torch.get_float32_matmul_precision(), cudnn_sdp_enabled()))

    with process_group():
        engine = build_engine(module, config, ds_configs.recipe(**given).train, updates=4)
        module.qa.register_forward_hook(note("forward"))
        module.method.noise.inner.register_full_backward_hook(note("backward"))
        module.qa.model.register_forward_hook(note("model"))
        engine.train()
        EngineUpdate(engine)(batch(dtype=torch.float32), 0)
        assert seen == {(name, expected, False) for name in ("forward", "backward", "model")}
        assert (torch.get_float32_matmul_precision(), cudnn_sdp_enabled()) == ("highest", True)
        seen.clear()
        engine.eval()
        with torch.no_grad():
            engine(batch(dtype=torch.float32))
        assert seen == {("model", expected, False)}
        engine.destroy()


def test_the_log_compares_words_in_float32():
    kinds = []

    def look_up(ids):
        kinds.append(torch.get_float32_matmul_precision())
        return torch.eye(4)[ids]

    with tf32_products():
        assert nearest(torch.eye(4), look_up, 4).tolist() == [0, 1, 2, 3]
        assert torch.get_float32_matmul_precision() == "high"
    assert kinds == ["highest"]


def test_a_gpu_without_tf32_is_refused(tmp_path, monkeypatch):
    resolve = checks.complete_ds_config
    monkeypatch.setattr(checks, "complete_ds_config", lambda *a, **more: resolve(*a, **more | {"on_cpu": False}))
    monkeypatch.setattr(accelerator, "has_tf32", lambda: False)
    monkeypatch.setattr(accelerator, "product_name", lambda: "Tesla T4")
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)), ["train.precision=tf32"])
    said = r"^train\.precision tf32: Tesla T4 has no TF32 .*: set it to fp32$"
    with process_group(), pytest.raises(InputError, match=said):
        checks.read_and_check(recipe, str(tiny_run.ds_config(tmp_path, 0)))


@pytest.mark.parametrize("before", [True, False])
def test_determinism_is_switched_on_and_off_and_a_run_leaves_it_as_it_was(monkeypatch, before):
    for name in (CUBLAS, FLASH_ATTENTION):
        monkeypatch.delenv(name, raising=False)
    torch.use_deterministic_algorithms(before)
    try:
        with process_group():
            set_deterministic(True)
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()  # attention's backward only warns there
            assert (os.environ[CUBLAS], os.environ[FLASH_ATTENTION]) == (":4096:8", "1")
            set_deterministic(not before)
        assert torch.are_deterministic_algorithms_enabled() == before
        assert not {CUBLAS, FLASH_ATTENTION} & set(os.environ)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True


def trained(stage: int, precision: str, apart: bool) -> tuple[list[torch.Tensor], list[float]]:
    """The float32 weights after two updates, each of which clips, and the norms of their gradients; the noise
    generator's gradient may be clipped apart."""
    settings = ["train.micro_batch_size=3", "train.learning_rate=1e-3", "train.max_grad_norm=0.1"]
    settings += ["train.gradient_accumulation_steps=2", f"train.precision={precision}"]
    settings += ["method.noise_max_grad_norm=0.05"] if apart else []
    recipe = Recipe.load("quickstart", settings)
    torch.manual_seed(0)
    engine = build_engine(make_objective("bert", recipe), make_config(recipe, stage), recipe.train, 100)
    engine.train()
    norms = []
    for update in range(2):
        seed_dropout(0, update)
        micro_batches = iter([batch(seed=2 * update + number, dtype=torch.float32) for number in range(2)])
        run_update(engine, micro_batches, 2, MicroStep(update))
        norms.append(float(engine.grad_norm))
    name = "fp32_partitioned_groups_flat" if stage == 3 else "single_partition_of_fp32_groups"
    masters = [flat.detach().clone() for flat in getattr(engine.deepspeed.optimizer, name)]
    engine.destroy()
    return masters, norms


@pytest.mark.parametrize(
    ("stage", "precision", "apart"),
    [
        (1, "bf16", True),
        (1, "fp32", False),
        (1, "autocast", False),
        (2, "bf16", False),
        (2, "fp32", False),
        (3, "bf16", True),
    ],
)
def test_an_update_is_deepspeeds_own_to_the_last_bit(monkeypatch, stage, precision, apart):
    """With the flat gradient of ZeRO-1, and with foreach operations. A failure at ZeRO-1 alone says that this DeepSpeed
    reads gradients from somewhere else: `training/zero/gradient.py` then has to follow."""
    with process_group():
        weights, norms = trained(stage, precision, apart)
        monkeypatch.setattr("swep_ds.training.zero.install.use_foreach", lambda _: None)
        monkeypatch.setattr("swep_ds.training.zero.install.FlatGradient", lambda _: None)
        if (stage, precision) == (1, "bf16"):  # whose sum of backwards DeepSpeed keeps in bf16, but not at ZeRO-2
            stage = 2
        expected, expected_norms = trained(stage, precision, apart)
    assert norms == expected_norms
    assert all(math.isfinite(norm) and norm > 0.1 for norm in norms)
    assert all(map(torch.equal, weights, expected))
