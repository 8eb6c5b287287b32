"""Where the time of the training loop goes: the loop itself runs on a real engine, whose calls are timed.

Collectives count as `reduce` wherever they happen (also the gathering of weights at ZeRO-3, and of updated weights at
ZeRO-1 and 2), are not part of forward, backward and optimizer, and are waited for one by one. `data` is the wait for
data; `loop` is the rest. On a GPU the times are those of its stream, between events that it need not wait for.
"""

import io
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator
from rich.table import Table

from swep_ds import ranks
from swep_ds.common.console import Console, Progress
from swep_ds.cost.traffic import Traffic, watch_traffic
from swep_ds.data.batches import TrainingBatches
from swep_ds.pipeline.recipe import Recipe
from swep_ds.training.average import WeightAverage
from swep_ds.training.checkpoints import TrainState
from swep_ds.training.loop import train
from swep_ds.training.tracking import Tracker

PARTS = ("data", "forward", "backward", "reduce", "optimizer", "loop")


def break_down(engine, batches: TrainingBatches, recipe: Recipe, updates: int) -> dict[str, Any]:
    """Trains for 1 + `updates` updates, of which the first does not count.

    Returns:
        Seconds and samples per second of whole updates; `shares` of PARTS, on this rank; bytes and calls of the
        collectives per update, by name (`Traffic`).
    """
    batches = copy(batches)
    batches.updates = 1 + updates
    with tempfile.TemporaryDirectory() as temporary, watch_traffic() as traffic:
        timed = _TimedEngine(engine, traffic)
        with _DataTimer(
            recipe.tracking,
            recipe.method.name,
            {},
            Path(temporary),
            batches.updates,
            TrainState(),
            active=ranks.is_main(),
        ) as tracker:
            average = WeightAverage.of(engine, recipe.train, batches.updates)
            train(timed, batches, recipe.train, _NoCheckpoints(), tracker, TrainState(), None, average)
    ranks.synchronize()
    calls_per_update = len(timed.calls) // batches.updates
    first, counted = timed.calls[calls_per_update - 1], timed.calls[calls_per_update:]
    total = _seconds(first.end, counted[-1].end)
    parts: Counter[str] = Counter()
    for call in counted:
        parts[call.name] += _seconds(call.begin, call.end) - call.collectives
        parts["reduce"] += call.collectives
    rest = total - parts.total()
    parts["data"] = min(rest, tracker.data_seconds)  # a GPU may be busy during the wait
    parts["loop"] = rest - parts["data"]
    windows = sum(len(batches.windows(update)) for update in range(1, batches.updates))
    sizes, calls = traffic.bytes - first.bytes, traffic.calls - first.calls
    return {
        "updates": updates,
        "update_seconds": total / updates,
        "samples_per_second": windows / total,
        "shares": {name: parts[name] / total for name in PARTS},
        "collective_bytes": {name: size / updates for name, size in sizes.items()},
        "collective_calls": {name: number / updates for name, number in calls.items()},
    }


def table(rows: dict[str, dict[str, Any]]) -> Table:
    """A row for each candidate: what `break_down` returned."""
    shown = Table(title=f"the training loop, {ranks.world_size()} rank(s): share of the time")
    shown.add_column("", no_wrap=True)
    for name in ("ms/update", "samples/s", *PARTS, "MB in collectives"):
        shown.add_column(name, justify="right")
    for name, row in rows.items():
        shares = [f"{row['shares'][part]:.2%}" for part in PARTS]
        size = sum(row["collective_bytes"].values()) / 1e6 if ranks.world_size() > 1 else 0.0
        times = f"{1000 * row['update_seconds']:.1f}", f"{row['samples_per_second']:.1f}"
        shown.add_row(name, *times, *shares, f"{size:,.1f}")
    return shown


class _Call:
    """A call of the engine: when it began and ended, seconds of its collectives, and `Traffic` at its end."""

    def __init__(self, name: str, traffic: Traffic):
        self.name, self.begin, self.collectives = name, _mark(), -traffic.seconds

    def finish(self, traffic: Traffic) -> None:
        self.end = _mark()
        self.collectives += traffic.seconds
        self.bytes, self.calls = traffic.bytes.copy(), traffic.calls.copy()


class _TimedEngine:
    """An engine whose forwards, backwards and steps are timed."""

    def __init__(self, engine, traffic: Traffic):
        self._engine, self._traffic = engine, traffic
        self.calls: list[_Call] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __call__(self, *args, **kwargs) -> Any:
        with self._time("forward"):
            return self._engine(*args, **kwargs)

    def backward(self, loss) -> None:
        with self._time("backward"):
            self._engine.backward(loss)

    def step(self) -> None:
        with self._time("optimizer"):
            self._engine.step()

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        reduction = self._engine.coalesce_grad_reduction()
        reduction.__enter__()
        yield
        with self._time("backward"):
            reduction.__exit__(None, None, None)

    @contextmanager
    def _time(self, name: str) -> Iterator[None]:
        call = _Call(name, self._traffic)
        yield
        call.finish(self._traffic)
        self.calls.append(call)


class _DataTimer(Tracker):
    """Writes and formats what a run would, and sums up the loop's wait for data after the first update."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.data_seconds, self._last = 0.0, 1
        if self.active:
            self.console = Console(file=io.StringIO())
            self.progress = Progress(self.console, "updates", self.updates)

    def log_health(self, update: int, line: dict[str, Any], remarks) -> None:
        super().log_health(update, line, remarks)
        self.data_seconds += line["data_seconds"][ranks.rank()] * (update - self._last)
        self._last = update


class _NoCheckpoints:
    """Takes the place of the checkpoints, and saves none."""

    def save(self, *_) -> bool:
        return False


def _mark():
    if ranks.device().type == "cpu":
        return time.perf_counter()
    event = get_accelerator().Event(enable_timing=True)
    event.record()
    return event


def _seconds(begin, end) -> float:
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1000
