import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import perturb_reference as reference
import pytest
import torch
from swep_ds.kernels import bench, naive, torch_impl

SCRIPT = Path(__file__).parents[2] / "scripts/bench_kernels.py"


def test_the_naive_baseline_computes_the_same_thing(monkeypatch):
    batch = bench.inputs(64, 16, torch.float64, "cpu", length=16)
    tensors = [batch[name].detach() for name in ("embeddings", "params", "mask")]
    eps = np.random.default_rng(0).standard_normal((4, 16, 16))
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.from_numpy(eps))
    e, mu, logvar = (x.numpy() for x in (tensors[0], *tensors[1].chunk(2, -1)))
    expected = reference.perturb(e, mu, logvar, tensors[2].numpy(), eps, 0.1, "learned")
    for got, want in zip(naive.perturb(*tensors, 0.1), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_a_token_count_is_that_of_the_batch():
    for tokens in (7, 512, 1536):
        assert bench.inputs(tokens, 4, torch.float32, "cpu")["mask"].numel() == tokens
    with pytest.raises(ValueError, match="tokens must be at most 512 or a multiple of it; got 700"):
        bench.inputs(700, 4, torch.float32, "cpu")


def test_nothing_is_timed_when_the_results_are_wrong(monkeypatch):
    bench.check(32, torch.float32, "cpu")
    right = torch_impl.backward

    def wrong(g, k, e, *rest):
        grads = right(g, k, e, *rest)
        return (grads[0] * 1.001, grads[1]) if e.dtype == torch.float32 else grads

    monkeypatch.setattr(torch_impl, "backward", wrong)
    with pytest.raises(RuntimeError, match="grad_embeddings is wrong at d = 32"):
        bench.check(32, torch.float32, "cpu")


def test_the_script_runs_on_a_cpu(tmp_path):
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--tokens", "64", "--width", "16", "--dtype", "float32"]
    result = subprocess.run([*command, "--output", str(tmp_path / "bench")], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    records = json.loads((tmp_path / "bench.json").read_text())["records"]
    assert {(r["implementation"], r["pass"]) for r in records} == {
        (name, p) for name in ("fused", "eager", "copy") for p in ("forward", "backward", "both")
    }
    assert all(r["seconds"] > 0 for r in records)
