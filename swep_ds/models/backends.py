"""PyTorch's and transformers' global switches, set for a block and then put back."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASK_FUNCTIONS

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # train.precision -> dtype of the weights


def _switch(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Callable[[], AbstractContextManager]:
    """Makes blocks in which a setting of the process has `value`. They may overlap, in any threads: the first one sets
    it, and the end of the last one puts it back."""
    lock = threading.Lock()
    blocks = 0
    before: Any = None

    @contextmanager
    def block() -> Iterator[None]:
        nonlocal blocks, before
        with lock:
            if blocks == 0:
                before = read()
                write(value)
            blocks += 1
        try:
            yield
        finally:
            with lock:
                blocks -= 1
                if blocks == 0:
                    write(before)

    return block


# Inside, products of float32 matrices are computed in TF32 (10 bits of mantissa, float32 sums) or in float32, also in
# the threads of a backward. Elements and sums in memory are float32 either way.
tf32_products = _switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high")
float32_products = _switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest")

# Inside, PyTorch's fused attention (SDPA) does not take cuDNN's kernel. On an H100, H200 or B200, PyTorch 2.11 and
# later prefer it in half precision, and it is planned anew for each shape (docs/measurements/h200-training.md). The
# switch is global, so that the forward that activation checkpointing repeats in a backward takes the same kernel.
without_cudnn_attention = _switch(torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, False)


def _without_sync(make_mask: Callable) -> Callable:
    @wraps(make_mask)
    def make(*args, attention_mask: Tensor | None = None, allow_is_bidirectional_skip: bool = False, **kwargs):
        skip = allow_is_bidirectional_skip and attention_mask is None
        mask = make_mask(*args, attention_mask=attention_mask, allow_is_bidirectional_skip=skip, **kwargs)
        if mask is None or mask.dtype != torch.bool:
            return mask
        rows = mask
        if mask.stride(-2) == 0:  # the same keys for every query
            rows = mask[..., :1, :]
        return torch.zeros_like(rows, dtype=kwargs["dtype"]).masked_fill_(~rows, -torch.inf).expand_as(mask)

    return make


# In every forward pass transformers checks whether a padding mask masks anything; on a GPU the host then waits for all
# queued work. Here the host knows (`Batch.padding_mask`), so inside SDPA and eager attention use a given mask as it is.
# And SDPA gets it as numbers to add, which it would make of a boolean one in every layer.
# They are the same functions in every block: a compiled model would be compiled anew for others.
WITHOUT_SYNC = {name: _without_sync(MASK_FUNCTIONS[name]) for name in ("sdpa", "eager")}
given_masks = _switch(
    lambda: {name: MASK_FUNCTIONS[name] for name in WITHOUT_SYNC}, MASK_FUNCTIONS.update, WITHOUT_SYNC
)
