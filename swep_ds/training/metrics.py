"""What a run measures about its updates: mean losses, and each rank's health.

Collectives make all ranks' updates equally long. A slow rank shows where it waits for no other: in its data, and in its
forward passes, but not at ZeRO-3, where these wait for the other ranks' weights. On a GPU forward passes are timed by
events in its stream; nothing waits for them before the update is logged.
"""

import math
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.errors import TrainingDiverged
from swep_ds.ranks import accelerator
from swep_ds.ranks.heartbeat import ranks_of

# of each rank, for health.jsonl: seconds per update without validation and checkpoints, seconds per update of waiting
# for data, seconds of the logged update's forward passes, peak memory so far
NUMBERS = ("step_seconds", "data_seconds", "forward_seconds", "memory_mib")
DIVERGED = "lower train.learning_rate, raise train.warmup_fraction, or avoid fp16; earlier checkpoints stay"


class Stopwatch:
    """Times this rank's updates, and reports each phase to the heartbeat. `seconds`: what earlier starts took."""

    def __init__(self, seconds: float = 0.0):
        self._event = None
        if ranks.device().type != "cpu":
            self._event = get_accelerator().Event
        self._forward: list[tuple] = []
        self._updates = 0  # since the last one that was read
        self._started = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        """Seconds of the whole run so far, over all its starts."""
        return time.perf_counter() - self._started

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside is not part of the run's seconds."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def next_update(self, number: int) -> None:
        if self._updates == 0:
            self._began = time.perf_counter()
            self._data = 0.0
        self._number = number
        self._updates += 1
        self._forward.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase of the update, which other ranks see; "data" and "forward" are timed."""
        ranks.progress(f"update {self._number}, {name}")
        began = self._mark() if name == "forward" else time.perf_counter()
        yield
        if name == "forward":
            self._forward.append((began, self._mark()))
        elif name == "data":
            self._data += time.perf_counter() - began

    def _mark(self):
        if self._event is None:
            return time.perf_counter()
        event = self._event(enable_timing=True)
        event.record()
        return event

    def read(self) -> list[float]:
        """This rank's `NUMBERS` of the updates since the last one that was read."""
        if self._event is None:
            forward = sum(after - before for before, after in self._forward)
        else:
            self._forward[-1][1].synchronize()
            forward = sum(before.elapsed_time(after) for before, after in self._forward) / 1000
        step = (time.perf_counter() - self._began) / self._updates
        data = self._data / self._updates
        self._updates = 0
        return [step, data, forward, peak_memory_bytes() / 2**20]


def peak_memory_bytes() -> int:
    """Peak memory so far: allocated on the GPU where there is one, else resident in the process."""
    if accelerator.on_gpu():
        return get_accelerator().max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Meter:
    """Means of weighted statistics since the last logged line, over ranks; kept on the device until they are read.

    Args:
        accumulation: micro-batches per update.
        state: from `Meter.state`, where the run was stopped between two lines.
    """

    def __init__(self, accumulation: int, state: dict[str, Any]):
        self.accumulation = accumulation
        self.empty()
        if state:
            scale = accumulation / state["accumulation"]
            for name, sums in state["sums"].items():
                mine = sum(sums) / len(sums)
                if len(sums) == ranks.world_size():
                    mine = sums[ranks.rank()]
                self.sums[name] = torch.tensor(mine * scale, dtype=torch.double, device=ranks.device())
                self.counts[name] = state["counts"][name] * scale

    def empty(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, float] = {}

    def add(self, micro_batches: Sequence[dict[str, Tensor]]) -> None:
        """Adds the statistics of micro-batches: scalars by name."""
        for statistics in micro_batches:
            for name, value in statistics.items():
                self.sums[name] = self.sums.get(name, 0) + value.double()
                self.counts[name] = self.counts.get(name, 0) + 1

    def read(self, numbers: Sequence[float], weights_finite: bool) -> tuple[dict[str, float], dict[str, list]]:
        """The means, and a line of health.jsonl: lists over the ranks of their `NUMBERS` (`Stopwatch.read`), and the
        ranks whose loss or weights are not finite. Collective."""
        sums, more = self._gather([*numbers, weights_finite])
        means = {name: sum(column) / ranks.world_size() / self.counts[name] for name, column in sums.items()}
        health = {name: [float(f"{row[k]:.4g}") for row in more] for k, name in enumerate(NUMBERS)}
        is_finite = [row[-1] > 0 and math.isfinite(loss) for row, loss in zip(more, sums["loss"], strict=True)]
        health["not_finite"] = [rank for rank, finite in enumerate(is_finite) if not finite]
        return means, health

    def state(self) -> dict[str, Any]:
        """Every rank's sums, for the meter of a resumed run; {} if the meter is empty. Collective."""
        if not self.sums:
            return {}
        return {"accumulation": self.accumulation, "counts": self.counts, "sums": self._gather([])[0]}

    def _gather(self, more: Sequence[float]) -> tuple[dict[str, list[float]], list[list[float]]]:
        """All ranks' sums by name, and all ranks' `more`."""
        names = sorted(self.sums)
        sums = torch.stack([self.sums[name] for name in names])
        mine = torch.cat([sums, sums.new_tensor(more)])
        gathered = mine.new_empty(ranks.world_size() * len(mine))
        dist.all_gather_into_tensor(gathered, mine)
        rows = gathered.view(-1, len(mine)).tolist()
        return {name: [row[k] for row in rows] for k, name in enumerate(names)}, [row[len(names) :] for row in rows]


def first_not_finite(norms: Mapping[int, Tensor | float]) -> int | None:
    """The first update whose gradient norm, on the device, is not finite."""
    if not norms:
        return None
    values = [torch.as_tensor(norm, dtype=torch.float, device=ranks.device()) for norm in norms.values()]
    finite = torch.stack(values).isfinite().tolist()
    return next((update for update, is_finite in zip(norms, finite, strict=True) if not is_finite), None)


def check_finite(update: int, means: dict[str, float], faulty: Sequence[int], gradient: int | None) -> None:
    """Raises TrainingDiverged if a number of the logged `update` or since the one before is not finite: the loss or
    weights of the `faulty` ranks, or the gradient, first in update `gradient` (`first_not_finite`)."""
    if math.isfinite(means["loss"]) and not faulty and gradient is None:
        return
    where = ""
    if gradient is not None:
        where += f", the gradient not finite first in update {gradient}"
    if 0 < len(faulty) < ranks.world_size():
        where += f", not finite on {ranks_of(faulty)}, host {ranks.host(faulty[0])}"
    raise TrainingDiverged(
        f"loss, gradient or weights are not finite numbers by update {update} (loss {means['loss']}, gradient norm "
        f"{means.get('grad_norm', 'not known')}{where}): {DIVERGED}"
    )
