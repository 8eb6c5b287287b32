import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from benchmarks.kernels import bench
from swep_ds.kernels import torch_impl
from tests.support import perturb_reference as reference
from tests.support import scripts


def run(command: str) -> tuple[int, str, str]:
    program, *options = command.split()
    return scripts.run(f"benchmarks/kernels/{program}.py", *options)


def test_the_benchmark_on_a_cpu(tmp_path):
    command = "__main__ --device cpu --tokens 64 --width 16 --dtype float32 --output"
    code, printed, _ = run(f"{command} {tmp_path / 'made' / 'bench.1'}")
    assert code == 0
    records = json.loads((tmp_path / "made" / "bench.1.json").read_text())["sizes"]
    assert {(r["implementation"], r["pass"]) for r in records} == {
        (name, p) for name in ("fused", "eager", "copy") for p in ("forward", "backward", "both")
    }
    assert all(math.isfinite(r["seconds"]) for r in records)
    assert printed.count("| float32 |") == len(records)


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
