import numpy as np
import pytest
import torch

from swep_ds.kernels import MODES, perturb
from tests.support import perturb_reference as reference

ALPHA, SEED, DRAW = 0.1, 2**63 + 2**40 + 17, 5


def batch(n=3, t=7, d=16, dtype=torch.float32, seed=0, masked=True):
    """Embeddings, params near the prior, mask with some padding, sample ids that do not count up."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, t, d, generator=generator, dtype=torch.float64).to(dtype)
    params = 0.5 * torch.randn(n, t, 2 * d, generator=generator, dtype=torch.float64).to(dtype)
    lengths = torch.arange(n) % t + t // 2 if masked else torch.full((n,), t)
    mask = torch.arange(t) < lengths[:, None]
    return embeddings, params, mask, torch.arange(n) * 7919 + 11


def run(embeddings, params, mask, sample_ids, mode="learned", seed=SEED, draw=DRAW, prior_variance=ALPHA):
    params = params if MODES[mode].needs_params else None
    return perturb(embeddings, params, mask, sample_ids, seed=seed, draw=draw, prior_variance=prior_variance, mode=mode)


def expected(embeddings, params, mask, sample_ids, mode):
    t, d = embeddings.shape[1:]
    delta, v = (half.double().numpy() for half in params.split(d, -1))
    mu, logvar = (0.0 if mode == "additive" else 1.0) + delta, np.log(ALPHA) + v
    eps = reference.normal(SEED, DRAW, sample_ids.tolist(), t, d)
    results = reference.perturb(embeddings.double().numpy(), mu, logvar, mask.numpy(), eps, ALPHA, mode)
    return tuple(torch.from_numpy(np.ascontiguousarray(result)) for result in results)


@pytest.mark.parametrize("mode", MODES)
def test_float64_matches_numpy_and_low_precision_is_as_good_as_rounding_once(mode):
    inputs = batch(dtype=torch.float64)
    torch.testing.assert_close(run(*inputs, mode), expected(*inputs, mode), rtol=1e-11, atol=1e-11)
    embeddings, params, mask, sample_ids = batch(dtype=torch.float64, masked=False)
    unmasked = run(embeddings, params, None, sample_ids, mode)
    torch.testing.assert_close(unmasked, expected(embeddings, params, mask, sample_ids, mode), rtol=1e-11, atol=1e-11)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        inputs = batch(d=64, dtype=dtype)
        results = run(*inputs, mode)
        assert [x.dtype for x in results] == [dtype, torch.float32]
        reference.assert_accurate(results, expected(*inputs, mode))


def test_bfloat16_params_hold_noise_near_its_prior():
    """bfloat16 has 8 bits: it can say that mu is 0.001 above its prior, but not that it is 1.001."""
    embeddings, params, mask, sample_ids = batch(d=256, dtype=torch.float64)
    params = params * 2e-3
    exact = expected(embeddings, params, mask, sample_ids, "learned")[1]
    kl = run(embeddings.float(), params.bfloat16(), mask, sample_ids)[1]  # mixed, as under autocast
    torch.testing.assert_close(kl.double(), exact, rtol=0.02, atol=0)
    assert 0 < exact[mask].max() < 0.01


@pytest.mark.parametrize("mode", MODES)
def test_gradcheck(mode):
    embeddings, params, mask, sample_ids = batch(n=2, t=3, d=8, dtype=torch.float64)
    embeddings.requires_grad_()
    if mode == "prior":
        assert torch.autograd.gradcheck(lambda e: run(e, None, mask, sample_ids, mode)[0], embeddings)
    else:
        params.requires_grad_()
        assert torch.autograd.gradcheck(lambda e, p: run(e, p, mask, sample_ids, mode), (embeddings, params))


def assert_same(results, wanted):
    """The same noise: only the last bits of log, sine and cosine may depend on where a number is in a tensor."""
    for got, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_noise_follows_the_sample_not_the_batch_its_padding_or_its_chunks(monkeypatch):
    embeddings, params, mask, sample_ids = batch(n=4, t=9, masked=False)
    together = run(embeddings, params, mask, sample_ids)
    order = torch.tensor([2, 0, 3])
    for part in (order, order[:1]):
        cut = run(embeddings[part, :5], params[part, :5], mask[part, :5], sample_ids[part])
        assert_same(cut, [x[part, :5] for x in together])
    padded = torch.nn.functional.pad(mask, (0, 4))
    longer = torch.nn.functional.pad(embeddings, (0, 0, 0, 4)), torch.nn.functional.pad(params, (0, 0, 0, 4))
    assert_same([x[:, :9] for x in run(*longer, padded, sample_ids)], together)
    for rows in (2, 5):  # 36 rows: the last chunk of 5 has one
        monkeypatch.setattr("swep_ds.kernels.torch_impl.CHUNK_ELEMENTS_CPU", rows * 16)
        assert_same(run(embeddings, params, mask, sample_ids), together)


@pytest.mark.parametrize("mode", MODES)
def test_masked_rows_are_zero_and_their_nan_stays_there(mode):
    embeddings, params, mask, sample_ids = batch()
    clean = run(embeddings, params, mask, sample_ids, mode)
    embeddings[~mask], params[~mask] = float("nan"), float("nan")
    embeddings.requires_grad_()
    params.requires_grad_(mode != "prior")
    perturbed, kl = run(embeddings, params, mask.long() * 3, sample_ids, mode)
    for got, want in zip((perturbed, kl), clean, strict=True):
        assert torch.equal(got, want)
        assert got[~mask].abs().sum() == 0
    poisoned = torch.where(mask[..., None], torch.ones_like(perturbed), float("nan"))
    torch.autograd.backward(perturbed, poisoned)
    for leaf in (embeddings, params) if mode != "prior" else (embeddings,):
        assert leaf.grad.isfinite().all()
        assert leaf.grad[~mask].abs().sum() == 0


@pytest.mark.parametrize(("n", "t"), [(0, 5), (4, 0), (2, 3)])
def test_empty_batches_and_batches_of_padding(n, t):
    embeddings, params, _, _ = batch(n, t, masked=False)
    embeddings.requires_grad_()
    perturbed, kl = run(embeddings, params, torch.zeros(n, t, dtype=torch.bool), torch.arange(n))
    (perturbed.sum() + kl.sum()).backward()
    assert (perturbed.shape, kl.shape) == ((n, t, 16), (n, t))
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_output_that_nobody_uses_has_no_part_in_the_gradient(mode):
    inputs = batch(dtype=torch.float64)
    leaves = [x.requires_grad_() for x in inputs[: 1 + MODES[mode].needs_params]]
    for used, unused in ((0, 1), (1, 0)):
        outputs = run(*inputs, mode)
        weights = torch.rand(outputs[used].shape, dtype=torch.float64)
        alone = torch.autograd.grad(outputs[used], leaves, weights, retain_graph=True, allow_unused=True)
        zeros = [weights, torch.zeros_like(outputs[unused])]
        both = torch.autograd.grad(outputs, leaves, zeros[::-1] if used else zeros)
        for got, want in zip(alone, both, strict=True):
            assert torch.equal(torch.zeros_like(want) if got is None else got, want)


def test_nothing_but_the_inputs_is_saved_and_a_second_derivative_is_refused():
    embeddings, params, *others = batch()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        perturbed, _ = run(embeddings.requires_grad_(), params.requires_grad_(), *others)
    assert {x.data_ptr() for x in saved} <= {x.data_ptr() for x in (embeddings, params, *others)}
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(perturbed.sum(), embeddings, create_graph=True)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mode": "nois"}, ValueError, "mode must be one of"),
        ({"embeddings": torch.zeros(3, 16)}, ValueError, r"embeddings must be \[N, T, d\]"),
        ({"embeddings": torch.zeros(3, 7, 6)}, ValueError, "multiple of 4"),
        ({"embeddings": torch.zeros(3, 7, 16, dtype=torch.int32)}, TypeError, "must be float32"),
        ({"params": None}, ValueError, "needs params"),
        ({"mode": "prior"}, ValueError, "takes no params"),
        ({"params": torch.zeros(3, 7, 16)}, ValueError, r"params must have shape \(3, 7, 32\)"),
        ({"mask": torch.ones(3, 7)}, TypeError, "mask must be bool or integer"),
        ({"mask": torch.ones(3, 7, dtype=torch.bool, device="meta")}, ValueError, "mask is on meta"),
        ({"sample_ids": torch.arange(4)}, ValueError, "sample_ids must have"),
        ({"sample_ids": torch.arange(3, dtype=torch.int32)}, TypeError, "sample_ids must be int64"),
        ({"prior_variance": 0.0}, ValueError, "prior_variance must be greater than 0"),
        ({"draw": torch.tensor([1])}, TypeError, "draw must be .* got torch.int64, 1-dim"),
    ],
)
def test_bad_input_is_refused(change, error, message):
    embeddings, params, mask, sample_ids = batch()
    arguments = {"embeddings": embeddings, "params": params, "mask": mask, "sample_ids": sample_ids}
    arguments |= {"seed": 0, "draw": 0, "prior_variance": ALPHA}
    with pytest.raises(error, match=message):
        perturb(**(arguments | change))
