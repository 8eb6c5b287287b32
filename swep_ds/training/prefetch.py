"""Prepares the next batches while the device works on the present one, in a thread: a process forked from a rank would
inherit the locks and sockets of DeepSpeed's threads."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

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

    steps = iter(range(first, len(batches)))
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        ready = deque(thread.submit(make, step) for step in islice(steps, AHEAD))
        while ready:
            batch = ready.popleft().result()
            ready.extend(thread.submit(make, step) for step in islice(steps, 1))
            yield batch.to(device)
