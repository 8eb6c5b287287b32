"""Prepares the next batches while the device works on the present one.

A thread does it: a batch is little work, most of it outside Python, and a process forked from a rank would inherit the
locks and sockets of DeepSpeed's threads.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from swep_ds.data.batches import Batch, TrainingBatches

AHEAD = 2  # batches


def prefetch(batches: TrainingBatches, first: int, device: torch.device) -> Iterator[Batch]:
    """Yields `batches` on the device from micro-step `first` on; close the iterator if you leave it early.

    Batches are copied to a GPU from pinned memory, so that the host does not wait.
    """

    def make(micro_step: int) -> Batch:
        batch = batches[micro_step]
        if device.type == "cuda":
            batch = Batch(*(field.pin_memory() if isinstance(field, Tensor) else field for field in batch))
        return batch

    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        ready = deque(thread.submit(make, step) for step in range(first, min(first + AHEAD, len(batches))))
        for following in range(first + AHEAD, len(batches) + AHEAD):
            batch = ready.popleft().result()
            if following < len(batches):
                ready.append(thread.submit(make, following))
            yield batch.to(device)
