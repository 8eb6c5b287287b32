"""The noise ablation: the forward kernel from no noise to `tl.randn`, to see what each way to draw costs.

`aot.py` counts their instructions, `bench.py` times them on a GPU.
"""

import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import triton_impl
from ..modes import MODES

VARIANTS = {
    "no noise": {"DRAWS": False},
    "four words, 7 rounds": {"ROUNDS": 7},
    "four words (the kernel)": {},
    "four words, Triton's log, sin, cos": {"MATH": "portable"},
}
"""Compile-time arguments of the forward kernel; all variants read and write the same."""
RANDN = "tl.randn"


@triton.jit
def randn_forward(
    embeddings_ptr, params_ptr, perturbed_ptr, kl_ptr, inverse_alpha, root_alpha, seed,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The obvious kernel: one program a row; noise from `tl.randn`, which uses one word of four. Contiguous."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK_D)
    inside = i < D
    e = tl.load(embeddings_ptr + row * D + i, mask=inside, other=0.0).to(tl.float32)
    delta = tl.load(params_ptr + row * 2 * D + i, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(params_ptr + row * 2 * D + D + i, mask=inside, other=0.0).to(tl.float32)
    ratio = tl.exp(0.5 * v)
    perturbed = e * (1.0 + delta + root_alpha * ratio * tl.randn(seed, row * D + i))
    tl.store(perturbed_ptr + row * D + i, perturbed.to(perturbed_ptr.dtype.element_ty), mask=inside)
    terms = delta * delta * inverse_alpha + ratio * ratio - 1.0 - v
    tl.store(kl_ptr + row, 0.5 * tl.sum(tl.where(inside, terms, 0.0), axis=0))


def variants(
    embeddings: Tensor, params: Tensor, mask: Tensor, ids: Tensor, alpha: float
) -> dict[str, Callable[[], tuple[Tensor, Tensor]]]:
    """Forward passes (perturbed, kl), the cheapest noise first. Inputs are contiguous, without padding."""
    n, t, d = embeddings.shape

    def fused(constants):
        return lambda: triton_impl.forward(embeddings, params, mask, ids, 5, 1, alpha, MODES["learned"], **constants)

    def randn():
        perturbed, kl = torch.empty_like(embeddings), torch.empty(n, t, device=embeddings.device)
        tensors, block = (embeddings, params, perturbed, kl), triton.next_power_of_2(d)
        randn_forward[(n * t,)](*tensors, 1.0 / alpha, math.sqrt(alpha), 7, D=d, BLOCK_D=block)
        return perturbed, kl

    return {name: fused(constants) for name, constants in VARIANTS.items()} | {RANDN: randn}
