"""The perturbation in PyTorch: it runs on CPUs, and the Triton kernels are tested against it.

Masked rows (tokens) are neither read nor drawn. The others are processed in chunks that fit a CPU's cache, and the
backward draws the noise again, so only the results have the size of the batch. An input whose strides do not let
[N, T] be viewed as rows is copied once per call.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from .modes import Mode
from .philox import standard_normal

CHUNK_ELEMENTS_CPU = 2**20  # temporaries of 4 MB in float32, which fit a cache of tens of MB
CHUNK_ELEMENTS_ELSEWHERE = 2**24  # few launches for bounded temporary memory


def _chunks(embeddings: Tensor, mask: Tensor | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows of the real tokens in the flattened batch, their samples and their positions, chunk by chunk."""
    n, t, d = embeddings.shape
    if mask is None:
        rows = torch.arange(n * t, device=embeddings.device)
    else:
        rows = mask.reshape(-1).nonzero().squeeze(1)
    elements = CHUNK_ELEMENTS_CPU if embeddings.device.type == "cpu" else CHUNK_ELEMENTS_ELSEWHERE
    step = max(1, elements // d)
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        yield chunk, chunk // t, chunk % t


def _take(x: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of x [N * T, ...] as [rows, ...] in `dtype`."""
    return x.index_select(0, rows).to(dtype)


def _put(x: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write values [rows, ...] to rows of x [N, T, ...], which is contiguous or one half of a contiguous tensor."""
    x.view(-1, *x.shape[2:]).index_copy_(0, rows, values.to(x.dtype))


def forward(embeddings, params, mask, sample_ids, seed, draw, alpha: float, mode: Mode) -> tuple[Tensor, Tensor]:
    """Perturbed embeddings [N, T, d] and KL [N, T]; arguments as `swep_ds.kernels.perturb`, already checked."""
    dtype = torch.promote_types(embeddings.dtype, torch.float32)
    d = embeddings.shape[-1]
    perturbed = torch.zeros_like(embeddings, memory_format=torch.contiguous_format)
    kl = embeddings.new_zeros(embeddings.shape[:2], dtype=dtype)
    embeddings_rows = embeddings.flatten(0, 1)
    if mode.needs_params:
        params_rows = params.flatten(0, 1)
    for rows, n, t in _chunks(embeddings, mask):
        z, sigma, kl_terms = mode.prior_mean, mode.fixed_sigma(alpha), mode.fixed_kl(alpha)
        if mode.learned_sigma:
            v = _take(params_rows[:, d:], rows, dtype)
            ratio = torch.exp(v * 0.5)
            kl_terms = ratio.square().sub_(v).sub_(1.0)
            sigma = ratio.mul_(sigma)
        if mode.learned_mu:
            delta = _take(params_rows[:, :d], rows, dtype)
            kl_terms = delta.square().div_(alpha).add_(kl_terms)
            z = delta.add_(z)
        if mode.draws:
            z = standard_normal(seed, draw, sample_ids[n], t, d, dtype).mul_(sigma).add_(z)
        e = _take(embeddings_rows, rows, dtype)
        _put(perturbed, rows, e + z if mode.additive else e * z)
        if mode.needs_params:
            _put(kl, rows, kl_terms.sum(-1).mul_(0.5))
    return perturbed, kl


def backward(
    grad_perturbed, grad_kl, embeddings, params, mask, sample_ids, seed, draw, alpha: float, mode: Mode
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the embeddings [N, T, d] and the params [N, T, 2d], or None, where `grad_kl` may be None too.

    With g, k the gradients of the perturbed embeddings and the KL, and dz = g * e (additive: dz = g):

        de = g * z  (additive: g);   d delta = dz + k delta / alpha
        dv = dz * eps * sigma / 2 + k (exp(v) - 1) / 2
    """
    dtype = torch.promote_types(embeddings.dtype, torch.float32)
    d = embeddings.shape[-1]
    grad_embeddings = torch.zeros_like(embeddings, memory_format=torch.contiguous_format)
    grad_params = None
    g_rows = grad_perturbed.flatten(0, 1)
    if mode.needs_params:
        grad_params = torch.zeros_like(params, memory_format=torch.contiguous_format)
        embeddings_rows = embeddings.flatten(0, 1)
        params_rows = params.flatten(0, 1)
        k_rows = grad_kl.flatten(0, 1)
    for rows, n, t in _chunks(embeddings, mask):
        g = _take(g_rows, rows, dtype)
        if mode.needs_params:
            k = _take(k_rows, rows, dtype)[:, None]
            dz = g if mode.additive else g * _take(embeddings_rows, rows, dtype)
        z, sigma = mode.prior_mean, mode.fixed_sigma(alpha)
        if mode.learned_sigma:
            ratio = torch.exp(_take(params_rows[:, d:], rows, dtype) * 0.5)
            sigma = ratio * sigma
        if mode.draws:
            noise = standard_normal(seed, draw, sample_ids[n], t, d, dtype).mul_(sigma)
        if mode.learned_mu:
            delta = _take(params_rows[:, :d], rows, dtype)
            _put(grad_params[..., :d], rows, (delta * (k / alpha)).add_(dz))
            z = delta.add_(z)
        if mode.learned_sigma:
            dv = (dz * noise).add_(ratio.square_().sub_(1.0).mul_(k)).mul_(0.5)
            _put(grad_params[..., d:], rows, dv)
        if mode.draws:
            z = noise.add_(z)
        _put(grad_embeddings, rows, g if mode.additive else g * z)
    return grad_embeddings, grad_params
