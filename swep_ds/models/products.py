"""How the matrix products of float32 tensors are computed on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch


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
