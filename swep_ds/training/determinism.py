"""`train.deterministic`: on a GPU, equal runs on the same devices and versions have equal numbers, to the last bit.

Without it some kernels add up in an order that changes from call to call: the backward passes of attention and of
indexing, by atomic additions, and matrix products, because cuBLAS chooses their workspace while they run.
"""

import os

import torch

from swep_ds.ranks.group import CUBLAS, FLASH_ATTENTION


def set_deterministic(on: bool) -> None:
    """Switches it until the process group ends. Call it before anything is computed: cuBLAS reads its setting at its
    first use."""
    if on:
        os.environ.setdefault(CUBLAS, ":4096:8")
        os.environ[FLASH_ATTENTION] = "1"
        # would write to each new tensor, so that a read before the first write is noticed
        torch.utils.deterministic.fill_uninitialized_memory = False
    if on != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler
        torch.use_deterministic_algorithms(on)
