"""The Triton kernels: on a GPU where there is one, else in Triton's interpreter, which `test_interpreter.py` starts."""

import os

import perturb_reference as reference
import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1 from the start of the process", allow_module_level=True)

from swep_ds.kernels import MODES, perturb, torch_impl, triton_impl
from swep_ds.kernels.dispatch import VARIABLE, implementation
from swep_ds.kernels.triton_kernels import philox_words

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALPHA, SEED, DRAW = 0.1, 2**63 + 12345, 2**31 + 9
SIGNED_SEED = SEED - 2**64


@pytest.fixture(autouse=True)
def poisoned_memory():
    """PyTorch fills what `torch.empty` returns with NaN, so that an element nobody writes shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def batch(n=3, t=7, d=32, dtype=torch.float32):
    """Embeddings, params, mask with padding (a whole sample of it too), ids; gradients of both outputs."""
    generator = torch.Generator().manual_seed(n * t + d)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)

    mask = torch.arange(t, device=DEVICE) < torch.tensor([t, t // 2, 0] * n, device=DEVICE)[:n, None]
    ids = torch.arange(n, device=DEVICE) * 7919 - 11
    return (normal(n, t, d), 0.5 * normal(n, t, 2 * d), mask, ids), (normal(n, t, d), normal(n, t).float())


def run(module, inputs, grads, mode="learned", seed=SIGNED_SEED, draw=DRAW, **overrides):
    """(perturbed, kl, grad_embeddings, grad_params) of an implementation."""
    embeddings, params, mask, ids = inputs
    tensors = (embeddings, params if MODES[mode].needs_params else None, mask, ids)
    outputs = module.forward(*tensors, seed, draw, ALPHA, MODES[mode], **overrides)
    return outputs + module.backward(*grads, *tensors, seed, draw, ALPHA, MODES[mode], **overrides)


def doubles(tensors):
    return tuple(x.double() if x.is_floating_point() else x for x in tensors)


def assert_close(found, exact, low):
    """An error is at most twice that of PyTorch in the same precision, or of rounding the exact result once."""
    for name, got, want, rough in zip(("perturbed", "kl", "grad_e", "grad_p"), found, exact, low, strict=True):
        if want is None:
            assert got is None
            continue
        assert got.shape == want.shape
        assert got.dtype == rough.dtype
        if not want.numel():
            continue
        once = (want.to(got.dtype).double() - want).abs().max()
        allowed = 2 * torch.maximum((rough.double() - want).abs().max(), once)
        # float32 arithmetic; the hardware's log2, sine and cosine are less exact
        allowed = allowed + (2e-6 if DEVICE == "cpu" else 1e-4) * max(1.0, want.abs().max().item())
        if DEVICE == "cpu" and got.dtype == torch.bfloat16:
            allowed = allowed + want.abs() * 2**-7  # the interpreter cuts to bfloat16 where a GPU rounds
        assert ((got.double() - want).abs() <= allowed).all(), name


@pytest.mark.parametrize("rounds", [7, 10])
def test_words_match_numpy(rounds):
    counters = torch.randint(2**32, (4, 300), generator=torch.Generator().manual_seed(1))
    counters[:, :2] = torch.tensor([0, 2**32 - 1])
    key = (0xA4093822, 0x299F31D0)
    words = torch.empty(4, 300, dtype=torch.int64, device=DEVICE)
    signed = [triton_impl._signed32(k) for k in key]
    philox_words[(3,)](words, counters.to(DEVICE), *signed, 300, ROUNDS=rounds, BLOCK=128)
    expected = reference.philox(counters.numpy(), key, rounds)
    for got, want in zip(words.cpu(), expected, strict=True):
        assert got.tolist() == want.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", MODES)
def test_all_modes_match_float64(mode, dtype):
    inputs, grads = batch(dtype=dtype)
    found = run(triton_impl, inputs, grads, mode)
    exact = run(torch_impl, doubles(inputs), doubles(grads), mode)
    assert_close(found, exact, run(torch_impl, inputs, grads, mode))
    live = inputs[2]
    for result in found:
        assert result is None or result[~live].abs().sum() == 0


@pytest.mark.parametrize("d", [4, 12, 100, 768, 1024])
@pytest.mark.parametrize("n_t", [(1, 1), (2, 5)])
def test_widths(d, n_t):
    inputs, grads = batch(*n_t, d)
    exact = run(torch_impl, doubles(inputs), doubles(grads))
    assert_close(run(triton_impl, inputs, grads), exact, run(torch_impl, inputs, grads))


def test_the_widest_row():
    inputs, grads = batch(1, 2, 8192)
    exact = run(torch_impl, doubles(inputs), doubles(grads))
    assert_close(run(triton_impl, inputs, grads), exact, run(torch_impl, inputs, grads))


@pytest.mark.parametrize("shape", [(0, 5), (4, 0)])
def test_empty_batches(shape):
    inputs, grads = batch(*shape)
    for got, want in zip(run(triton_impl, inputs, grads), run(torch_impl, inputs, grads), strict=True):
        assert got.shape == want.shape


@pytest.mark.parametrize("rows_cols_warps", [(1, 32, 1), (2, 8, 1), (16, 4, 2), (4, 64, 4)])
def test_noise_does_not_depend_on_the_tile(rows_cols_warps):
    inputs, grads = batch(d=128)
    rows, cols, warps = rows_cols_warps
    usual = run(triton_impl, inputs, grads)
    other = run(triton_impl, inputs, grads, BLOCK_ROWS=rows, BLOCK_COLS=cols, num_warps=warps)
    for i in (0, 2, 3):
        assert torch.equal(usual[i], other[i])
    torch.testing.assert_close(usual[1], other[1])


def test_noise_follows_the_sample_not_the_batch():
    (embeddings, params, mask, ids), grads = batch(3, 9)
    mask = torch.ones_like(mask)
    usual = run(triton_impl, (embeddings, params, mask, ids), grads)
    order = torch.tensor([2, 0], device=DEVICE)
    cut = (*(x[order, :5] for x in (embeddings, params, mask)), ids[order])
    for got, want in zip(run(triton_impl, cut, [g[order, :5] for g in grads]), usual, strict=True):
        assert torch.equal(got, want[order, :5])


def test_new_draw_new_noise_and_keys_on_the_device():
    inputs, grads = batch()
    live = inputs[2]
    usual = run(triton_impl, inputs, grads)
    seed, draw = (torch.tensor(x, device=DEVICE) for x in (SIGNED_SEED, DRAW))
    for keys in ((seed, draw), (seed, DRAW), (SIGNED_SEED, draw)):
        for got, want in zip(run(triton_impl, inputs, grads, seed=keys[0], draw=keys[1]), usual, strict=True):
            assert torch.equal(got, want)
    for keys in ((SIGNED_SEED, DRAW + 1), (SIGNED_SEED + 1, DRAW), (SIGNED_SEED + 2**32, DRAW)):
        assert (run(triton_impl, inputs, grads, seed=keys[0], draw=keys[1])[0][live] != usual[0][live]).all()


def test_keys_on_the_host_are_refused_while_a_cuda_graph_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for key in ((1, 2), (torch.tensor(1), torch.tensor(2))):
        with pytest.raises(RuntimeError, match="a CUDA graph would replay a seed or draw on the host"):
            triton_impl._key(*key, torch.device("cuda", 0))


@pytest.mark.parametrize("mode", MODES)
def test_masked_rows_are_not_read(mode):
    inputs, grads = batch()
    usual = run(triton_impl, inputs, grads, mode)
    live = inputs[2]
    for tensor in (*inputs[:2], *grads):
        tensor[~live] = float("nan")
    found = run(triton_impl, (*inputs[:2], live.long() * 5, inputs[3]), grads, mode)
    for got, want in zip(found, usual, strict=True):
        assert (got is None and want is None) or torch.equal(got, want)


def test_strides_do_not_matter():
    (embeddings, params, mask, ids), (g, k) = batch(4, 8)
    usual = run(triton_impl, (embeddings, params, mask, ids), (g, k))
    wide = torch.zeros(4, 8, 80, device=DEVICE)
    wide[..., 3:67] = params
    every_other = torch.stack([ids, ids + 1], dim=1)[:, 0]
    strided = (
        embeddings.transpose(1, 2).contiguous().transpose(1, 2),
        wide[..., 3:67],
        mask.T.contiguous().T,
        every_other,
    )
    gradients = (g.transpose(0, 2).contiguous().transpose(0, 2), k.T.contiguous().T)
    for got, want in zip(run(triton_impl, strided, gradients), usual, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0 if got.dim() == 3 else 1e-4)
    expanded = (torch.tensor(0.7, device=DEVICE).expand(g.shape), torch.tensor(0.3, device=DEVICE).expand(k.shape))
    contiguous = tuple(x.contiguous() for x in expanded)
    for got, want in zip(
        run(triton_impl, (embeddings, params, mask, ids), expanded),
        run(triton_impl, (embeddings, params, mask, ids), contiguous),
        strict=True,
    ):
        assert torch.equal(got, want)


@pytest.mark.skipif(DEVICE != "cpu", reason="test_cuda.py does this in real memory")
@pytest.mark.parametrize("strides", [(2**31 + 64, 32, 1), (96, 32, 1), (3, 1, 70_000_000)])
def test_offsets_beyond_32_bits(tmp_path, strides):
    (embeddings, params, mask, ids), grads = batch(2, 3)
    mask = torch.ones_like(mask)
    size = 1 + sum((length - 1) * stride for length, stride in zip(embeddings.shape, strides, strict=True))
    storage = torch.from_file(str(tmp_path / "sparse"), shared=True, size=size, dtype=torch.float32)
    spread = torch.as_strided(storage, embeddings.shape, strides).copy_(embeddings)
    usual = run(triton_impl, (embeddings, params, mask, ids), grads)
    for got, want in zip(run(triton_impl, (spread, params, mask, ids), grads), usual, strict=True):
        assert torch.equal(got, want)


def test_mixed_dtypes_as_under_autocast():
    (embeddings, params, mask, ids), grads = batch()
    mixed = (embeddings, params.bfloat16(), mask, ids)
    found, low = run(triton_impl, mixed, grads), run(torch_impl, mixed, grads)
    assert [x.dtype for x in found] == [x.dtype for x in low]
    assert_close(found, run(torch_impl, doubles(mixed), doubles(grads)), low)


def test_perturb_reaches_the_kernels_and_differentiates(monkeypatch):
    monkeypatch.setenv(VARIABLE, "triton")
    implementation.cache_clear()
    (embeddings, params, mask, ids), grads = batch()
    leaves = embeddings.requires_grad_(), params.requires_grad_()
    outputs = perturb(*leaves, mask, ids, seed=SEED, draw=DRAW, prior_variance=ALPHA)
    found = outputs + torch.autograd.grad(outputs, leaves, grads)
    implementation.cache_clear()
    inputs = (embeddings.detach(), params.detach(), mask, ids)
    for got, want in zip(found, run(triton_impl, inputs, grads), strict=True):
        assert torch.equal(got, want)


def test_the_rungs_of_the_ladder_compute_the_same_kl():
    from swep_ds.kernels.ladder import rungs

    (embeddings, params, mask, ids), grads = batch(2, 3)
    mask = torch.ones_like(mask)
    usual = run(triton_impl, (embeddings, params, mask, ids), grads)
    for name, call in rungs(embeddings, params, mask, ids, ALPHA).items():
        perturbed, kl = call()
        torch.testing.assert_close(kl, usual[1], msg=name)
        assert perturbed.isfinite().all(), name
