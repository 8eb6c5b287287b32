"""Where the time of the training loop goes: the loop itself on a real engine, whose calls are timed.

Forward and backward are without the collectives in them, which count as `reduce` wherever they happen (the gathering
of weights at ZeRO-3 and of updated weights at ZeRO-1 and 2, too) and are waited for one by one. What is left, beside
the wait for data, is the loop's own. On a GPU the parts are those of its stream, between events that nobody waits for.
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
from swep_ds.benchmarks.traffic import Traffic, watch_traffic
from swep_ds.console import Console, Progress
from swep_ds.data.batches import TrainingBatches
from swep_ds.recipe import Recipe
from swep_ds.training.checkpoints import TrainState
from swep_ds.training.loop import train
from swep_ds.training.tracking import Tracker

PARTS = ("data", "forward", "backward", "reduce", "optimizer", "loop")


def break_down(engine, batches: TrainingBatches, recipe: Recipe, updates: int) -> dict[str, Any]:
    """Trains for 1 + `updates` updates; all but the first count.

    Returns:
        seconds and samples per second of whole updates; `shares` of PARTS, on this rank; bytes and calls of the
        collectives an update, by name (`Traffic`).
    """
    own = copy(batches)
    own.updates = 1 + updates
    with tempfile.TemporaryDirectory() as folder, watch_traffic() as traffic:
        timed = _Timed(engine, traffic)
        with _Heard(recipe, Path(folder), own.updates, TrainState(), active=ranks.is_main()) as tracker:
            train(timed, own, recipe.train, _Unkept(), tracker, TrainState(), None)
    ranks.synchronize()
    calls = len(timed.calls) // own.updates  # of an update
    first, counted = timed.calls[:calls], timed.calls[calls:]
    began = first[-1].end
    whole = _seconds(began, counted[-1].end)
    parts: Counter[str] = Counter()
    for call in counted:
        parts[call.name] += _seconds(call.begin, call.end) - call.collectives
        parts["reduce"] += call.collectives
    rest = whole - parts.total()
    parts["data"] = min(rest, tracker.data_seconds)  # on a GPU the device may be busy meanwhile
    parts["loop"] = rest - parts["data"]
    windows = sum(len(own.windows(update)) for update in range(1, own.updates))
    sent = {name: (size - first[-1].bytes[name]) / updates for name, size in traffic.bytes.items()}
    made = {name: (number - first[-1].numbers[name]) / updates for name, number in traffic.calls.items()}
    return {
        "updates": updates,
        "update_seconds": whole / updates,
        "samples_per_second": windows / whole,
        "shares": {name: parts[name] / whole for name in PARTS},
        "collective_bytes": {name: size for name, size in sent.items() if size},
        "collective_calls": {name: number for name, number in made.items() if number},
    }


def table(rows: dict[str, dict[str, Any]]) -> Table:
    """Of what `break_down` returned, by candidate."""
    title = f"the training loop, {ranks.world_size()} rank(s): share of the time"
    shown = Table(title=title)
    shown.add_column("", no_wrap=True)
    for name in ("ms/update", "samples/s", *PARTS, "MB in collectives"):
        shown.add_column(name, justify="right")
    for name, row in rows.items():
        shares = [f"{row['shares'][part]:.2%}" for part in PARTS]
        size = sum(row["collective_bytes"].values()) / 1e6 if ranks.world_size() > 1 else 0.0
        shown.add_row(
            name, f"{1000 * row['update_seconds']:.1f}", f"{row['samples_per_second']:.1f}", *shares, f"{size:,.1f}"
        )
    return shown


class _Call:
    """Of an engine: when it began and ended, seconds of collectives in it, and `Traffic` when it ended."""

    def __init__(self, name: str, traffic: Traffic):
        self.name, self.begin, self.collectives = name, _mark(), -traffic.seconds

    def ended(self, traffic: Traffic) -> None:
        self.end = _mark()
        self.collectives += traffic.seconds
        self.bytes, self.numbers = traffic.bytes.copy(), traffic.calls.copy()


class _Timed:
    """An engine whose forwards, backwards and steps are timed."""

    def __init__(self, engine, traffic: Traffic):
        self._engine, self._traffic = engine, traffic
        self.calls: list[_Call] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __call__(self, *args, **kwargs) -> Any:
        with self._part("forward"):
            return self._engine(*args, **kwargs)

    def backward(self, loss) -> None:
        with self._part("backward"):
            self._engine.backward(loss)

    def step(self) -> None:
        with self._part("optimizer"):
            self._engine.step()

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        call = _Call(name, self._traffic)
        yield
        call.ended(self._traffic)
        self.calls.append(call)


class _Heard(Tracker):
    """Writes and formats what a run would, and notes how long the loop waited for data after the first update."""

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


class _Unkept:
    """In place of the checkpoints, of which none is wanted."""

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
