"""PyTorch's and transformers' global switches, set for a block and then put back.

`given_masks` builds SDPA and eager attention masks without a host-device synchronisation. In every forward pass
transformers checks whether a padding mask masks anything, to leave it out where nothing is padded; on a GPU the host
then waits for all queued work. Here the host already knows (`Batch.padding_mask`), so a given mask is used as it is.
flash_attention_2 still synchronises in every layer of a padded batch: transformers removes the padding there and reads
from the device how much is left.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASK_FUNCTIONS

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # train.precision -> dtype of the weights


class _Switch:
    """A setting of the process that has `value` inside of blocks. Blocks may overlap, in any threads: the first one
    sets it, and the end of the last one puts it back."""

    def __init__(self, read: Callable[[], Any], switch: Callable[[Any], None], value: Any):
        self._read = read
        self._switch = switch
        self._value = value
        self._lock = threading.Lock()
        self._blocks = 0
        self._before: Any = None

    @contextmanager
    def block(self) -> Iterator[None]:
        with self._lock:
            if self._blocks == 0:
                self._before = self._read()
                self._switch(self._value)
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if self._blocks == 0:
                    self._switch(self._before)


@contextmanager
def float32_products(kind: Literal["tf32", "fp32"]) -> Iterator[None]:
    """Inside, products of float32 matrices are computed in TF32 (10 bits of mantissa, float32 sums) or in float32.

    PyTorch's switch is global: it also holds for the threads of a backward. Elements and sums in memory are float32
    either way.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision({"tf32": "high", "fp32": "highest"}[kind])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


_cudnn_attention = _Switch(torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, False)


def without_cudnn_attention() -> AbstractContextManager:
    """Inside, PyTorch's fused attention (SDPA) does not take cuDNN's kernel. It is a decorator, too.

    On an H100, H200 or B200, PyTorch 2.11 and later prefer that kernel in half precision. cuDNN plans it anew for each
    shape (docs/performance.md). The switch is global, so that the forward that activation checkpointing repeats in a
    backward takes the same kernel.
    """
    return _cudnn_attention.block()


def _without_sync(make_mask: Callable) -> Callable:
    """Wraps one of transformers' mask functions so that it uses the padding mask that it is given."""

    @wraps(make_mask)
    def make(*args, attention_mask: Tensor | None = None, allow_is_bidirectional_skip: bool = False, **kwargs):
        skip = allow_is_bidirectional_skip and attention_mask is None
        return make_mask(*args, attention_mask=attention_mask, allow_is_bidirectional_skip=skip, **kwargs)

    return make


# the same functions in every block: a compiled model would be compiled anew for others
WITHOUT_SYNC = {name: _without_sync(MASK_FUNCTIONS[name]) for name in ("sdpa", "eager")}


def _mask_functions() -> dict[str, Callable]:
    return {name: MASK_FUNCTIONS[name] for name in WITHOUT_SYNC}


_masks = _Switch(_mask_functions, MASK_FUNCTIONS.update, WITHOUT_SYNC)


def given_masks() -> AbstractContextManager:
    """Inside, models use the padding masks that they are given."""
    return _masks.block()
