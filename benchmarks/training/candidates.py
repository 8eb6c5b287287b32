"""What an update costs: its time, in turns with others on the same batches, its memory and its FLOPs.

Memory (`peak_bytes`) is the most that PyTorch's allocator holds during an update, from the moment the model is loaded,
without the interpreter and libraries. CUDA graphs keep theirs between updates, and it counts.
"""

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from unittest import mock

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import DeviceType
from torch.autograd.profiler import profile
from torch.autograd.profiler_util import MEMORY_EVENT_NAME
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profile_device
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.training.updates import Update, engine_of
from benchmarks.training.ways import PUBLISHED, RANDOM
from swep_ds import ranks
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.ranks import accelerator
from swep_ds.training.graphs import PATIENCE


@dataclass
class Candidate:
    """A way to train a method, and what it took."""

    name: str
    method: str
    update: Update
    batches: list[Batch]
    peak_bytes: int | None
    seconds: list[float] = field(default_factory=list)  # one per counted update
    process_seconds: list[float] = field(default_factory=list)  # the same, of all threads of the host
    first_seconds: float | None = None  # GPU: of the first passes over the batches, which compile and capture
    kernel_seconds: float | None = None  # GPU: the sum of the times of an update's kernels


def first_passes(update: Update) -> int:
    """How often an update sees its batches before a GPU measures it: each shape is then compiled and captured."""
    engine = engine_of(update)
    return PATIENCE if engine and engine.graphs else 1


def flops_per_token(update: Update, batch: Batch) -> float:
    """FLOPs of an update on this batch as if it had no padding, as PyTorch counts them, by its tokens."""
    N, T = batch.input_ids.shape
    # a model may leave padding out
    full = batch._replace(attention_mask=torch.ones_like(batch.attention_mask), lengths=(T,) * N)
    uncaptured = nullcontext()
    if engine := engine_of(update):
        uncaptured = mock.patch.object(engine, "graphs", None)  # PyTorch sees no operation of a replay
    with uncaptured, torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        update(full, 0)
    return counter.get_total_flops() / (N * T)


def largest_batch(batches: TrainingBatches) -> Batch:
    """The batch of the first epoch with the most positions, on this rank's device."""
    return batches[int(np.argmax(_sizes(batches)))].to(ranks.device())


def sample(batches: TrainingBatches, warmup: int, updates: int) -> list[Batch]:
    """Batches of `updates` updates that represent the first epoch, in random order, after `warmup` of the same, on this
    rank's device.

    A systematic sample of the updates by their positions: windows of similar length share an update, so a few more or
    fewer long ones among 20 consecutive updates would move the mean by a tenth.
    """
    by_size = np.argsort(_sizes(batches), kind="stable")
    middles = (np.arange(updates) + 0.5) * len(by_size) / updates
    chosen = np.random.default_rng(batches.seed).permutation(by_size[middles.astype(int)])
    return [batches[int(update)].to(ranks.device()) for update in (*np.resize(chosen, warmup), *chosen)]


def _sizes(batches: TrainingBatches) -> list[int]:
    """Positions of each update of the first epoch."""
    return [len(batches.windows(update)) * batches.width(update) for update in range(batches.updates_per_epoch)]


def measure_memory(make: Callable[[], Update], batch: Batch) -> tuple[Update, int]:
    """What `make` returns, which loads the model, and the most bytes that are held during an update after the first."""
    if accelerator.on_gpu():
        gc.collect()  # else freeing what the previous candidate left would be subtracted from this one's memory
        gpu = get_accelerator()
        before = gpu.memory_allocated() + _held_by_graphs()
        update = make()
        for number in range(PATIENCE):
            update(batch, number)
        gpu.synchronize()
        gpu.reset_peak_memory_stats()
        update(batch, PATIENCE)
        gpu.synchronize()
        return update, gpu.max_memory_allocated() + _held_by_graphs() - before
    before = held_bytes()
    update = make()
    update(batch, 0)
    state = held_bytes() - before
    with profile(profile_memory=True) as recorded:
        update(batch, 1)
    events = [event for event in recorded.kineto_results.events() if event.name() == MEMORY_EVENT_NAME]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return update, state + max(accumulate(changes, initial=0))


def _held_by_graphs() -> int:
    """Bytes that CUDA graphs keep for their replays: PyTorch does not count them as allocated."""
    if get_accelerator().device_name() != "cuda":
        return 0
    segments = [segment for segment in torch.cuda.memory_snapshot() if tuple(segment["segment_pool_id"]) != (0, 0)]
    return sum(segment["total_size"] - segment["allocated_size"] for segment in segments)


def held_bytes() -> int:
    """Bytes of all tensors that Python knows; each storage counts once."""
    gc.collect()
    storages: dict[int, int] = {}
    for value in gc.get_objects():
        if issubclass(type(value), Tensor) and not isinstance(value, FakeTensor):
            for tensor in (value, value.grad if value.is_leaf else None):
                if tensor is not None and tensor.device.type != "meta":
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def measure(candidates: list[Candidate], warmup: int) -> None:
    """Runs each candidate over its batches, in turns; the first `warmup` batches do not count.

    The order of a turn is random, the same on all ranks: a candidate is slower behind one that leaves the caches cold.
    """
    # the first update with a shape allocates its memory and may plan its kernels: the first candidate would pay for it
    if accelerator.on_gpu():
        for candidate in candidates:
            began = time.perf_counter()
            for _ in range(first_passes(candidate.update)):
                _run(candidate, warmup)
            candidate.first_seconds = time.perf_counter() - began
    for number in range(len(candidates[0].batches)):
        for position in np.random.default_rng(number).permutation(len(candidates)):
            candidate = candidates[position]
            ranks.synchronize()
            began = time.perf_counter(), time.process_time()
            candidate.update(candidate.batches[number], number)
            ranks.synchronize()
            ended = time.perf_counter(), time.process_time()
            if number >= warmup:
                candidate.seconds.append(ended[0] - began[0])
                candidate.process_seconds.append(ended[1] - began[1])
    if accelerator.on_gpu():
        for candidate in candidates:
            with profile_device(activities=[ProfilerActivity.CUDA]) as recorded:
                _run(candidate, warmup)
            kernels = [event for event in recorded.key_averages() if is_measured(event, DeviceType.CUDA)]
            micros = sum(event.self_device_time_total for event in kernels)
            candidate.kernel_seconds = micros / 1e6 / len(candidate.seconds)


def _run(candidate: Candidate, warmup: int) -> None:
    """All counted batches, one after the other."""
    for number, batch in enumerate(candidate.batches[warmup:]):
        candidate.update(batch, number)
    ranks.synchronize()


def is_measured(event: Any, kind: DeviceType) -> bool:
    """Whether an event of a profile is a kernel or an operation of this kind of device."""
    return event.device_type == kind and not event.is_user_annotation


def figures(
    candidates: list[Candidate], warmup: int, flops_per_token: dict[str, float], peak_flops: float | None = None
) -> list[dict[str, Any]]:
    """A row for each candidate. `flops_per_token` are those of a method's update, `peak_flops` the device's a second.

    Ratios compare a method's further ways with its first one, and that one with the first candidate: a ratio never
    mixes the two. There are none if the other ran on other batches.
    """
    first_ways: dict[str, Candidate] = {}
    rows = []
    for candidate in candidates:
        base = first_ways.setdefault(candidate.method, candidate)
        if base is candidate:
            base = candidates[0]
        counted = candidate.batches[warmup:]
        windows = sum(len(batch.input_ids) for batch in counted)
        tokens = sum(int(batch.attention_mask.sum()) for batch in counted)
        positions = sum(batch.input_ids.numel() for batch in counted)
        seconds = sum(candidate.seconds)
        engine = engine_of(candidate.update)
        row = {
            "name": candidate.name,
            "zero_stage": engine.stage if engine else None,
            "median_update_seconds": statistics.median(candidate.seconds),
            "median_process_seconds": statistics.median(candidate.process_seconds),
            "kernel_seconds": candidate.kernel_seconds,
            "first_seconds": candidate.first_seconds,
            "samples_per_second": ranks.world_size() * windows / seconds,
            "tokens_per_second": ranks.world_size() * tokens / seconds,
            "padding": 1 - tokens / positions,
            "peak_bytes": candidate.peak_bytes,
        }
        if candidate.batches is base.batches:
            first, median, third = statistics.quantiles(np.divide(candidate.seconds, base.seconds), n=4)
            row |= {"compared_with": base.name, "time_ratio": median, "time_ratio_quartiles": [first, third]}
            row["process_ratio"] = statistics.median(np.divide(candidate.process_seconds, base.process_seconds))
            if candidate.peak_bytes and base.peak_bytes:
                row["memory_ratio"] = candidate.peak_bytes / base.peak_bytes
        if candidate.method in flops_per_token:
            row["flops_per_second"] = flops_per_token[candidate.method] * tokens / seconds
            if peak_flops:
                row["share_of_peak"] = row["flops_per_second"] / peak_flops
        rows.append(row)
    speeds = {row["name"]: row["samples_per_second"] for row in rows}
    if PUBLISHED + RANDOM in speeds:
        for row in rows:
            row["speed_to_published"] = row["samples_per_second"] / speeds[PUBLISHED + RANDOM]
    return rows
