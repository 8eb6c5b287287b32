"""What an update costs: methods and executions on the same batches, in turns, in one process.

Time is the wall clock of whole updates (forward, backward, optimizer), measured in turns, so that a machine whose
speed drifts slows all candidates alike. Memory is what tensors hold from the moment the model is loaded: weights,
gradients and optimizer state after the first update (`state_bytes`), and the peak during the next ones (`peak_bytes`),
on the largest batch of an epoch, which sets a run's peak; on a CPU from all tensors and the profiler's allocation
events, on a GPU from the allocator. Memory of the interpreter and libraries is left out: it is the same for all and
would hide differences.
"""

import gc
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensor
from torch.profiler import ProfilerActivity, profile, record_function

from swep_ds import ranks
from swep_ds.cost.flops import Flops, count, peak_flops
from swep_ds.cost.published import PlainTraining
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.methods.base import MicroStep
from swep_ds.ranks import accelerator
from swep_ds.training.loop import run_update

Update = Callable[[Batch, int], None]


@dataclass
class Candidate:
    """One way to train.

    forwards: the model's forward passes in an update, those inside a perturbation included.
    extra_parameters: the method's own, beside the model's.
    """

    name: str
    training: "EngineTraining | PlainTraining"
    forwards: int
    extra_parameters: int
    flops: Flops
    state_bytes: int
    peak_bytes: int
    batches: list[Batch] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def engine_update(engine, execution: str) -> Update:
    """An update of a method under the engine, as the training loop runs it; the engine's accumulation is 1 batch."""
    parts = engine.module.parts(execution)

    def update(batch: Batch, number: int) -> None:
        run_update(engine, iter([batch]), 1, MicroStep(number), parts)

    return update


class EngineTraining:
    """Whole updates of a method under DeepSpeed's engine; `PlainTraining` is its counterpart in PyTorch alone."""

    def __init__(self, engine, execution: str):
        engine.train()
        self.engine, self.objective, self.update = engine, engine.module, engine_update(engine, execution)


def build_candidate(name: str, make: Callable[[], EngineTraining | PlainTraining], batch: Batch) -> Candidate:
    """Builds a candidate and measures its memory on a batch. `make` loads the model."""
    training, state, peak = _memory(make, batch)
    root, forwards = training.objective, []
    hook = root.qa.register_forward_hook(lambda *_: forwards.append(1))
    flops = count(root, root.qa, training.update, batch)
    hook.remove()
    extra = sum(getattr(p, "ds_numel", p.numel()) for p in root.method.parameters())  # ZeRO-3 partitions them
    return Candidate(name, training, len(forwards), extra, flops, state, peak)


def largest_batch(batches: TrainingBatches) -> Batch:
    """The batch of the first epoch with the most positions."""
    sizes = [_positions(batches, update) for update in range(batches.updates_per_epoch)]
    return batches[int(np.argmax(sizes)) * batches.accumulation]


def sample(batches: TrainingBatches, warmup: int, updates: int) -> TrainingBatches:
    """Batches of `updates` updates that represent the first epoch, in random order, after `warmup` of the same.

    A systematic sample: the epoch's updates are ordered by their positions, and each of `updates` equal parts gives the
    one in its middle. Consecutive updates would not do: windows of similar length share an update, so a few more or
    fewer long ones among 20 updates would move the mean by a tenth.
    """
    rows = [batches.windows(update) for update in range(batches.updates_per_epoch)]
    by_size = np.argsort([_positions(batches, update) for update in range(len(rows))], kind="stable")
    middles = (np.arange(updates) + 0.5) * len(by_size) / updates
    chosen = np.random.default_rng(batches.seed).permutation(by_size[middles.astype(int)])
    numbers = [*np.resize(chosen, warmup), *chosen]
    sampled = copy(batches)
    sampled.windows = lambda update: rows[numbers[update]]
    sampled.updates = len(numbers)
    return sampled


def _positions(batches: TrainingBatches, update: int) -> int:
    rows = batches.windows(update)
    return len(rows) * int(batches.lengths[rows].max())


def _memory(make: Callable[[], Any], batch: Batch) -> tuple[Any, int, int]:
    """What `make` returns, bytes held after an update, and the most bytes held during the next ones."""
    gc.collect()  # else freeing what the previous candidate left would be subtracted from this one's memory
    if accelerator.on_gpu():
        gpu = get_accelerator()
        before = gpu.memory_allocated()
        training = make()
        training.update(batch, 0)
        gpu.synchronize()
        state = gpu.memory_allocated() - before
        gpu.reset_peak_memory_stats()
        training.update(batch, 1)
        gpu.synchronize()
        return training, state, gpu.max_memory_allocated() - before
    before = held_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        training = make()
        training.update(batch, 0)
        state = held_bytes() - before
        with record_function("measured updates"):
            for number in range(1, 4):
                training.update(batch, number)
        training.update(batch, 4)
    return training, state, state + _recorded_rise(recorded)


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


def _recorded_rise(recorded: profile) -> int:
    """The most bytes that tensors hold during the measured updates, beyond those held before.

    Sometimes gloo's thread is the last holder of a reduction's bucket, and the profiler misses that it is freed. This
    shows in the next update at the latest, when its address is allocated again. Such a block is left out altogether:
    the same block of the other updates counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    blocks = [(e["ts"], e["args"]["Addr"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"]
    blocks.sort(key=lambda block: block[0])
    if not blocks:
        raise RuntimeError("the profiler recorded no allocation: this PyTorch build cannot measure memory on a CPU")
    live: dict[int, int] = {}
    unseen = set()
    for number, (_, address, size) in enumerate(blocks):
        if size < 0:
            if live.pop(address, None) is None:  # allocated before the recording: not this candidate's
                unseen.add(number)
            continue
        if address in live:
            unseen.add(live[address])
        live[address] = number
    [span] = [e for e in events if e.get("name") == "measured updates" and e.get("cat") == "user_annotation"]
    start, end = span["ts"], span["ts"] + span["dur"]
    sizes = (size for n, (time_, _, size) in enumerate(blocks) if n not in unseen and start <= time_ < end)
    return max(itertools.accumulate(sizes, initial=0))


def measure(candidates: list[Candidate], warmup: int) -> None:
    """Runs each candidate over its batches, in turns; the first `warmup` batches do not count.

    On a GPU each candidate first runs alone over those that count: the first update with a shape allocates its memory
    and may plan its kernels, which would count as the first candidate's time.
    """
    if accelerator.on_gpu():
        for candidate in candidates:
            for number, batch in enumerate(candidate.batches[warmup:]):
                candidate.training.update(batch, number)
    for number in range(len(candidates[0].batches)):
        for candidate in candidates:
            ranks.synchronize()
            began = time.perf_counter()
            candidate.training.update(candidate.batches[number], number)
            ranks.synchronize()
            if number >= warmup:
                candidate.seconds.append(time.perf_counter() - began)


def figures(candidates: list[Candidate], warmup: int, precision: str) -> list[dict[str, Any]]:
    """A row for each candidate, with ratios to the first one; times on other batches have no ratio."""
    base, rows = candidates[0], []
    for candidate in candidates:
        counted = candidate.batches[warmup:]
        lengths = [batch.attention_mask.sum(1).tolist() for batch in counted]
        windows, tokens = sum(map(len, lengths)), sum(map(sum, lengths))
        seconds, state, peak = sum(candidate.seconds), candidate.state_bytes, candidate.peak_bytes
        ratio = quartiles = None
        if candidate.batches is base.batches:
            ratios = [a / b for a, b in zip(candidate.seconds, base.seconds, strict=True)]
            ratio, quartiles = statistics.median(ratios), statistics.quantiles(ratios, n=4)[::2]
        row = {
            "name": candidate.name,
            "forwards": candidate.forwards,
            "extra_parameters": candidate.extra_parameters,
            "median_update_seconds": statistics.median(candidate.seconds),
            "time_ratio": ratio,
            "time_ratio_quartiles": quartiles,
            "samples_per_second": windows / seconds,
            "tokens_per_second": tokens / seconds,
            "padding": 1 - tokens / sum(batch.input_ids.numel() for batch in counted),
            "state_bytes": state,
            "peak_bytes": peak,
            "memory_ratio": peak / base.peak_bytes,
            "activation_ratio": (peak - state) / (base.peak_bytes - base.state_bytes),
        }
        if name := accelerator.product_name():
            limit = peak_flops(name, "fp32" if candidate.training.engine is None else precision)
            flops = sum(map(candidate.flops.of, lengths)) / seconds
            row |= {"flops_per_second": flops, "utilisation": limit and flops / limit}
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], updates: int, positions: Sequence[int]) -> Table:
    """The rows of `figures`. positions: windows and tokens of the batch that memory was measured on."""
    title = f"{updates} updates each, in turns; medians; peak memory on {positions[0]} windows of {positions[1]} tokens"
    base = rows[0]["name"]
    columns = {
        "": lambda row: row["name"],
        "forwards": lambda row: str(row["forwards"]),
        "extra params": lambda row: f"{row['extra_parameters']:,}",
        "ms/update": lambda row: f"{1000 * row['median_update_seconds']:.1f}",
        f"time x {base}": lambda row: f"{row['time_ratio']:.3f}" if row["time_ratio"] else "",
        "quartiles": lambda row: "-".join(f"{ratio:.2f}" for ratio in row["time_ratio_quartiles"] or ()),
        "samples/s": lambda row: f"{row['samples_per_second']:.1f}",
        "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
        "padding": lambda row: f"{row['padding']:.1%}",
        "state MiB": lambda row: f"{row['state_bytes'] / 2**20:.0f}",
        "peak MiB": lambda row: f"{row['peak_bytes'] / 2**20:.0f}",
        f"peak x {base}": lambda row: f"{row['memory_ratio']:.3f}",
        "above state": lambda row: f"{row['activation_ratio']:.3f}",
    }
    if "utilisation" in rows[0]:
        columns["TFLOP/s"] = lambda row: f"{row['flops_per_second'] / 1e12:.1f}"
        columns["of peak"] = lambda row: "not known" if row["utilisation"] is None else f"{row['utilisation']:.1%}"
    shown = Table(title=title)
    for name in columns:
        shown.add_column(name, no_wrap=not name, justify="right" if name else "left")
    for row in rows:
        shown.add_row(*(cell(row) for cell in columns.values()))
    return shown
