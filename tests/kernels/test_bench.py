import numpy as np
import pytest
import torch

from swep_ds.kernels import torch_impl
from swep_ds.kernels.tools import bench
from tests.support import perturb_reference as reference


def test_the_naive_baseline_computes_the_same_thing(monkeypatch):
    batch = bench.inputs(4, 16, 16, torch.float64, "cpu")
    tensors = [batch[name].detach() for name in ("embeddings", "params", "mask")]
    eps = np.random.default_rng(0).standard_normal((4, 16, 16))
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.from_numpy(eps))
    e, delta, v = (x.numpy() for x in (tensors[0], *tensors[1].chunk(2, -1)))
    expected = reference.perturb(e, 1 + delta, np.log(0.1) + v, tensors[2].numpy(), eps, 0.1, "learned")
    for got, want in zip(bench.naive(*tensors, 0.1), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_nothing_is_timed_when_the_results_are_wrong(monkeypatch):
    bench.check(32, torch.float32, "cpu")
    right = torch_impl.backward

    def wrong(g, k, e, *rest):
        grads = right(g, k, e, *rest)
        return (grads[0] * 1.001, grads[1]) if e.dtype == torch.float32 else grads

    monkeypatch.setattr(torch_impl, "backward", wrong)
    with pytest.raises(RuntimeError, match="grad_embeddings is wrong at d = 32"):
        bench.check(32, torch.float32, "cpu")


def test_a_graph_is_compared_with_the_faster_copy():
    def record(implementation, timed, seconds):
        return {"implementation": implementation, "pass": "forward", "timed": timed, "seconds": seconds}

    records = [
        record("copy", "call, cold", 4.0),
        record("copy", "graph, cold", 5.0),
        record("copy", "call, warm", 3.0),
        record("copy", "graph, warm", 2.0),
        *(record("fused", timed, 8.0) for timed in ("call, cold", "graph, cold", "call, warm", "graph, warm")),
        {"implementation": "eager", "timed": "graph", "out_of_memory": True},
    ]
    bench.compare_with_copies(records)
    assert [r.get("share_of_copy") for r in records] == [1.0, 0.8, 1.0, 1.0, 0.5, 0.5, 0.375, 0.25, None]
