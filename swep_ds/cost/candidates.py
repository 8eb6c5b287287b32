"""What an update costs: its time, in turns with others on the same batches, its memory and its FLOPs.

Memory (`peak_bytes`) is the most that tensors hold during an update, from the moment the model is loaded, without the
interpreter and libraries. A CPU's comes from all tensors and the results of PyTorch's operations, a GPU's from the
allocator.
"""

import gc
import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from swep_ds import ranks
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.methods.base import MicroStep
from swep_ds.ranks import accelerator
from swep_ds.training.loop import run_update

Update = Callable[[Batch, int], None]


@dataclass
class Candidate:
    """One way to train, and what it took."""

    name: str
    update: Update
    flops_per_token: float
    peak_bytes: int
    batches: list[Batch]
    seconds: list[float] = field(default_factory=list)


def engine_update(engine, execution: str) -> Update:
    """An update of a method under the engine, as the training loop runs it; the engine's accumulation is 1 batch."""
    engine.train()
    parts = engine.module.parts(execution)

    def update(batch: Batch, number: int) -> None:
        run_update(engine, iter([batch]), 1, MicroStep(number), parts)

    return update


def flops_per_token(update: Update, batch: Batch) -> float:
    """FLOPs of an update on this batch as if it had no padding, as PyTorch counts them, by its tokens."""
    N, T = batch.input_ids.shape
    # a model may leave padding out
    full = batch._replace(attention_mask=torch.ones_like(batch.attention_mask), lengths=(T,) * N)
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        update(full, 0)
    return counter.get_total_flops() / (N * T)


# Batches


def largest_batch(batches: TrainingBatches) -> Batch:
    """The batch of the first epoch with the most positions, on this rank's device."""
    return _first_micro_batch(batches, np.argmax(_sizes(batches)))


def sample(batches: TrainingBatches, warmup: int, updates: int) -> list[Batch]:
    """Batches of `updates` updates that represent the first epoch, in random order, after `warmup` of the same.

    A systematic sample: the epoch's updates are ordered by their positions, and each of `updates` equal parts gives the
    one in its middle. Consecutive updates would not do: windows of similar length share an update, so a few more or
    fewer long ones among 20 updates would move the mean by a tenth.
    """
    by_size = np.argsort(_sizes(batches), kind="stable")
    middles = (np.arange(updates) + 0.5) * len(by_size) / updates
    chosen = np.random.default_rng(batches.seed).permutation(by_size[middles.astype(int)])
    return [_first_micro_batch(batches, update) for update in (*np.resize(chosen, warmup), *chosen)]


def _sizes(batches: TrainingBatches) -> list[int]:
    """Positions of each update of the first epoch."""
    updates = map(batches.windows, range(batches.updates_per_epoch))
    return [len(rows) * int(batches.lengths[rows].max()) for rows in updates]


def _first_micro_batch(batches: TrainingBatches, update: int) -> Batch:
    return batches[int(update) * batches.accumulation].to(ranks.device())


# Memory


def measure_memory(make: Callable[[], Update], batch: Batch) -> tuple[Update, int]:
    """What `make` returns, which loads the model, and the most bytes that are held during an update after the first."""
    gc.collect()  # else freeing what the previous candidate left would be subtracted from this one's memory
    if accelerator.on_gpu():
        gpu = get_accelerator()
        before = gpu.memory_allocated()
        update = make()
        update(batch, 0)
        gpu.synchronize()
        gpu.reset_peak_memory_stats()
        update(batch, 1)
        gpu.synchronize()
        return update, gpu.max_memory_allocated() - before
    before = held_bytes()
    update = make()
    update(batch, 0)
    state = held_bytes() - before
    with _Allocations() as allocations:
        update(batch, 1)  # so that what the next update frees is known
        held = allocations.live
        allocations.peak = held
        update(batch, 2)
    return update, state + allocations.peak - held


def held_bytes() -> int:
    """Bytes of all tensors that Python knows; each storage counts once."""
    gc.collect()
    storages = {}
    for value in gc.get_objects():
        if issubclass(type(value), torch.Tensor) and not isinstance(value, FakeTensor):
            for tensor in (value, value.grad if value.is_leaf else None):
                if tensor is not None and tensor.device.type != "meta":
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class _Allocations(TorchDispatchMode):
    """Bytes of the live storages that were allocated under this mode, now and at their peak."""

    def __init__(self):
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.live = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            key = storage._cdata
            if key not in known and key not in self.sizes:
                self.sizes[key] = storage.nbytes()
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._free, key)
        return result

    def _free(self, key: int) -> None:
        self.live -= self.sizes.pop(key)


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


# Time


def measure(candidates: list[Candidate], warmup: int) -> None:
    """Runs each candidate over its batches, in turns; the first `warmup` batches do not count.

    On a GPU each candidate first runs by itself over those that count: the first update with a shape allocates its
    memory and may plan its kernels, which would count as the first candidate's time.
    """
    if accelerator.on_gpu():
        for candidate in candidates:
            for number, batch in enumerate(candidate.batches[warmup:]):
                candidate.update(batch, number)
    for number in range(len(candidates[0].batches)):
        for candidate in candidates:
            ranks.synchronize()
            began = time.perf_counter()
            candidate.update(candidate.batches[number], number)
            ranks.synchronize()
            if number >= warmup:
                candidate.seconds.append(time.perf_counter() - began)


def figures(candidates: list[Candidate], warmup: int) -> list[dict[str, Any]]:
    """A row for each candidate, with ratios to the first one; times on other batches have no ratio."""
    base = candidates[0]
    rows = []
    for candidate in candidates:
        counted = candidate.batches[warmup:]
        windows = sum(len(batch.input_ids) for batch in counted)
        tokens = sum(int(batch.attention_mask.sum()) for batch in counted)
        positions = sum(batch.input_ids.numel() for batch in counted)
        seconds = sum(candidate.seconds)
        quartiles = [None] * 3
        if candidate.batches is base.batches:
            ratios = [a / b for a, b in zip(candidate.seconds, base.seconds, strict=True)]
            quartiles = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "name": candidate.name,
                "median_update_seconds": statistics.median(candidate.seconds),
                "time_ratio": quartiles[1],
                "time_ratio_quartiles": quartiles[::2],
                "samples_per_second": ranks.world_size() * windows / seconds,
                "tokens_per_second": ranks.world_size() * tokens / seconds,
                "padding": 1 - tokens / positions,
                "peak_bytes": candidate.peak_bytes,
                "memory_ratio": candidate.peak_bytes / base.peak_bytes,
                "flops_per_second": candidate.flops_per_token * tokens / seconds,
            }
        )
    return rows
