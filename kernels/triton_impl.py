"""Launches of the Triton kernels: the same two functions as `torch_impl`, for CUDA and ROCm tensors."""

import functools
import math

import torch
import triton
from torch import Tensor

from .modes import Mode
from .philox import MASK, ROUNDS
from .tiles import launch_options, tile
from .triton_kernels import perturb_backward, perturb_forward

INTERPRETED = triton.knobs.runtime.interpret
"""Whether the kernels run in Triton's interpreter, on CPU tensors; TRITON_INTERPRET decides at import."""


@functools.cache
def target(device: torch.device) -> tuple[str, str, int]:
    """(architecture, math of triton_kernels, lanes of a warp) of a device."""
    if INTERPRETED:
        return "interpreter", "portable", 256  # its time grows with tiles, not elements: wide tiles
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return properties.gcnArchName.split(":")[0], "amd", properties.warp_size
    return f"sm_{properties.major}{properties.minor}", "nvidia", 32


def check_driver() -> None:
    """Makes Triton compile the part of itself that launches kernels. Without a C compiler or Python's headers this
    raises whatever Triton raises."""
    if not INTERPRETED:
        triton.runtime.driver.active.get_current_device()


def _signed32(word: int) -> int:
    """A 32-bit word as int32: one type for every key, hence one compiled kernel."""
    return ((word & MASK) ^ 0x80000000) - 0x80000000


def _key(seed: int | Tensor, draw: int | Tensor, device: torch.device):
    """Kernel arguments (seed_low, seed_high, draw, KEY_ON_DEVICE).

    A tensor on the device is read there, without a wait for the GPU, and again at each replay of a CUDA graph.
    Raises: RuntimeError if a graph is being captured and a part is on the host: each replay would draw the same.
    """
    parts = [part for part in (seed, draw) if isinstance(part, Tensor) and part.device == device]
    if len(parts) < 2 and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a CUDA graph would replay a seed or draw on the host as the constant it was at capture; "
            "pass both as 0-dim int64 tensors on the embeddings' device"
        )
    if parts:
        seed, draw = (
            part.to(device) if isinstance(part, Tensor) else torch.full((), part, dtype=torch.int64, device=device)
            for part in (seed, draw)
        )
        return seed, seed, draw, True
    seed = int(seed)
    return _signed32(seed), _signed32(seed >> 32), _signed32(int(draw)), False


@functools.cache
def _constants(
    direction: str, device: torch.device, d: int, itemsize: int, mode: Mode, has_mask: bool, key_on_device: bool
) -> dict:
    """Compile-time arguments and launch options."""
    arch, math_kind, warp_size = target(device)
    shape = tile(arch, direction, d, itemsize, warp_size)
    return {
        "D": d,
        "LEARNED_MU": mode.learned_mu,
        "LEARNED_SIGMA": mode.learned_sigma,
        "ADDITIVE": mode.additive,
        "DRAWS": mode.draws,
        "HAS_MASK": has_mask,
        "KEY_ON_DEVICE": key_on_device,
        "ROUNDS": ROUNDS,
        "MATH": math_kind,
        "BLOCK_ROWS": shape.rows,
        "BLOCK_COLS": shape.cols,
        **launch_options(shape),
    }


def _launch(kernel, embeddings: Tensor, args: tuple, constants: dict) -> None:
    n, t, _ = embeddings.shape
    grid = (n * triton.cdiv(t, constants["BLOCK_ROWS"]),)
    if embeddings.device.type == "cpu" or embeddings.device.index == torch.cuda.current_device():
        kernel[grid](*args, **constants)
    else:
        with torch.cuda.device(embeddings.device):
            kernel[grid](*args, **constants)


def forward(
    embeddings: Tensor,
    params: Tensor | None,
    mask: Tensor | None,
    sample_ids: Tensor,
    seed: int | Tensor,
    draw: int | Tensor,
    alpha: float,
    mode: Mode,
    **overrides,
) -> tuple[Tensor, Tensor]:
    """Like `torch_impl.forward`; `overrides` replace compile-time arguments (tuning, tests)."""
    perturbed = torch.empty_like(embeddings, memory_format=torch.contiguous_format)
    kl = embeddings.new_empty(embeddings.shape[:2], dtype=torch.float32)
    if embeddings.numel() == 0:
        return perturbed, kl
    device, (_, length, d) = embeddings.device, embeddings.shape
    *key, on_device = _key(seed, draw, device)
    kind = device, d, embeddings.element_size(), mode, mask is not None, on_device
    constants = _constants("forward", *kind) | overrides
    # what is None is not read
    params, mask = (embeddings if x is None else x for x in (params, mask))
    scalars = (1.0 / alpha, 0.5 * math.log2(alpha), mode.fixed_sigma(alpha), mode.fixed_kl(alpha), length)
    strides = (*embeddings.stride(), *params.stride(), *mask.stride()[:2], sample_ids.stride(0))
    if "maxnreg" in constants and max(strides) >= 2**31:  # 64-bit strides would spill under the cap
        constants = constants | {"maxnreg": None}
    tensors = (embeddings, params, mask, sample_ids, perturbed, kl)
    _launch(perturb_forward, embeddings, (*tensors, *key, *scalars, *strides), constants)
    return perturbed, kl


def backward(
    grad_perturbed: Tensor,
    grad_kl: Tensor | None,
    embeddings: Tensor,
    params: Tensor | None,
    mask: Tensor | None,
    sample_ids: Tensor,
    seed: int | Tensor,
    draw: int | Tensor,
    alpha: float,
    mode: Mode,
    **overrides,
) -> tuple[Tensor, Tensor | None]:
    """Like `torch_impl.backward`; `overrides` as in `forward`."""
    grad_embeddings = torch.empty_like(embeddings, memory_format=torch.contiguous_format)
    grad_params = torch.empty_like(params, memory_format=torch.contiguous_format) if mode.needs_params else None
    if embeddings.numel() == 0:
        return grad_embeddings, grad_params
    device, (_, length, d) = embeddings.device, embeddings.shape
    *key, on_device = _key(seed, draw, device)
    kind = device, d, embeddings.element_size(), mode, mask is not None, on_device
    constants = _constants("backward", *kind) | overrides
    params_out = grad_params
    if not mode.needs_params:  # neither read nor written then
        params, params_out, grad_kl = embeddings, grad_embeddings, embeddings
    mask = embeddings if mask is None else mask  # not read then
    scalars = (1.0 / alpha, 0.5 * math.log2(alpha), mode.fixed_sigma(alpha), length)
    strides = (*grad_perturbed.stride(), *grad_kl.stride()[:2], *embeddings.stride(), *params.stride())
    tensors = (grad_perturbed, grad_kl, embeddings, params, mask, sample_ids, grad_embeddings, params_out)
    args = (*tensors, *key, *scalars, *strides, *mask.stride()[:2], sample_ids.stride(0))
    _launch(perturb_backward, embeddings, args, constants)
    return grad_embeddings, grad_params
