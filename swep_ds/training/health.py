"""What each rank's part of an update takes, and whose stands out.

Notable:
- Collectives make all ranks' updates equally long. A slow rank shows in what it does by itself: waiting for data, and
  the forward passes, which at ZeRO-3 wait for the other ranks' weights and tell nothing.
- On a GPU the passes are timed by events in its stream, which nobody waits for before the update is logged.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median_low
from typing import NamedTuple

from deepspeed.accelerator import get_accelerator

from swep_ds import ranks
from swep_ds.training.tracking import peak_memory_bytes

SLOW = 1.5  # times the (lower) median over ranks
SHARE = 0.1  # of an update that this must make
MIB = 2**20


class Health(NamedTuple):
    """Of one rank, over the updates since the last logged one."""

    step_seconds: float  # an update's, validation and checkpoints left out
    data_seconds: float  # of them, waiting for data
    forward_seconds: float  # the logged update's forward passes
    memory_mib: float  # the peak so far: on the GPU, else of the process
    finite: bool  # whether its own loss is, and its weights where they were looked at


class Stopwatch:
    """This rank's times."""

    def __init__(self):
        self._timed = get_accelerator().Event if ranks.device().type != "cpu" else None
        self.restart()

    def restart(self) -> None:
        """A line was logged, and what came with it is done."""
        self._began, self._updates, self._data = time.perf_counter(), 0, 0.0
        self._forward: list[tuple] = []

    def next_update(self) -> None:
        self._updates += 1
        self._forward.clear()

    @contextmanager
    def data(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._data += time.perf_counter() - began

    @contextmanager
    def forward(self) -> Iterator[None]:
        began = self._mark()
        yield
        self._forward.append((began, self._mark()))

    def _mark(self):
        if self._timed is None:
            return time.perf_counter()
        event = self._timed(enable_timing=True)
        event.record()
        return event

    def read(self) -> list[float]:
        """As `Health` begins, to be gathered from all ranks."""
        if self._timed is None:
            forward = sum(after - before for before, after in self._forward)
        else:
            self._forward[-1][1].synchronize()
            forward = sum(before.elapsed_time(after) for before, after in self._forward) / 1000
        step = (time.perf_counter() - self._began) / self._updates
        return [step, self._data / self._updates, forward, peak_memory_bytes() / MIB]


def columns(everyone: Sequence[Health]) -> dict[str, list]:
    """A line of health.jsonl: a list over ranks for each number, and the ranks whose loss is not finite."""
    numbers = {
        name: [float(f"{getattr(one, name):.4g}") for one in everyone] for name in Health._fields if name != "finite"
    }
    return numbers | {"not_finite": [rank for rank, one in enumerate(everyone) if not one.finite]}


class Outliers:
    """Who stands out by two logged updates in a row, told once.

    Args:
        forward: whether the forward passes are a rank's own.
    """

    def __init__(self, *, forward: bool):
        self._looked_at = {"waits for data": "data_seconds"}
        if forward:
            self._looked_at["is slow in its forward passes"] = "forward_seconds"
        self._before: set[tuple[int, str]] = set()
        self._told: set[tuple[int, str]] = set()

    def news(self, everyone: Sequence[Health]) -> list[str]:
        found = {}
        update = median_low(one.step_seconds for one in everyone)
        for how, name in self._looked_at.items():
            usual = median_low(getattr(one, name) for one in everyone)
            for rank, one in enumerate(everyone):
                seconds = getattr(one, name)
                if seconds > SLOW * usual and seconds - usual > SHARE * update:
                    where = f"rank {rank} ({ranks.host(rank)})"
                    found[rank, how] = f"{where} {how}: {seconds:.3g} s an update, others {usual:.3g} s"
        fresh = (found.keys() & self._before) - self._told
        self._before, self._told = set(found), self._told | fresh
        return [found[key] for key in sorted(fresh)]
