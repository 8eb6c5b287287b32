"""The op: its implementations, torch.compile, opcheck, activation checkpointing, autocast."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from swep_ds.kernels import perturb, torch_impl
from swep_ds.kernels.op import VARIABLE, implementation


def batch(n=3, t=7, d=16):
    generator = torch.Generator().manual_seed(3)
    embeddings = torch.randn(n, t, d, generator=generator, requires_grad=True)
    params = torch.randn(n, t, 2 * d, generator=generator, requires_grad=True)
    return embeddings, params, torch.arange(t) < torch.tensor([t, 4, 1])[:n, None], torch.arange(n) + 40


def test_opcheck():
    command = [sys.executable, "-m", "tests.support.opcheck"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr[-4000:]
    assert checked.stdout.split() == ["learned", "prior"]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_compiles_into_one_graph_and_does_not_recompile_for_each_draw(as_tensor):
    embeddings, params, mask, ids = batch()
    compiles = []

    def backend(graph, example_inputs):
        compiles.append(graph)
        return graph.forward

    def loss(draw):
        perturbed, kl = perturb(
            embeddings, params, mask, ids, seed=2**64 - 7, draw=draw, prior_variance=0.1, mode="learned"
        )
        return perturbed.square().sum() + kl.sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for draw in range(1, 6):
        key = torch.tensor(draw) if as_tensor else draw
        result, expected = compiled(key), loss(key)
        assert torch.equal(result, expected)
        gradients = (torch.autograd.grad(x, (embeddings, params)) for x in (result, expected))
        for got, want in zip(*gradients, strict=True):
            assert torch.equal(got, want)
    assert len(compiles) <= 2  # one for a constant integer, one for any


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


@pytest.mark.parametrize("tensors", [(), ("seed",), ("draw",), ("seed", "draw")])
def test_the_backward_takes_the_key_of_the_forward(tensors):
    """e = 1: the perturbed embeddings are the noise, and so is their gradient."""
    _, params, mask, ids = batch()
    embeddings = torch.ones(3, 7, 16, requires_grad=True)
    key = {name: torch.tensor(x) if name in tensors else x for name, x in (("seed", 5), ("draw", 6))}
    perturbed, _ = perturb(embeddings, torch.zeros_like(params), mask, ids, **key, prior_variance=0.1)
    perturbed.sum().backward()
    assert torch.equal(embeddings.grad, perturbed)


class Tagger(nn.Module):
    """Embeddings, noise net and classifier: the smallest model that trains through the noise."""

    def __init__(self, d=16):
        super().__init__()
        self.words, self.noise, self.head = nn.Embedding(50, d), nn.Linear(d, 2 * d), nn.Linear(d, 2)
        self.use_checkpoint, self.perturb = False, perturb

    def noisy(self, e, mask, ids, draw):
        perturbed, kl = self.perturb(e, self.noise(e.detach()), mask, ids, seed=1, draw=draw, prior_variance=0.1)
        return self.head(perturbed), kl

    def forward(self, tokens, labels, ids, draw):
        e, mask = self.words(tokens), tokens > 0
        if self.use_checkpoint:
            logits, kl = checkpoint(self.noisy, e, mask, ids, draw, use_reentrant=False)
        else:
            logits, kl = self.noisy(e, mask, ids, draw)
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten()) + 1e-3 * kl.sum()


def train(updates=4, use_checkpoint=False, autocast=False, run=perturb):
    torch.manual_seed(0)
    model = Tagger()
    model.use_checkpoint, model.perturb = use_checkpoint, run
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # linear in the gradient, so in its rounding too
    tokens, labels, ids = torch.randint(0, 50, (4, 9)), torch.randint(0, 2, (4, 9)), torch.arange(4)
    for draw in range(updates):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(tokens, labels, ids, torch.tensor(draw))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_checkpointing_draws_the_same_noise_again():
    assert train(use_checkpoint=True) == train()


def test_autocast_changes_nothing_inside_the_op():
    dtypes = set()

    def outside(embeddings, params, *args, **key):
        dtypes.add((embeddings.dtype, params.dtype))
        with torch.autocast("cpu", enabled=False):
            return perturb(embeddings, params, *args, **key)

    losses = train(autocast=True)
    assert losses == train(autocast=True, run=outside)
    assert dtypes == {(torch.float32, torch.bfloat16)}
    assert losses != train()
    assert losses[-1] < losses[0]


# Implementations


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


def test_a_gpu_without_triton_is_an_honest_error(fresh, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="Triton is not installed"):
        implementation("cuda", torch.float32)
