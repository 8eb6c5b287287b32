"""TF32 holds in the forwards and backwards of an engine that asks for it, and nowhere else in the process. So does the
choice of attention kernels, in every engine."""

import pytest
import torch

from swep_ds.common.errors import InputError
from swep_ds.cost.candidates import engine_update
from swep_ds.methods.nearest import nearest
from swep_ds.models.backends import float32_products
from swep_ds.pipeline.prepare import _check_environment
from swep_ds.ranks import accelerator
from swep_ds.ranks.group import process_group
from swep_ds.training.engine import build_engine
from tests.support import ds_configs
from tests.support.tiny_batches import batch
from tests.support.tiny_objective import objective

ONE_RANK = {"micro_batch_size": 3, "gradient_accumulation_steps": 1}


@pytest.fixture(scope="module")
def group():
    with process_group():
        yield


def engine_at(tmp_path, precision: str):
    source = ds_configs.write(tmp_path, {"zero_optimization": {"stage": 1}})
    given = {**ONE_RANK, "precision": precision}
    config = ds_configs.resolve(source, world_size=1, on_cpu=False, **given)
    module = objective("swep").float()
    return build_engine(module, config, ds_configs.recipe(**given).train, updates=4), module


def test_only_the_engine_that_asks_for_it_computes_in_tf32(group, tmp_path):
    for precision, expected in (("tf32", "high"), ("fp32", "highest")):
        engine, module = engine_at(tmp_path, precision)
        seen = set()

        def note(name, seen=seen):
            seen.add((name, torch.get_float32_matmul_precision()))

        module.qa.register_forward_hook(lambda *_, note=note: note("forward"))
        module.method.noise.inner.register_full_backward_hook(lambda *_, note=note: note("backward"))
        module.qa.model.register_forward_hook(lambda *_, note=note: note("model"))
        engine.train()
        engine_update(engine, "split")(batch(dtype=torch.float32), 0)
        assert seen == {(name, expected) for name in ("forward", "backward", "model")}
        assert torch.get_float32_matmul_precision() == "highest"
        seen.clear()
        engine.eval()
        with torch.no_grad():
            engine(batch(dtype=torch.float32))
        assert seen == {("model", expected)}
        engine.destroy()


def test_no_engine_takes_cudnns_attention(group, tmp_path):
    engine, module = engine_at(tmp_path, "fp32")
    seen = set()
    module.qa.register_forward_hook(lambda *_: seen.add(("forward", torch.backends.cuda.cudnn_sdp_enabled())))
    module.method.noise.inner.register_full_backward_hook(
        lambda *_: seen.add(("backward", torch.backends.cuda.cudnn_sdp_enabled()))
    )
    engine.train()
    engine_update(engine, "split")(batch(dtype=torch.float32), 0)
    assert seen == {("forward", False), ("backward", False)}
    assert torch.backends.cuda.cudnn_sdp_enabled()
    engine.destroy()


def test_the_log_compares_words_in_float32():
    kinds = []

    def look_up(ids):
        kinds.append(torch.get_float32_matmul_precision())
        return torch.eye(4)[ids]

    with float32_products("tf32"):
        words = nearest(torch.eye(4), look_up, 4)
        assert torch.get_float32_matmul_precision() == "high"
    assert kinds == ["highest"]
    assert words.tolist() == [0, 1, 2, 3]


def test_a_gpu_without_it_is_refused(monkeypatch):
    monkeypatch.setattr(accelerator, "has_tf32", lambda: False)
    monkeypatch.setattr(accelerator, "product_name", lambda: "Tesla T4")
    with pytest.raises(InputError, match=r"^train\.precision tf32: Tesla T4 has no TF32 .*: set it to fp32$"):
        _check_environment(ds_configs.recipe(precision="tf32"), objective("mle").qa)
