"""What an update costs: methods and executions on the same batches, taking turns, in one process.

Time is the wall clock of whole updates (forward, backward, optimizer), measured in turns, so that a machine whose
speed drifts slows all of them alike. Memory is what tensors hold from the moment the model is loaded: weights,
gradients and optimizer state after the first update (`state_bytes`), and the highest point during the next one
(`peak_bytes`); on CPU from the profiler's allocation events, on a GPU from the allocator. What the interpreter and
libraries take is left out: it is the same for all and would hide differences.
"""

import gc
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, record_function

from swep_ds import distributed as ranks
from swep_ds.data.batches import Batch
from swep_ds.evaluation.results import versions


@dataclass
class Contender:
    """One way to train: `update` runs a whole optimizer step on a batch."""

    name: str
    update: Callable[[Batch, int], None]
    state_bytes: int
    peak_bytes: int
    seconds: list[float] = field(default_factory=list)


def engine_update(engine, execution: str) -> Callable[[Batch, int], None]:
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


def contend(name: str, make: Callable[[], Callable[[Batch, int], None]], batch: Batch) -> Contender:
    """Builds a contender and measures its memory on a batch. `make` loads the model and returns its update."""
    gc.collect()  # else what the contender before left would be freed, and subtracted, in this one's account
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        update = make()
        update(batch, 0)
        torch.cuda.synchronize()
        state = torch.cuda.memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        update(batch, 1)
        torch.cuda.synchronize()
        return Contender(name, update, state, torch.cuda.max_memory_allocated() - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        update = make()
        update(batch, 0)
        with record_function("measured update"):
            update(batch, 1)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    allocations = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    [start] = [e["ts"] for e in events if e.get("name") == "measured update" and e.get("cat") == "user_annotation"]
    if not allocations:
        raise RuntimeError("the profiler recorded no allocation: this PyTorch build cannot measure memory on CPU")
    state = sum(size for time_, size in allocations if time_ < start)
    levels = itertools.accumulate((size for time_, size in allocations if time_ >= start), initial=state)
    return Contender(name, update, state, max(levels))


def measure(contenders: list[Contender], batches: list[Batch], warmup: int) -> None:
    """Runs all contenders over the batches in turns; the first `warmup` batches are not counted."""
    for number, batch in enumerate(batches):
        for contender in contenders:
            ranks.synchronize()
            began = time.perf_counter()
            contender.update(batch, number)
            ranks.synchronize()
            if number >= warmup:
                contender.seconds.append(time.perf_counter() - began)


def report(contenders: list[Contender], batches: list[Batch], warmup: int, **about: Any) -> dict[str, Any]:
    """Prints the table, each figure beside its ratio to the first contender, and returns it for JSON."""
    counted = batches[warmup:]
    windows = sum(len(batch.input_ids) for batch in counted)
    tokens = sum(int(batch.attention_mask.sum()) for batch in counted)
    positions = sum(batch.input_ids.numel() for batch in counted)
    base = contenders[0]
    rows = []
    for one in contenders:
        ratios = [a / b for a, b in zip(one.seconds, base.seconds, strict=True)]
        rows.append(
            {
                "name": one.name,
                "median_update_seconds": statistics.median(one.seconds),
                "time_ratio": statistics.median(ratios),
                "time_ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
                "samples_per_second": windows / sum(one.seconds),
                "tokens_per_second": tokens / sum(one.seconds),
                "state_bytes": one.state_bytes,
                "peak_bytes": one.peak_bytes,
                "memory_ratio": one.peak_bytes / base.peak_bytes,
                "activation_ratio": (one.peak_bytes - one.state_bytes) / (base.peak_bytes - base.state_bytes),
            }
        )
    table = Table(title=f"{len(counted)} updates each, in turns; medians; padding {1 - tokens / positions:.1%}")
    table.add_column("")
    for title in (
        "ms/update",
        f"x {base.name}",
        "quartiles",
        "samples/s",
        "state MiB",
        "peak MiB",
        f"x {base.name}",
        "above state",
    ):
        table.add_column(title, justify="right")
    for row in rows:
        low, high = row["time_ratio_quartiles"]
        table.add_row(
            row["name"],
            f"{1000 * row['median_update_seconds']:.1f}",
            f"{row['time_ratio']:.3f}",
            f"{low:.2f}-{high:.2f}",
            f"{row['samples_per_second']:.1f}",
            f"{row['state_bytes'] / 2**20:.0f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            f"{row['memory_ratio']:.3f}",
            f"{row['activation_ratio']:.3f}",
        )
    Console(width=110).print(table)
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"
    return {"hardware": hardware, "versions": versions(), **about, "padding": 1 - tokens / positions, "rows": rows}
