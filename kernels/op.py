"""`perturb`: keyed, reparameterised noise on word embeddings with its per-token Gaussian KL.

Only the inputs are saved; the backward draws the noise again. Eager calls go straight to an autograd function; under
`torch.compile` and `torch.export` the same two functions are the operators `swep_ds::perturb` and `..._backward`.
"""

import functools
import math
import os
from types import ModuleType

import torch
from torch import Tensor

from . import torch_impl
from .modes import MODES

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
VARIABLE = "SWEP_KERNELS"


@functools.cache
def implementation(device_type: str, dtype: torch.dtype) -> ModuleType:
    """The module whose `forward` and `backward` run: Triton's on CUDA and ROCm, PyTorch's elsewhere and in float64.

    The environment variable SWEP_KERNELS forces `torch` or `triton` (on a CPU only under TRITON_INTERPRET=1).

    Raises: ValueError: SWEP_KERNELS is none of these; RuntimeError, ImportError: Triton is needed and cannot run.
    """
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in ("auto", "torch", "triton"):
        raise ValueError(f"{VARIABLE} must be auto, torch or triton; got {choice!r}")
    on_gpu = device_type == "cuda"  # ROCm tensors say "cuda" too
    if choice == "torch" or (choice == "auto" and (not on_gpu or dtype == torch.float64)):
        return torch_impl
    if dtype == torch.float64:
        raise RuntimeError(f"the Triton kernels compute in float32; for float64 unset {VARIABLE} or set it to torch")
    from . import triton_impl

    if not on_gpu and not triton_impl.INTERPRETED:
        raise RuntimeError(
            f"{VARIABLE}=triton, but the tensors are on {device_type!r}: move them to a GPU, set TRITON_INTERPRET=1, "
            f"or unset {VARIABLE}"
        )
    return triton_impl


class _Perturb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, embeddings, params, mask, sample_ids, seed, draw, prior_variance, mode, run):
        # saved key tensors raise when they change in place before the backward, which would draw other noise
        key_tensors = [part for part in (seed, draw) if isinstance(part, Tensor)]
        ctx.save_for_backward(embeddings, params, mask, sample_ids, *key_tensors)
        ctx.settings = seed, draw, prior_variance, mode, run
        ctx.set_materialize_grads(mode.needs_params)  # nothing reads the gradient of a constant KL
        return run.forward(embeddings, params, mask, sample_ids, seed, draw, prior_variance, mode)

    @staticmethod
    def backward(ctx, grad_perturbed, grad_kl):
        if torch.is_grad_enabled():
            raise RuntimeError("perturb is differentiable once: its backward cannot run with create_graph=True")
        if grad_perturbed is None:  # only the KL of noise from the prior, which is a constant
            return (None,) * 9
        embeddings, params, mask, sample_ids, *_ = ctx.saved_tensors
        *settings, run = ctx.settings
        grads = run.backward(grad_perturbed, grad_kl, embeddings, params, mask, sample_ids, *settings)
        return *grads, None, None, None, None, None, None, None


INPUTS = (
    "Tensor embeddings, Tensor? params, Tensor? mask, Tensor sample_ids, Tensor seed, Tensor draw, "
    "float prior_variance, str mode"
)


@torch.library.custom_op("swep_ds::perturb", mutates_args=(), schema=f"({INPUTS}) -> (Tensor, Tensor)")
def perturb_op(embeddings, *others):
    *others, mode = others
    return implementation(embeddings.device.type, embeddings.dtype).forward(embeddings, *others, MODES[mode])


@perturb_op.register_fake
def _(embeddings, *others):
    kl_dtype = torch.promote_types(embeddings.dtype, torch.float32)
    perturbed = torch.empty_like(embeddings, memory_format=torch.contiguous_format)
    return perturbed, embeddings.new_empty(embeddings.shape[:2], dtype=kl_dtype)


@torch.library.custom_op(
    "swep_ds::perturb_backward",
    mutates_args=(),
    schema=f"(Tensor grad_perturbed, Tensor grad_kl, {INPUTS}) -> (Tensor, Tensor)",
)
def perturb_backward_op(grad_perturbed, grad_kl, embeddings, *others):
    """Gradients of embeddings and params. Without params the second one is empty: an operator cannot return None."""
    *others, mode = others
    run = implementation(embeddings.device.type, embeddings.dtype).backward
    grad_embeddings, grad_params = run(grad_perturbed, grad_kl, embeddings, *others, MODES[mode])
    if grad_params is None:
        grad_params = embeddings.new_empty(0)
    return grad_embeddings, grad_params


@perturb_backward_op.register_fake
def _(grad_perturbed, grad_kl, embeddings, params, *others):
    grad_embeddings = torch.empty_like(embeddings, memory_format=torch.contiguous_format)
    if params is None:
        return grad_embeddings, embeddings.new_empty(0)
    return grad_embeddings, torch.empty_like(params, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.prior_variance, ctx.mode = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad_perturbed, grad_kl):
    tensors = ctx.saved_tensors
    grad_embeddings, grad_params = perturb_backward_op(grad_perturbed, grad_kl, *tensors, ctx.prior_variance, ctx.mode)
    if tensors[1] is None:
        grad_params = None
    return grad_embeddings, grad_params, None, None, None, None, None, None


perturb_op.register_autograd(_differentiate, setup_context=_save)


def perturb(
    embeddings: Tensor,
    params: Tensor | None,
    mask: Tensor | None,
    sample_ids: Tensor,
    *,
    seed: int | Tensor,
    draw: int | Tensor,
    prior_variance: float,
    mode: str = "learned",
) -> tuple[Tensor, Tensor]:
    """Perturb word embeddings with keyed noise and return the KL of the noise to its prior (SWEP, Eq. 2 and 3).

        z = mu + sigma * eps;   e~ = e * z  (additive: e~ = e + z);   KL( N(mu, diag sigma^2) || N(m, alpha I) )
        mu = m + delta;   sigma^2 = alpha * exp(v)

    The noise is a pure function of (seed, draw, sample id, position, dimension): see `philox.py`.

    Args:
        embeddings: [N, T, d] of float32, bfloat16, float16 or float64; d divisible by 4; any strides.
        params: [N, T, 2d] float, any strides: delta = mu - m, then v = log(sigma^2 / alpha). Zero is the prior. None
            if nothing is learned (`prior`).
        mask: [N, T] bool or integer, nonzero for a real token; None if all are: the kernels then read no mask.
        sample_ids: [N] int64, taken mod 2^32; samples with different ids get different noise.
        seed: 64-bit integer, or 0-dim int64 tensor.
        draw: number of the draw, taken mod 2^32, a new one for each perturbed pass: integer or 0-dim int64 tensor.
            Tensors may be on the device, for CUDA graphs; none may change in place between forward and backward.
        prior_variance: alpha > 0.
        mode: of `MODES` in `modes.py`.
    Returns:
        perturbed [N, T, d] in the embeddings' dtype, and KL [N, T], summed over d, in float32 (float64 for float64
        embeddings), as is the arithmetic. Both are zero where masked; inputs are not read there. Differentiable once.
    Raises:
        ValueError, TypeError: shapes, dtypes, devices or settings are wrong.
        RuntimeError: no implementation can run, or a CUDA graph would freeze a host key.
    """
    _check(embeddings, params, mask, sample_ids, prior_variance, mode)
    seed = _checked_key("seed", seed, embeddings.device)
    draw = _checked_key("draw", draw, embeddings.device)
    if torch.compiler.is_compiling():
        return perturb_op(embeddings, params, mask, sample_ids, seed, draw, prior_variance, mode)
    run = implementation(embeddings.device.type, embeddings.dtype)
    return _Perturb.apply(embeddings, params, mask, sample_ids, seed, draw, prior_variance, MODES[mode], run)


def _checked_key(name: str, part: int | Tensor, device: torch.device) -> int | Tensor:
    """`part` as an int in the range of int64, or unchanged if it is a tensor. In compiled code it is always one, on the
    device, so that a CUDA graph reads it there."""
    if isinstance(part, Tensor):
        if part.dim() or part.dtype != torch.int64:
            raise TypeError(f"{name} must be an integer or a 0-dim int64 tensor; got {part.dtype}, {part.dim()}-dim")
        return part
    if part >= 2**63:
        part -= 2**64
    if torch.compiler.is_compiling():
        return torch.tensor(part, device=device)
    return part


def _check(embeddings, params, mask, sample_ids, prior_variance, mode) -> None:
    """Shapes and devices above all: a kernel would read beyond a tensor's end."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    if embeddings.dim() != 3 or embeddings.shape[-1] == 0 or embeddings.shape[-1] % 4:
        raise ValueError(f"embeddings must be [N, T, d], d a multiple of 4; got shape {tuple(embeddings.shape)}")
    n, t, d = embeddings.shape
    if MODES[mode].needs_params and params is None:
        raise ValueError(f"mode {mode!r} needs params")
    if params is not None and not MODES[mode].needs_params:
        raise ValueError(f"mode {mode!r} takes no params: pass None")
    for name, tensor, shape in (
        ("params", params, (n, t, 2 * d)),
        ("mask", mask, (n, t)),
        ("sample_ids", sample_ids, (n,)),
    ):
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {tuple(tensor.shape)}")
        if tensor.device != embeddings.device:
            raise ValueError(f"{name} is on {tensor.device} but embeddings are on {embeddings.device}; move it there")
    if embeddings.dtype not in FLOATS or (params is not None and params.dtype not in FLOATS):
        raise TypeError("embeddings and params must be float32, bfloat16, float16 or float64")
    if mask is not None and (mask.is_floating_point() or mask.is_complex()):
        raise TypeError(f"mask must be bool or integer; got {mask.dtype}")
    if sample_ids.dtype != torch.int64:
        raise TypeError(f"sample_ids must be int64; got {sample_ids.dtype}")
    if not 0 < prior_variance < math.inf:
        raise ValueError(f"prior_variance must be greater than 0 and finite; got {prior_variance}")
