"""`train.deterministic`: on a GPU, equal runs on the same devices and versions have equal numbers, to the last bit.

Without it some kernels add up in an order that changes from call to call: the backward passes of attention and of
indexing, by atomic additions, and matrix products, because cuBLAS chooses their workspace while they run. PyTorch's
switch takes the deterministic backward of FlashAttention and of memory-efficient attention, and rules cuDNN's attention
out. The Triton kernels of this package use no atomics.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # PyTorch refuses a value that is not deterministic
FLASH_ATTENTION = "FLASH_ATTENTION_DETERMINISTIC"  # read by transformers for `model.attention: flash_attention_2`


def set_deterministic(on: bool) -> None:
    """Switches it for this process. Call it before anything is computed: cuBLAS reads its setting at its first use."""
    if on:
        os.environ.setdefault(CUBLAS, ":4096:8")
        os.environ[FLASH_ATTENTION] = "1"
        # would write to each new tensor, so that a read before the first write is noticed
        torch.utils.deterministic.fill_uninitialized_memory = False
    if on != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler
        torch.use_deterministic_algorithms(on)


@contextmanager
def deterministic_restored() -> Iterator[None]:
    """Afterwards the process is as deterministic as it was before; `set_deterministic` may be called inside."""
    was_on = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    environment = {name: os.environ[name] for name in (CUBLAS, FLASH_ATTENTION) if name in os.environ}
    try:
        yield
    finally:
        set_deterministic(was_on)
        torch.utils.deterministic.fill_uninitialized_memory = fill
        for name in (CUBLAS, FLASH_ATTENTION):
            os.environ.pop(name, None)
        os.environ.update(environment)
