"""The next batches, made while the device works on the present one.

By a thread: a batch is little work, most of it outside Python, and a process forked from a rank would inherit the
locks and sockets of DeepSpeed's threads.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import torch
from torch import Tensor

from swep_ds.data.batches import Batch, TrainingBatches

AHEAD = 2  # batches


def prefetch(batches: TrainingBatches, first: int, device: torch.device) -> Iterator[Batch]:
    """`batches` on the device from micro-step `first` on; close it where it is left early.

    To a GPU they go from pinned memory, which nobody waits for.
    """
    own = copy(batches)  # it remembers the epoch that it was last asked for: the caller's may be another one

    def make(micro_step: int) -> Batch:
        batch = own[micro_step]
        if device.type == "cuda":
            batch = Batch(*(one.pin_memory() if isinstance(one, Tensor) else one for one in batch))
        return batch

    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        made = deque(thread.submit(make, one) for one in range(first, min(first + AHEAD, len(batches))))
        for following in range(first + AHEAD, len(batches) + AHEAD):
            batch = made.popleft().result()
            if following < len(batches):
                made.append(thread.submit(make, following))
            yield batch.to(device)
