"""PyTorch's global switches of a GPU's kernels, set for a block and then put back: matrix products and attention."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # train.precision -> dtype of the weights
_lock, _overlapping, _before = threading.Lock(), 0, True  # of `without_cudnn_attention`


@contextmanager
def float32_products(kind: Literal["tf32", "fp32"]) -> Iterator[None]:
    """Inside, products of float32 matrices are computed in TF32 (10 bits of mantissa, float32 sums) or in float32.

    PyTorch's switch is global: it also holds for the threads of a backward. After the block it is as before. Elements
    and sums in memory are float32 either way.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision({"tf32": "high", "fp32": "highest"}[kind])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Inside, PyTorch's fused attention (SDPA) does not take cuDNN's kernel.

    On an H100, H200 or B200, PyTorch 2.11 and later prefer that kernel in half precision. cuDNN plans it anew for each
    shape (docs/performance.md). The switch is global, so that the forward that activation checkpointing repeats in a
    backward takes the same kernel. When the last of several overlapping blocks ends, in any thread, it is set back to
    what it was before the first.
    """
    global _overlapping, _before
    with _lock:
        if not _overlapping:
            _before = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _overlapping += 1
    try:
        yield
    finally:
        with _lock:
            _overlapping -= 1
            if not _overlapping:
                torch.backends.cuda.enable_cudnn_sdp(_before)
