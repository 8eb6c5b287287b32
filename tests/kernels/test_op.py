import os

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from swep_ds.kernels import perturb, torch_impl
from swep_ds.kernels.op import VARIABLE, implementation


def batch(n=3, t=7, d=16):
    generator = torch.Generator().manual_seed(3)
    embeddings = torch.randn(n, t, d, generator=generator, requires_grad=True)
    params = torch.randn(n, t, 2 * d, generator=generator, requires_grad=True)
    return embeddings, params, torch.arange(t) < torch.tensor([t, 4, 1])[:n, None], torch.arange(n) + 40


@pytest.mark.parametrize("as_tensor", [False, True])
def test_compiles_into_one_graph_and_does_not_recompile_for_each_draw(as_tensor):
    embeddings, params, mask, ids = batch()
    compiles = []

    def backend(graph, example_inputs):
        compiles.append(graph)
        return graph.forward

    def loss(draw):
        perturbed, kl = perturb(embeddings, params, mask, ids, seed=2**64 - 7, draw=draw, prior_variance=0.1)
        return perturbed.square().sum() + kl.sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for draw in range(1, 6):
        key = torch.tensor(draw) if as_tensor else draw
        result, expected = compiled(key), loss(key)
        assert torch.equal(result, expected)
        gradients = (torch.autograd.grad(x, (embeddings, params)) for x in (result, expected))
        for got, want in zip(*gradients, strict=True):
            assert torch.equal(got, want)
    assert 1 <= len(compiles) <= 2  # one for a constant integer, one for any


@pytest.mark.parametrize(("changed", "compiled"), [("seed", False), ("draw", True)])
def test_a_key_changed_in_place_before_the_backward_raises(changed, compiled):
    embeddings, params, mask, ids = batch()
    key = {"seed": torch.tensor(5), "draw": torch.tensor(6)}

    def loss(key):
        return perturb(embeddings, params, mask, ids, **key, prior_variance=0.1)[0].square().sum()

    run = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    run(key).backward()
    value = run(key)
    key[changed] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_activation_checkpointing_and_autocast_change_nothing():
    embeddings, params, mask, ids = batch()

    def loss(embeddings, params):
        perturbed, kl = perturb(embeddings, params, mask, ids, seed=1, draw=2, prior_variance=0.1)
        return perturbed.square().sum() + kl.sum()

    with torch.autocast("cpu", torch.bfloat16):
        cast = loss(embeddings, params)
    losses = [loss(embeddings, params), cast, checkpoint(loss, embeddings, params, use_reentrant=False)]
    usual, *others = [(x, *torch.autograd.grad(x, (embeddings, params))) for x in losses]
    for other in others:
        assert all(torch.equal(*pair) for pair in zip(usual, other, strict=True))


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    implementation.cache_clear()
    yield
    implementation.cache_clear()


def test_pytorch_runs_on_cpus_in_float64_and_where_it_is_forced(fresh, monkeypatch):
    assert implementation("cpu", torch.float32) is torch_impl
    assert implementation("cuda", torch.float64) is torch_impl
    pytest.importorskip("triton")
    assert implementation("cuda", torch.bfloat16).__name__ == "swep_ds.kernels.triton_impl"
    implementation.cache_clear()
    monkeypatch.setenv(VARIABLE, "torch")
    assert implementation("cuda", torch.bfloat16) is torch_impl


@pytest.mark.parametrize(
    ("choice", "device", "dtype", "message"),
    [
        ("trition", "cuda", torch.float32, "must be auto, torch or triton; got 'trition'"),
        ("triton", "cuda", torch.float64, "the Triton kernels compute in float32"),
        ("triton", "cpu", torch.float32, "TRITON_INTERPRET=1"),
    ],
)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter does run on a CPU")
def test_a_choice_that_cannot_be_met_is_refused(fresh, monkeypatch, choice, device, dtype, message):
    pytest.importorskip("triton")
    monkeypatch.setenv(VARIABLE, choice)
    with pytest.raises((ValueError, RuntimeError), match=message):
        implementation(device, dtype)
