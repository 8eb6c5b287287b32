"""Which implementation runs: Triton on CUDA and ROCm, PyTorch elsewhere and in float64.

The environment variable SWEP_KERNELS forces one: `torch`, or `triton` (on a CPU only under TRITON_INTERPRET=1).
A process reads it once.
"""

import functools
import importlib.util
import os
from types import ModuleType

import torch

from . import torch_impl

VARIABLE = "SWEP_KERNELS"


@functools.cache
def implementation(device_type: str, dtype: torch.dtype) -> ModuleType:
    """The module whose `forward` and `backward` run for embeddings of `dtype` on a device of this type.

    Raises: ValueError if SWEP_KERNELS is not auto, torch or triton; RuntimeError if Triton is needed and cannot run.
    """
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in ("auto", "torch", "triton"):
        raise ValueError(f"{VARIABLE} must be auto, torch or triton; got {choice!r}")
    on_gpu = device_type == "cuda"  # ROCm tensors say "cuda" too
    if choice == "torch" or (choice == "auto" and (not on_gpu or dtype == torch.float64)):
        return torch_impl
    if dtype == torch.float64:
        raise RuntimeError(f"the Triton kernels compute in float32; for float64 unset {VARIABLE} or set it to torch")
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError(f"Triton is not installed; install it (pip install triton), or set {VARIABLE}=torch")
    from . import triton_impl

    if not on_gpu and not triton_impl.INTERPRETED:
        raise RuntimeError(
            f"{VARIABLE}=triton, but the tensors are on {device_type!r}: move them to a GPU, set TRITON_INTERPRET=1 "
            f"to run Triton's interpreter, or unset {VARIABLE}"
        )
    return triton_impl
