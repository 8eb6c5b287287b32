"""Launches of the Triton kernels, with the tile of each: the same two functions as `torch_impl`, for CUDA and ROCm."""

import functools
import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .modes import Mode
from .philox import MASK, ROUNDS
from .triton_kernels import perturb_backward, perturb_forward

INTERPRETED = triton.knobs.runtime.interpret  # on CPU tensors; TRITON_INTERPRET decides at import


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
    """Makes Triton compile the part of itself that launches kernels, which takes a C compiler and Python's headers."""
    if not INTERPRETED:
        triton.runtime.driver.active.get_current_device()


def _signed32(word: int) -> int:
    """A 32-bit word as int32: one type for every key, hence one compiled kernel."""
    return ((word & MASK) ^ 0x80000000) - 0x80000000


def _key(seed: int | Tensor, draw: int | Tensor, device: torch.device):
    """Kernel arguments (seed_low, seed_high, draw, KEY_ON_DEVICE).

    A tensor on the device is read there, again at each replay of a CUDA graph.
    Raises: RuntimeError: a graph is being captured and a part is on the host.
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


class Tile(NamedTuple):
    """A program takes `rows` tokens and `cols` (a power of two) of a row's d/4 counters; the forward all, in turn."""

    rows: int
    cols: int
    warps: int
    maxnreg: int | None = None  # most registers a thread may use, which decides how many warps fit an SM; NVIDIA only


def tile(arch: str, direction: str, d: int, itemsize: int, warp_size: int) -> Tile:
    """The tile to launch on `arch` ("sm_90", "gfx942", ...) for `direction` ("forward", "backward").

    One warp a program, so that nothing waits at a barrier; 8 counters a thread, so that its share of a word is one
    access of 128 bits at two bytes an element, and 4 at four bytes; `cols` is the largest power of two that divides the
    d/4 counters of a row, so that no lane idles, and at most two a thread. Where `cols` would be under 8, the end of
    the row is masked instead. Nothing is tuned at run time: ranks that chose different tiles would sum the KL in
    different orders.

    The forward of sm_80 and sm_90 takes at most 128 registers, so that 16 warps fit an SM. On sm_100 this would spill.
    """
    quarter = d // 4
    cols = quarter & -quarter
    if cols < 8:
        cols = 1 << (quarter - 1).bit_length()
    cols = min(cols, 2 * warp_size)
    shape = Tile(8 * warp_size // cols, cols, 1)
    if direction == "forward" and arch.startswith(("sm_8", "sm_9")):
        shape = shape._replace(maxnreg=128)
    if itemsize > 2:
        shape = shape._replace(rows=shape.rows // 2)
    return shape


def launch_options(shape: Tile) -> dict[str, int | bool]:
    """What Triton takes to compile and launch a kernel with a tile, in addition to its constants."""
    options = {"num_warps": shape.warps, "enable_fp_fusion": True}  # fusion's default changed, and bits with it
    if shape.maxnreg is not None:
        options["maxnreg"] = shape.maxnreg
    return options


def constants(shape: Tile, math_kind: str, d: int, mode: Mode, has_mask: bool, key_on_device: bool) -> dict:
    """Compile-time arguments of a kernel."""
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
    }


@functools.cache
def _options(direction: str, device: torch.device, itemsize: int, d: int, *others) -> dict:
    """Compile-time arguments and launch options; `others` as `constants` takes them."""
    arch, math_kind, warp_size = target(device)
    shape = tile(arch, direction, d, itemsize, warp_size)
    return constants(shape, math_kind, d, *others) | launch_options(shape)


def _launch(kernel, embeddings: Tensor, args: tuple, options: dict, columns: int = 1) -> None:
    n, t, _ = embeddings.shape
    grid = (n * triton.cdiv(t, options["BLOCK_ROWS"]) * columns,)
    if embeddings.device.type == "cpu" or embeddings.device.index == torch.cuda.current_device():
        kernel[grid](*args, **options)
    else:
        with torch.cuda.device(embeddings.device):
            kernel[grid](*args, **options)


def forward(
    embeddings, params, mask, sample_ids, seed, draw, alpha: float, mode: Mode, **overrides
) -> tuple[Tensor, Tensor]:
    """Like `torch_impl.forward`; `overrides` replace compile-time arguments (tuning, tests)."""
    perturbed = torch.empty_like(embeddings, memory_format=torch.contiguous_format)
    kl = embeddings.new_empty(embeddings.shape[:2], dtype=torch.float32)
    if embeddings.numel() == 0:
        return perturbed, kl
    device = embeddings.device
    _, length, d = embeddings.shape
    *key, on_device = _key(seed, draw, device)
    options = _options("forward", device, embeddings.element_size(), d, mode, mask is not None, on_device) | overrides
    # what is None is not read
    if params is None:
        params = embeddings
    if mask is None:
        mask = embeddings
    scalars = (1.0 / alpha, 0.5 * math.log2(alpha), mode.fixed_sigma(alpha), mode.fixed_kl(alpha), length)
    strides = (*embeddings.stride(), *params.stride(), *mask.stride()[:2], sample_ids.stride(0))
    if "maxnreg" in options and max(strides) >= 2**31:  # 64-bit strides would spill under the cap
        options = options | {"maxnreg": None}
    tensors = (embeddings, params, mask, sample_ids, perturbed, kl)
    _launch(perturb_forward, embeddings, (*tensors, *key, *scalars, *strides), options)
    return perturbed, kl


def backward(
    grad_perturbed, grad_kl, embeddings, params, mask, sample_ids, seed, draw, alpha: float, mode: Mode, **overrides
) -> tuple[Tensor, Tensor | None]:
    """Like `torch_impl.backward`; `overrides` as in `forward`."""
    grad_embeddings = torch.empty_like(embeddings, memory_format=torch.contiguous_format)
    grad_params = None
    if mode.needs_params:
        grad_params = torch.empty_like(params, memory_format=torch.contiguous_format)
    if embeddings.numel() == 0:
        return grad_embeddings, grad_params
    device = embeddings.device
    _, length, d = embeddings.shape
    *key, on_device = _key(seed, draw, device)
    options = _options("backward", device, embeddings.element_size(), d, mode, mask is not None, on_device) | overrides
    params_out = grad_params
    if not mode.needs_params:  # neither read nor written then
        params = embeddings
        params_out = grad_embeddings
        grad_kl = embeddings
    if mask is None:
        mask = embeddings
    scalars = (1.0 / alpha, 0.5 * math.log2(alpha), mode.fixed_sigma(alpha), length)
    strides = (*grad_perturbed.stride(), *grad_kl.stride()[:2], *embeddings.stride(), *params.stride())
    tensors = (grad_perturbed, grad_kl, embeddings, params, mask, sample_ids, grad_embeddings, params_out)
    args = (*tensors, *key, *scalars, *strides, *mask.stride()[:2], sample_ids.stride(0))
    _launch(perturb_backward, embeddings, args, options, triton.cdiv(d // 4, options["BLOCK_COLS"]))
    return grad_embeddings, grad_params
