"""The device that computes, as DeepSpeed chooses it, but without its import, for which an answer would wait."""

import ctypes
import os
import platform
import resource
from contextlib import suppress

import psutil
import torch

# dtype -> names, in `torch.cpu.get_capabilities`, of x86's and ARM's instructions for it
INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "avx_ne_convert", "fp16_arith"),
}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def device_type() -> str:
    """PyTorch's name for the kind of device that computes, such as "cuda" or "cpu"."""
    if named := os.environ.get("DS_ACCELERATOR"):
        return named
    available = torch.accelerator.current_accelerator(check_available=True)
    return available.type if available else "cpu"


def device() -> torch.device:
    """This process's device; on a GPU with its index."""
    if on_gpu():
        return torch.device(device_type(), torch.accelerator.current_device_index())
    return torch.device("cpu")


def on_gpu() -> bool:
    """Whether a GPU, or another accelerator, computes."""
    return device_type() != "cpu"


def device_count() -> int:
    """How many accelerators this process sees; 0 if the CPU computes."""
    return torch.accelerator.device_count() if on_gpu() else 0


def free_memory() -> list[int]:
    """Free bytes of memory of each accelerator; empty if the CPU computes."""
    module = torch.get_device_module(device_type())
    return [module.mem_get_info(number)[0] for number in range(device_count())]


def peak_memory_bytes() -> int:
    """Peak memory so far: allocated on the GPU where there is one, else resident in the process."""
    if on_gpu():
        return torch.accelerator.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def lean_heap(on: bool) -> None:
    """Returns freed memory to the system, and decides whether glibc returns blocks of 1 to 32 MB, as weights are, as
    soon as they are freed. Otherwise it keeps them: faster, but often a second copy of the weights."""
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 2**20 if on else 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**26)  # as glibc sets it for blocks of 32 MB
        libc.malloc_trim(0)


def has_tf32() -> bool:
    """Whether this process's accelerator computes products of float32 matrices in TF32 if it is asked to."""
    return device_type() == "cuda" and torch.cuda.is_tf32_supported()


def emulates(dtype: torch.dtype) -> bool:
    """Whether the CPU computes and has, as far as PyTorch knows, no instructions for `dtype`: in bfloat16 a product of
    matrices then took 3 times (AVX-512) to 50 times (AVX2) as long as in float32."""
    if on_gpu():
        return False
    capabilities = torch.cpu.get_capabilities()
    known = [capabilities[name] for name in INSTRUCTIONS.get(dtype, ()) if name in capabilities]
    return bool(known) and not any(known)


def product_name() -> str | None:
    """The vendor's name of this process's accelerator; None if the CPU computes."""
    if not on_gpu():
        return None
    module = torch.get_device_module(device_type())
    return getattr(module, "get_device_name", device_type)()  # CUDA, ROCm and XPU have it


def machine() -> str:
    """What computes on this node: the accelerator or CPU, their number and memory."""
    if not on_gpu():
        cores = os.cpu_count() or 1
        memory = psutil.virtual_memory().total / 2**30
        return f"CPU {platform.machine()}, {cores} cores, {memory:.0f} GiB"
    memory = torch.get_device_module(device_type()).get_device_properties(0).total_memory / 2**30
    return f"{device_count()} x {product_name()}, {memory:.0f} GiB each"
