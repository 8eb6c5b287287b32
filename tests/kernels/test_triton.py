"""The Triton kernels: on a GPU if there is one, else in Triton's interpreter."""

import importlib
import sys
from functools import partial

import pytest
import torch

from tests.support import perturb_reference as reference

pytest.importorskip("triton")

from swep_ds import kernels
from swep_ds.kernels import MODES, torch_impl, triton_impl
from swep_ds.kernels.op import implementation, perturb_backward_op, perturb_op

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def of_triton() -> list[str]:
    """The modules whose functions are compiled or interpreted, as Triton decides when it is imported."""
    names = [name for name in sys.modules if f"{name}.".startswith(("triton.", "swep_ds.kernels.triton_"))]
    return [name for name in names if not name.startswith("triton._C")]  # a binary is loaded once


@pytest.fixture(scope="module", autouse=True)
def interpreted():
    """Without a GPU, `triton_impl` is the module with the interpreter below it. Both are imported anew beside the usual
    ones, and leave with this file's tests."""
    global triton_impl
    if DEVICE == "cuda":
        yield
        return
    usual = {name: sys.modules[name] for name in of_triton()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for name in ("triton_impl", "triton_kernels"):
            patch.setattr(kernels, name, None)  # is put back
        for name in usual:
            patch.delitem(sys.modules, name)
        triton_impl = importlib.import_module("swep_ds.kernels.triton_impl")
    yield
    for name in of_triton():
        if name not in usual:
            del sys.modules[name]


ALPHA, SEED, DRAW = 0.1, 2**63 + 12345, 2**31 + 9
SIGNED_SEED = SEED - 2**64


@pytest.fixture(autouse=True)
def poisoned_memory():
    """PyTorch fills what `torch.empty` returns with NaN, so that an element that is never written shows."""
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


def batch(n=2, t=5, d=32, dtype=torch.float32):
    """Embeddings, params, mask with padding, ids; gradients of both outputs."""
    generator = torch.Generator().manual_seed(n * t + d)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)

    mask = torch.arange(t, device=DEVICE) < torch.tensor([t, t // 2] * n, device=DEVICE)[:n, None]
    ids = torch.arange(n, device=DEVICE) * 7919 - 11
    return (normal(n, t, d), 0.5 * normal(n, t, 2 * d), mask, ids), (normal(n, t, d), normal(n, t).float())


def run(module, inputs, grads, mode="learned", seed=SIGNED_SEED, draw=DRAW, **overrides):
    """(perturbed, kl, grad_embeddings, grad_params) of an implementation."""
    embeddings, params, mask, ids = inputs
    tensors = (embeddings, params if MODES[mode].needs_params else None, mask, ids)
    outputs = module.forward(*tensors, seed, draw, ALPHA, MODES[mode], **overrides)
    return outputs + module.backward(*grads, *tensors, seed, draw, ALPHA, MODES[mode], **overrides)


def doubles(tensors):
    return tuple(x.double() if x is not None and x.is_floating_point() else x for x in tensors)


def assert_close(results, exact, low):
    """Within twice the error of PyTorch in the same precision (reference.assert_accurate)."""
    if DEVICE == "cpu":
        # the interpreter cuts to bfloat16 where a GPU rounds: give back that last place
        cut = [x is not None and x.dtype == torch.bfloat16 for x in results]
        results = [torch.where((x - w).abs() <= w.abs() * 2**-7, w.to(x.dtype), x) if c else x
                 for c, x, w in zip(cut, results, exact, strict=True)]  # fmt: skip
        reference.assert_accurate(results, exact, low)
    else:
        # the hardware's log2 has an absolute error, and a normal of a small radius with it
        reference.assert_accurate(results, exact, low, atol=1e-3)
        for got, want, rough in zip(results, exact, low, strict=True):
            if want is not None and want.numel():
                errors = [(x.double() - want).abs().mean() for x in (got, rough, want.to(got.dtype))]
                assert errors[0] <= 2 * max(errors[1:]) + 2e-6 * want.abs().max()


def assert_same(results, expected):
    """Bit for bit on a GPU; the interpreter computes with NumPy, whose last bit may depend on the shape of an array."""
    for got, want in zip(results, expected, strict=True):
        if DEVICE == "cuda" or want is None:
            assert (got is None and want is None) or torch.equal(got, want)
        else:
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def without_a_mask():
    (embeddings, params, _, ids), grads = batch(t=3, d=48)
    return (embeddings, params, None, ids), grads


def under_autocast():
    (embeddings, params, mask, ids), grads = batch()
    return (embeddings, params.bfloat16(), mask, ids), grads


def strided():
    (embeddings, params, mask, ids), (g, k) = batch(2, 4)
    wide = torch.zeros(2, 4, 80, device=DEVICE)
    wide[..., 3:67] = params
    every_other = torch.stack([ids, ids + 1], dim=1)[:, 0]
    transposed = embeddings.transpose(1, 2).contiguous().transpose(1, 2)
    gradients = (g.transpose(0, 2).contiguous().transpose(0, 2), k.T.contiguous().T)
    return (transposed, wide[..., 3:67], mask.T.contiguous().T, every_other), gradients


def with_expanded_gradients():
    inputs, (g, k) = batch(2, 4)
    return inputs, (torch.tensor(0.7, device=DEVICE).expand(g.shape), torch.tensor(0.3, device=DEVICE).expand(k.shape))


def with_nan_at_padding():
    (embeddings, params, _, ids), grads = batch(2, 5)
    live = torch.arange(5, device=DEVICE) < torch.tensor([[2], [0]], device=DEVICE)  # and one sample all padding
    for tensor in (embeddings, params, *grads):
        tensor[~live] = float("nan")
    return (embeddings, params, live.long() * 5, ids), grads


CASES = [(batch, mode) for mode in MODES]
CASES += [(partial(batch, dtype=torch.bfloat16), "learned"), (partial(batch, dtype=torch.float16), "prior")]
CASES += [(partial(batch, *shape), "learned") for shape in ((1, 1, 4), (2, 3, 100), (1, 2, 768), (0, 5), (4, 0))]
CASES.append((partial(batch, 1, 2, 12), "fixed_sigma"))  # its KL at the ends of a row is not 0
CASES += [(make, "learned") for make in (without_a_mask, under_autocast, strided, with_expanded_gradients)]
CASES += [(with_nan_at_padding, mode) for mode in ("learned", "additive", "prior")]


@pytest.mark.parametrize(("make", "mode"), CASES)
def test_they_match_float64_and_masked_rows_are_neither_read_nor_written(make, mode):
    inputs, grads = make()
    results, low = run(triton_impl, inputs, grads, mode), run(torch_impl, inputs, grads, mode)
    kinds = [[None if x is None else (x.dtype, x.shape) for x in tensors] for tensors in (results, low)]
    assert kinds[0] == kinds[1]
    assert_close(results, run(torch_impl, doubles(inputs), doubles(grads), mode), low)
    for result in results:
        assert result is None or inputs[2] is None or result[inputs[2] == 0].abs().sum() == 0


def test_noise_does_not_depend_on_the_tile():
    inputs, grads = batch(1, 3, d=48)
    usual = run(triton_impl, inputs, grads)
    # ragged ends of rows and of columns, and loops
    other = run(triton_impl, inputs, grads, BLOCK_ROWS=2, BLOCK_COLS=8, num_warps=1)
    assert_same((other[0], *other[2:]), (usual[0], *usual[2:]))
    torch.testing.assert_close(other[1], usual[1], rtol=1e-5, atol=1e-5)  # summed in another order


def test_new_draw_new_noise_and_keys_on_the_device(monkeypatch):
    (embeddings, params, mask, ids), grads = batch(1, 3)
    inputs = (embeddings, params, torch.ones_like(mask), ids)
    usual = run(triton_impl, inputs, grads)
    seed, draw = (torch.tensor(x, device=DEVICE) for x in (SIGNED_SEED, DRAW))
    for keys in ((seed, draw), (seed, DRAW), (SIGNED_SEED, draw)):
        assert_same(run(triton_impl, inputs, grads, seed=keys[0], draw=keys[1]), usual)
    for keys in ((SIGNED_SEED, DRAW + 1), (SIGNED_SEED + 1, DRAW), (SIGNED_SEED + 2**32, DRAW)):
        assert (triton_impl.forward(*inputs, *keys, ALPHA, MODES["learned"])[0] != usual[0]).all()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="a CUDA graph would replay a seed or draw on the host"):
        triton_impl._key(1, 2, torch.device("cuda", 0))


def test_the_gradient_of_a_constant_kl_is_not_read():
    (embeddings, _, mask, ids), (g, k) = batch(1, 3)
    tensors = (embeddings, None, mask, ids, SEED, DRAW, ALPHA, MODES["prior"])
    for module in (triton_impl, torch_impl):
        assert torch.equal(module.backward(g, None, *tensors)[0], module.backward(g, k, *tensors)[0])


@pytest.mark.skipif(DEVICE != "cpu", reason="test_cuda.py does this in real memory")
def test_offsets_beyond_32_bits(tmp_path):
    """Strided over sparse files, of which only the touched pages exist; no stride is beyond 32 bits itself."""
    inputs, grads = batch(3, 3)
    strides = [(3, 1, 70_000_000), (2**30 + 64, 64, 1), (1, 2**30 + 3), (2**30 + 1,)]  # embeddings, params, mask, ids
    strides += [(64, 2**30 + 192, 1), (2**30 + 3, 1)]  # gradients of both outputs
    strided = []
    for number, (x, steps) in enumerate(zip([*inputs, *grads], strides, strict=True)):
        size = 1 + sum((length - 1) * step for length, step in zip(x.shape, steps, strict=True))
        assert size > 2**31
        storage = torch.from_file(str(tmp_path / f"sparse{number}"), shared=True, size=size, dtype=x.dtype)
        strided.append(torch.as_strided(storage, x.shape, steps).copy_(x))
    assert_same(run(triton_impl, strided[:4], strided[4:]), run(triton_impl, inputs, grads))


@pytest.mark.skipif(DEVICE != "cpu", reason="after hundreds of tests in one process PyTorch's check ends in a fault")
@pytest.mark.parametrize(("mode", "dtype"), [("learned", torch.float32), ("prior", torch.bfloat16)])
def test_the_operators_pass_pytorchs_check(mode, dtype):
    """What torch.compile makes of them is in test_op.py."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    implementation.cache_clear()
    torch.set_deterministic_debug_mode("default")
    (embeddings, params, mask, ids), (g, _) = batch(3, 7, 16, dtype)
    params = params if MODES[mode].needs_params else None
    key = (torch.tensor(5), torch.tensor(6), ALPHA, mode)
    leaves = [x if x is None else x.clone().requires_grad_() for x in (embeddings, params)]
    torch.library.opcheck(perturb_op, (*leaves, mask, ids, *key), test_utils=checks)
    gradient = g.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    inputs = (gradient, torch.ones(1, 1).expand(3, 7), embeddings, params, mask, ids, *key)
    torch.library.opcheck(perturb_backward_op, inputs, test_utils=checks)
