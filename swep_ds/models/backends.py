"""PyTorch's and transformers' global switches, set for a block and then put back.

`given_masks` builds SDPA and eager attention masks without a host-device synchronisation. In every forward pass
transformers checks whether a padding mask masks anything, to leave it out where nothing is padded; on a GPU the host
then waits for all queued work. Here the host already knows (`Batch.padding_mask`), so a given mask is used as it is.
flash_attention_2 still synchronises in every layer of a padded batch: transformers removes the padding there and reads
from the device how much is left.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASK_FUNCTIONS

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # train.precision -> dtype of the weights


def float32_products(kind: Literal["tf32", "fp32"]) -> AbstractContextManager:
    """Inside, products of float32 matrices are computed in TF32 (10 bits of mantissa, float32 sums) or in float32.

    PyTorch's switch is global: it also holds for the threads of a backward. Elements and sums in memory are float32
    either way.
    """
    precision = {"tf32": "high", "fp32": "highest"}[kind]
    return _switched(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision)


def without_cudnn_attention() -> AbstractContextManager:
    """Inside, PyTorch's fused attention (SDPA) does not take cuDNN's kernel. It is a decorator, too.

    On an H100, H200 or B200, PyTorch 2.11 and later prefer that kernel in half precision. cuDNN plans it anew for each
    shape (docs/performance.md). The switch is global, so that the forward that activation checkpointing repeats in a
    backward takes the same kernel.
    """
    return _switched(torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, False)


def given_masks() -> AbstractContextManager:
    """Inside, models use the padding masks that they are given. Threads that overlap may leave it so: no number is
    different, only the synchronisation is."""
    return _switched(_mask_functions, MASK_FUNCTIONS.update, WITHOUT_SYNC)


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


@contextmanager
def _switched(read: Callable[[], Any], switch: Callable[[Any], None], value: Any) -> Iterator[None]:
    before = read()
    switch(value)
    try:
        yield
    finally:
        switch(before)
