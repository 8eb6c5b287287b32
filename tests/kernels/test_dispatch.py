import importlib.util
import os

import pytest
import torch

from swep_ds.kernels import perturb, torch_impl
from swep_ds.kernels.dispatch import VARIABLE, implementation

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    implementation.cache_clear()
    yield
    implementation.cache_clear()


def test_pytorch_elsewhere_and_in_float64():
    assert implementation("cpu", torch.float32) is torch_impl
    assert implementation("cuda", torch.float64) is torch_impl


def test_triton_on_gpus():
    pytest.importorskip("triton")
    assert implementation("cuda", torch.bfloat16).__name__ == "swep_ds.kernels.triton_impl"


def test_pytorch_can_be_forced(monkeypatch):
    monkeypatch.setenv(VARIABLE, "torch")
    assert implementation("cuda", torch.bfloat16) is torch_impl


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ("trition", ValueError, "must be auto, torch or triton; got 'trition'"),
        ("triton", RuntimeError, "the Triton kernels compute in float32"),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(monkeypatch, choice, error, message):
    monkeypatch.setenv(VARIABLE, choice)
    with pytest.raises(error, match=message):
        implementation("cuda", torch.float64)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does run on a CPU")
def test_triton_forced_on_a_cpu_is_an_honest_error(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv(VARIABLE, "triton")
    embeddings = torch.zeros(1, 2, 4)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        perturb(
            embeddings, None, torch.ones(1, 2).bool(), torch.arange(1), seed=0, draw=0, prior_variance=1, mode="prior"
        )


def test_a_gpu_without_triton_is_an_honest_error(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="Triton is not installed"):
        implementation("cuda", torch.float32)
