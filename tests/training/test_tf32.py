"""TF32 holds in the forwards and backwards of an engine that asks for it, and nowhere else in the process. So does the
choice of attention kernels, in every engine."""

import pytest
import torch
from torch.backends.cuda import cudnn_sdp_enabled

from swep_ds.common.errors import InputError
from swep_ds.cost.candidates import engine_update
from swep_ds.methods.noise_effect import nearest
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


@pytest.mark.parametrize(("precision", "expected"), [("tf32", "high"), ("fp32", "highest")])
def test_an_engine_chooses_its_kernels_and_leaves_those_of_the_process(group, tmp_path, precision, expected):
    """TF32 where its precision is tf32, and never cuDNN's attention."""
    given = {**ONE_RANK, "precision": precision}
    source = ds_configs.write(tmp_path, {"zero_optimization": {"stage": 1}})
    config = ds_configs.resolve(source, world_size=1, on_cpu=False, **given)
    module, seen = objective("swep").float(), set()
    engine = build_engine(module, config, ds_configs.recipe(**given).train, updates=4)

    def note(name: str):
        return lambda *_: seen.add((name, torch.get_float32_matmul_precision(), cudnn_sdp_enabled()))

    module.qa.register_forward_hook(note("forward"))
    module.method.noise.inner.register_full_backward_hook(note("backward"))
    module.qa.model.register_forward_hook(note("model"))
    engine.train()
    engine_update(engine, "split")(batch(dtype=torch.float32), 0)
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

    with float32_products("tf32"):
        words = nearest(torch.eye(4), look_up, 4)
        assert torch.get_float32_matmul_precision() == "high"
    assert kinds == ["highest"]
    assert words.tolist() == [0, 1, 2, 3]


def test_a_gpu_without_it_is_refused(monkeypatch):
    monkeypatch.setattr(accelerator, "has_tf32", lambda: False)
    monkeypatch.setattr(accelerator, "product_name", lambda: "Tesla T4")
    with pytest.raises(InputError, match=r"^train\.precision tf32: Tesla T4 has no TF32 .*: set it to fp32$"):
        _check_environment(ds_configs.recipe(precision="tf32"))
