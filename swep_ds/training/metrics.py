"""A rank's clock, memory and sums of losses. Collectives make all ranks' updates equally long: a slow rank shows in its
data and, below ZeRO-3, its forward passes."""

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deepspeed.accelerator import get_accelerator
from torch import Tensor

from swep_ds import ranks
from swep_ds.ranks import accelerator

# of each rank, for health.jsonl: seconds per update without validation and checkpoints, seconds per update of waiting
# for data, seconds of the logged update's forward passes (of all passes where CUDA graphs run them), peak memory so far
NUMBERS = ("step_seconds", "data_seconds", "forward_seconds", "memory_mib")


class Stopwatch:
    """Times this rank's updates, and reports each phase to the heartbeat. `seconds`: what earlier starts took."""

    def __init__(self, seconds: float = 0.0):
        self._event = None
        if ranks.device().type != "cpu":
            self._event = get_accelerator().Event
        self._forward: list[tuple] = []
        self._updates = 0  # since the last one that was read
        self.started = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        """Seconds of the whole run so far, over all its starts, from `started` on."""
        return time.perf_counter() - self.started

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
        """On a GPU an event in its stream, for which nothing waits before the update is logged."""
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


def add_up(sums: dict[str, tuple[Tensor, int]], micro_batches: Sequence[dict[str, Tensor]]) -> None:
    """Adds the statistics of micro-batches to their sums by name, kept on the device, and counts the micro-batches."""
    for statistics in micro_batches:
        for name, value in statistics.items():
            before, count = sums.get(name, (0, 0))
            sums[name] = (before + value.double(), count + 1)
