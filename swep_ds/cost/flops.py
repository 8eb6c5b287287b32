"""Floating-point operations that an update needs, and what share of the device's peak that is."""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from swep_ds.data.batches import Batch

# (name, bf16, tf32, fp32): dense FLOP/s from the vendors' data sheets; the first name that matches counts
PEAKS = (
    ("B200", 2250e12, 1100e12, 75e12),
    ("H100 PCIe", 756e12, 378e12, 51e12),
    ("H100 NVL", 835e12, 417e12, 60e12),
    ("H100", 989e12, 494e12, 67e12),
    ("H200", 989e12, 494e12, 67e12),
    ("A100", 312e12, 156e12, 19.5e12),
    ("L40S", 362e12, 183e12, 91.6e12),
)


def flops_per_token(update: Callable[[Batch, int], None], batch: Batch) -> float:
    """FLOPs of an update on this batch as if it had no padding, as PyTorch counts them, by its tokens."""
    N, T = batch.input_ids.shape
    # a model may leave padding out
    full = batch._replace(attention_mask=torch.ones_like(batch.attention_mask), lengths=(T,) * N)
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        update(full, 0)
    return counter.get_total_flops() / (N * T)


def peak_flops(device: str, precision: str) -> float | None:
    """Peak FLOP/s of a GPU by its name, at a `train.precision`; None = not in the table."""
    for name, half, tf32, single in PEAKS:
        if name in device:
            return {"fp32": single, "tf32": tf32}.get(precision, half)
    return None
