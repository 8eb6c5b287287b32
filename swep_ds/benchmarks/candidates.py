"""What an update costs: methods and executions on the same batches, taking turns, in one process.

Time is the wall clock of whole updates (forward, backward, optimizer), measured in turns, so that a machine whose
speed drifts slows all of them alike. Memory is what tensors hold from the moment the model is loaded: weights,
gradients and optimizer state after the first update (`state_bytes`), and the highest point during the next ones
(`peak_bytes`), on the largest batch of an epoch, which sets a run's peak; on CPU from all tensors and the profiler's
allocation events, on a GPU from the allocator. What the interpreter and libraries take is left out: it is the same for
all and would hide differences.
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
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.profiler import ProfilerActivity, profile, record_function

from swep_ds import ranks
from swep_ds.benchmarks.flops import Flops, count, peak_flops
from swep_ds.benchmarks.published import PlainTraining
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.ranks import accelerator

Update = Callable[[Batch, int], None]


@dataclass
class Candidate:
    """One way to train: `update` runs a whole optimizer step on a batch.

    forwards: of the model in an update, those inside a perturbation among them.
    extra_parameters: the method's own, beside the model's.
    engine: DeepSpeed's; None = PyTorch alone.
    """

    name: str
    forwards: int
    extra_parameters: int
    flops: Flops
    update: Update
    state_bytes: int
    peak_bytes: int
    engine: Any = None
    batches: list[Batch] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def engine_update(engine, execution: str) -> Update:
    """An update of a method under the engine, as the training loop runs it; the engine's accumulation is 1 batch."""
    micro_steps = engine.module.micro_steps(execution)
    parts: Sequence[int | None] = [None] if execution == "joint" else range(micro_steps)

    def update(batch: Batch, number: int) -> None:
        carried = None
        for part in parts:
            loss, carried, _ = engine(batch, number, 0.0, part, carried)
            engine.backward(loss * micro_steps)
            engine.step()

    return update


def contend(name: str, make: Callable[[], Any], execution: str, batch: Batch) -> Candidate:
    """Builds a candidate and measures its memory on a batch. `make` loads the model and returns its engine."""

    def build() -> tuple[Any, Update]:
        engine = make()
        engine.train()
        return engine, engine_update(engine, execution)

    engine, update, state, peak = _memory(build, batch)
    return _candidate(name, engine.module, update, state, peak, batch, engine=engine)


def contend_plain(name: str, make: Callable[[], PlainTraining], batch: Batch) -> Candidate:
    """The same for a training without engine."""

    def build() -> tuple[PlainTraining, Update]:
        training = make()
        return training, training.update

    training, update, state, peak = _memory(build, batch)
    return _candidate(name, training.loss, update, state, peak, batch)


def _candidate(name: str, root: nn.Module, update: Update, state: int, peak: int, batch: Batch, **more) -> Candidate:
    forwards = []
    hook = root.qa.register_forward_hook(lambda *_: forwards.append(1))
    flops = count(root, root.qa, update, batch)
    hook.remove()
    extra = sum(getattr(p, "ds_numel", p.numel()) for p in root.method.parameters())  # ZeRO-3 partitions them
    return Candidate(name, len(forwards), extra, flops, update, state, peak, **more)


def largest_batch(batches: TrainingBatches) -> Batch:
    """Of the first epoch, in positions."""

    def positions(update: int) -> int:
        rows = batches.windows(update)
        return len(rows) * int(batches.lengths[rows].max())

    return batches[max(range(batches.updates_per_epoch), key=positions) * batches.accumulation]


def sample(batches: TrainingBatches, warmup: int, updates: int) -> TrainingBatches:
    """Batches of so many updates that stand for the first epoch, to a speed per window, too.

    A systematic sample: the epoch's updates ordered by their positions, and of each of `updates` equal parts the one
    in the middle. Updates as they come would not do: where windows of like length share one, a few more or fewer long
    ones among 20 updates move the mean by a tenth. In random order; before them stand `warmup` of the same.
    """
    rows = [batches.windows(update) for update in range(batches.updates_per_epoch)]
    by_size = np.argsort([len(row) * batches.lengths[row].max() for row in rows], kind="stable")
    middles = (np.arange(updates) + 0.5) * len(by_size) / updates
    chosen = np.random.default_rng(batches.seed).permutation(by_size[middles.astype(int)])
    numbers = [*np.resize(chosen, warmup), *chosen]
    own = copy(batches)
    own.windows = lambda update: rows[numbers[update]]
    own.updates = len(numbers)
    return own


def _memory(build: Callable[[], tuple[Any, Update]], batch: Batch) -> tuple[Any, Update, int, int]:
    """What `build` makes, bytes that it holds after an update, and the most during the next ones."""
    gc.collect()  # else what the candidate before left would be freed, and subtracted, in this one's account
    if accelerator.on_gpu():
        gpu = get_accelerator()
        before = gpu.memory_allocated()
        made, update = build()
        update(batch, 0)
        gpu.synchronize()
        state = gpu.memory_allocated() - before
        gpu.reset_peak_memory_stats()
        update(batch, 1)
        gpu.synchronize()
        return made, update, state, gpu.max_memory_allocated() - before
    before = held_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        made, update = build()
        update(batch, 0)
        state = held_bytes() - before
        with record_function("measured updates"):
            for number in range(1, 4):
                update(batch, number)
        update(batch, 4)
    return made, update, state, state + _recorded_rise(recorded)


def held_bytes() -> int:
    """Of all tensors that Python knows, every storage once."""
    gc.collect()
    storages = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and not isinstance(one, FakeTensor):
            for tensor in (one, one.grad if one.is_leaf else None):
                if tensor is not None and tensor.device.type != "meta":
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _recorded_rise(recorded: profile) -> int:
    """By how many bytes tensors hold more at most, during the measured updates, than before them.

    Now and then gloo's thread is the last to hold the bucket of a reduction, and the profiler does not see it freed.
    That shows in the next update at the latest, when its address is given out again. Such a block is left out
    altogether: its likes in the other updates count.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    blocks = [(e["ts"], e["args"]["Addr"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"]
    blocks.sort(key=lambda block: block[0])
    if not blocks:
        raise RuntimeError("the profiler recorded no allocation: this PyTorch build cannot measure memory on CPU")
    live: dict[int, int] = {}
    unseen = set()
    for number, (_, address, size) in enumerate(blocks):
        if size < 0:
            if live.pop(address, None) is None:  # what was there before the recording is not of this candidate
                unseen.add(number)
            continue
        if address in live:
            unseen.add(live[address])
        live[address] = number
    kept = [(time_, size) for number, (time_, _, size) in enumerate(blocks) if number not in unseen]
    [span] = [e for e in events if e.get("name") == "measured updates" and e.get("cat") == "user_annotation"]
    start, end = span["ts"], span["ts"] + span["dur"]
    return max(itertools.accumulate((size for time_, size in kept if start <= time_ < end), initial=0))


def measure(candidates: list[Candidate], warmup: int) -> None:
    """Runs each candidate over its batches, in turns; the first `warmup` batches are not counted."""
    for number in range(len(candidates[0].batches)):
        for candidate in candidates:
            ranks.synchronize()
            began = time.perf_counter()
            candidate.update(candidate.batches[number], number)
            ranks.synchronize()
            if number >= warmup:
                candidate.seconds.append(time.perf_counter() - began)


def figures(candidates: list[Candidate], warmup: int, precision: str) -> list[dict[str, Any]]:
    """A row for each candidate, with ratios to the first one; times of whom ran other batches have no ratio."""
    base, rows = candidates[0], []
    for one in candidates:
        counted = one.batches[warmup:]
        lengths = [batch.attention_mask.sum(1).tolist() for batch in counted]
        windows, tokens = sum(map(len, lengths)), sum(map(sum, lengths))
        seconds = sum(one.seconds)
        rows.append(
            {
                "name": one.name,
                "forwards": one.forwards,
                "extra_parameters": one.extra_parameters,
                "median_update_seconds": statistics.median(one.seconds),
                "time_ratio": None,
                "time_ratio_quartiles": None,
                "samples_per_second": windows / seconds,
                "tokens_per_second": tokens / seconds,
                "padding": 1 - tokens / sum(batch.input_ids.numel() for batch in counted),
                "state_bytes": one.state_bytes,
                "peak_bytes": one.peak_bytes,
                "memory_ratio": one.peak_bytes / base.peak_bytes,
                "activation_ratio": (one.peak_bytes - one.state_bytes) / (base.peak_bytes - base.state_bytes),
            }
        )
        if one.batches is base.batches:
            ratios = [a / b for a, b in zip(one.seconds, base.seconds, strict=True)]
            rows[-1] |= {"time_ratio": statistics.median(ratios)}
            rows[-1] |= {"time_ratio_quartiles": statistics.quantiles(ratios, n=4)[::2]}
        if name := accelerator.product_name():
            peak = peak_flops(name, "fp32" if one.engine is None else precision)
            needed = sum(map(one.flops.of, lengths))
            rows[-1] |= {"flops_per_second": needed / seconds, "utilisation": peak and needed / seconds / peak}
    return rows


def table(rows: list[dict[str, Any]], updates: int, positions: Sequence[int]) -> Table:
    """Each figure of `figures` beside its ratio to the first row's."""
    base = rows[0]["name"]
    title = f"{updates} updates each, in turns; medians; peak memory on {positions[0]} windows of {positions[1]} tokens"
    shown = Table(title=title)
    shown.add_column("", no_wrap=True)
    titles = ["forwards", "extra params", "ms/update", f"x {base}", "quartiles", "samples/s", "tokens/s", "padding"]
    titles += ["state MiB", "peak MiB", f"x {base}", "above state"]
    measured = "utilisation" in rows[0]
    for name in (*titles, "TFLOP/s", "of peak") if measured else titles:
        shown.add_column(name, justify="right")
    for row in rows:
        low, high = row["time_ratio_quartiles"] or (None, None)
        cells = [
            row["name"],
            str(row["forwards"]),
            f"{row['extra_parameters']:,}",
            f"{1000 * row['median_update_seconds']:.1f}",
            "" if low is None else f"{row['time_ratio']:.3f}",
            "" if low is None else f"{low:.2f}-{high:.2f}",
            f"{row['samples_per_second']:.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['padding']:.1%}",
            f"{row['state_bytes'] / 2**20:.0f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            f"{row['memory_ratio']:.3f}",
            f"{row['activation_ratio']:.3f}",
        ]
        if measured:
            share = row["utilisation"]
            cells += [f"{row['flops_per_second'] / 1e12:.1f}", "not known" if share is None else f"{share:.1%}"]
        shown.add_row(*cells)
    return shown


def hardware() -> str:
    return accelerator.product_name() or f"{torch.get_num_threads()} CPU threads"
