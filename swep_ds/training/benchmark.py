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

WIDTH = 150  # of the printed table


@dataclass
class Contender:
    """One way to train: `update` runs a whole optimizer step on a batch.

    passes: of the method's list. forwards: of the model in an update, those inside a perturbation among them.
    extra_parameters: the method's own, beside the model's.
    """

    name: str
    passes: int
    forwards: int
    extra_parameters: int
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


def contend(name: str, make: Callable[[], Any], execution: str, batch: Batch) -> Contender:
    """Builds a contender and measures its memory on a batch. `make` loads the model and returns its engine."""

    def build() -> tuple[Any, Callable[[Batch, int], None]]:
        engine = make()
        engine.train()
        return engine, engine_update(engine, execution)

    gc.collect()  # else what the contender before left would be freed, and subtracted, in this one's account
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        engine, update = build()
        update(batch, 0)
        torch.cuda.synchronize()
        state = torch.cuda.memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        update(batch, 1)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            engine, update = build()
            update(batch, 0)
            with record_function("measured updates"):
                for number in range(1, 4):
                    update(batch, number)
            update(batch, 4)
        state, peak = _recorded_bytes(recorded)
    method = engine.module.method
    return Contender(
        name,
        passes=len(method.passes(0.0)),
        forwards=_forwards(engine, lambda: update(batch, 5)),
        extra_parameters=sum(getattr(p, "ds_numel", p.numel()) for p in method.parameters()),  # ZeRO-3 partitions them
        update=update,
        state_bytes=state,
        peak_bytes=peak,
    )


def _recorded_bytes(recorded: profile) -> tuple[int, int]:
    """What tensors hold before the measured updates, and at most during them.

    Now and then gloo's thread is the last to hold the bucket of a reduction, and the profiler does not see it freed.
    That shows in the next update at the latest, when its address is given out again. Such a block is left out
    altogether: its likes in the other updates count.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    blocks = [(e["ts"], e["args"]["Addr"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"]
    blocks.sort(key=lambda block: block[0])
    if not blocks:
        raise RuntimeError("the profiler recorded no allocation: this PyTorch build cannot measure memory on CPU")
    live: dict[int, int] = {}
    unseen = set()
    for number, (_, address, size) in enumerate(blocks):
        if size < 0:
            live.pop(address, None)
            continue
        if address in live:
            unseen.add(live[address])
        live[address] = number
    kept = [(time_, size) for number, (time_, _, size) in enumerate(blocks) if number not in unseen]
    [span] = [e for e in events if e.get("name") == "measured updates" and e.get("cat") == "user_annotation"]
    start, end = span["ts"], span["ts"] + span["dur"]
    state = sum(size for time_, size in kept if time_ < start)
    return state, max(itertools.accumulate((size for time_, size in kept if start <= time_ < end), initial=state))


def _forwards(engine, update: Callable[[], None]) -> int:
    """How often an update runs the model forward."""
    calls = []
    hook = engine.module.qa.register_forward_hook(lambda *_: calls.append(1))
    update()
    hook.remove()
    return len(calls)


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
                "passes": one.passes,
                "forwards": one.forwards,
                "extra_parameters": one.extra_parameters,
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
    table.add_column("", no_wrap=True)
    for title in (
        "passes",
        "forwards",
        "extra params",
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
            str(row["passes"]),
            str(row["forwards"]),
            f"{row['extra_parameters']:,}",
            f"{1000 * row['median_update_seconds']:.1f}",
            f"{row['time_ratio']:.3f}",
            f"{low:.2f}-{high:.2f}",
            f"{row['samples_per_second']:.1f}",
            f"{row['state_bytes'] / 2**20:.0f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            f"{row['memory_ratio']:.3f}",
            f"{row['activation_ratio']:.3f}",
        )
    Console(width=WIDTH).print(table)
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"
    return {"hardware": hardware, "versions": versions(), **about, "padding": 1 - tokens / positions, "rows": rows}
