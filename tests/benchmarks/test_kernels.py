import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from benchmarks.kernels import bench, tune
from swep_ds.kernels import torch_impl, triton_impl
from swep_ds.kernels.triton_impl import Tile
from tests.support import perturb_reference as reference
from tests.support import scripts


def run(command: str) -> tuple[int, str, str]:
    program, *options = command.split()
    return scripts.run(f"benchmarks/kernels/{program}.py", *options)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("__main__ --device cpu --tokens 700", "--tokens: must be from 1 to 512, or a multiple of 512; got 700"),
        ("__main__ --device cpu --width 30", "--width: must be a multiple of 4 from 4 to 8192; got 30"),
        ("report --arch sm_70", "invalid choice: 'sm_70'"),
        ("tune", "GPU"),
    ],
)
def test_a_bad_argument_is_one_line_and_exit_code_2(command, message):
    if message == "GPU" and torch.cuda.is_available():
        pytest.skip("there is one")
    code, printed, complaint = run(command)
    assert code == 2
    assert printed == ""
    *usage, last = complaint.splitlines()
    assert usage[0].startswith("usage:")
    assert message in last


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


FAST = Tile(8, 64, 2)
CAPPED = Tile(2, 64, 1, 80)


@pytest.mark.parametrize(("fast", "factor", "chosen"), [(CAPPED, 0.5, CAPPED), (FAST, 0.99, None)])
def test_tuning_names_the_fastest_tile_if_it_is_worth_a_change(monkeypatch, fast, factor, chosen):
    """With invented times: the script needs no GPU to choose, what is worth a change, and to print."""
    tried = []

    def seconds(call, device):
        tile = Tile(*(call.keywords[name] for name in ("BLOCK_ROWS", "BLOCK_COLS", "num_warps", "maxnreg")))
        tried.append(tile)
        if tile == fast:
            return (1e-5 * factor,) * 3
        # without its cap the fast tile must be among the best for its caps to be tried
        return (0.995e-5 if tile[:3] == fast[:3] else 1e-5,) * 3

    monkeypatch.setattr(triton_impl, "target", lambda device: ("sm_90", "nvidia", 32))
    monkeypatch.setattr(bench, "seconds", seconds)
    line = tune.entry("backward", 768, [8, 4], torch.device("cpu"), "a GPU")
    expected = chosen or triton_impl.tile("sm_90", "backward", 768, 2, 32)
    times = "5.0, 5.0" if chosen else "10.0, 10.0"
    assert line == f"a GPU, sm_90, backward, d = 768: {expected}: {times} us; the default 10.0, 10.0"
    # 18 shapes, the default's cap, and 4 caps for 4 of them; each at two numbers of tokens
    assert len(set(tried)) <= 18 + 1 + 4 * 4
    assert len(tried) == 2 * len(set(tried))


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
