"""All that a run measures while it trains: mean losses, gradient norms and each rank's health, up to the log.

Collectives make all ranks' updates equally long: a slow rank shows in its data and, below ZeRO-3, its forward passes.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.errors import TrainingDiverged
from swep_ds.data.batches import TrainingBatches
from swep_ds.evaluation.results import Score
from swep_ds.methods.objective import NO_NOISE
from swep_ds.ranks import accelerator
from swep_ds.training.checkpoint_files import TrainState
from swep_ds.training.engine import Engine
from swep_ds.training.settings import TrainSection
from swep_ds.training.tracking import Tracker

# each rank's, for health.jsonl: seconds per update without validation and checkpoints, seconds per update of waiting
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
        return [step, data, forward, accelerator.peak_memory_bytes() / 2**20]


class Instruments:
    """For every update `begin` and `add`; for one that is logged or saved `report`. Statistics and norms stay on the
    device until then: keeping one waits for nothing."""

    def __init__(
        self, engine: Engine, batches: TrainingBatches, settings: TrainSection, tracker: Tracker, before: TrainState
    ):
        self.watch = Stopwatch(before.seconds)
        self._clock = time.process_time if ranks.device().type == "cpu" else time.perf_counter  # what a rank costs
        self._began = self._clock()
        self._before = before
        self._engine = engine
        self._tracker = tracker
        self._updates = batches.updates
        self._sums: dict[str, tuple[Tensor, int]] = {}  # since the last line, as in `add_up`
        self._norms: dict[int, Tensor | float] = {}  # by update
        self._skips_overflow = settings.precision == "fp16"  # an infinite norm is then no fault

    def begin(self, update: int) -> None:
        """Begins the update with this number, from 1."""
        self._update = update
        self._rate = self._engine.learning_rate  # the engine's step moves on to the next update's
        self.watch.next_update(update)

    def add(self, statistics: Sequence[dict[str, Tensor]]) -> None:
        """Adds the statistics of the update's micro-batches."""
        norm = self._engine.grad_norm
        if norm is not None and not self._skips_overflow:
            self._norms[self._update] = norm
        add_up(self._sums, statistics)

    def report(
        self, state: TrainState, saves: bool, validate: Callable[[], Score] | None
    ) -> tuple[TrainState, Score | None]:
        """Reads all ranks' numbers, checks them, validates, and writes a line of metrics and one of health. Collective.

        Returns the state with the run's seconds so far, of which validation is no part; and the score. Raises
        TrainingDiverged on all ranks: the loss or a gradient is not finite, or a weight that is to be saved.
        """
        means, cost = self._read(saves)
        ranks.synchronize()
        state = replace(state, seconds=self.watch.seconds, compute_seconds=self._before.compute_seconds + cost)
        score = None
        if validate:
            began = self._clock()
            score = validate()
            self._began += self._clock() - began
            self.watch.started += self.watch.seconds - state.seconds
            means["validation_exact_match"] = score["exact_match"]
            means["validation_f1"] = score["f1"]
        remark = self._engine.module.method.remark(means, self._update / self._updates)
        if means.pop("unperturbed", 0) == 1:
            remark = NO_NOISE
        self._tracker.log(state, means, remark)
        return state, score

    def _read(self, saves: bool) -> tuple[dict[str, float], float]:
        """The means over all ranks since the last line and the numbers of this update; the cost of this start."""
        is_finite = not saves or self._engine.has_finite_weights()
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name][0] for name in names])
        cost = self._clock() - self._began
        mine = torch.cat([sums, sums.new_tensor([*self.watch.read(), cost, is_finite])])
        gathered = mine.new_empty(ranks.world_size() * len(mine))
        dist.all_gather_into_tensor(gathered, mine)
        columns = gathered.view(-1, len(mine)).T.tolist()  # each number's values by rank
        by_name = dict(zip([*names, *NUMBERS, "cost", "finite"], columns, strict=True))
        means = {name: sum(by_name[name]) / ranks.world_size() / self._sums[name][1] for name in names}
        for name in means.keys() & {"sigma_spread", "mu_spread"}:
            means[name] = math.sqrt(means[name])  # so far a mean square: `noise_statistics`
        means |= {"learning_rate": self._rate} | self._engine.read()
        health = {name: [float(f"{value:.4g}") for value in by_name[name]] for name in NUMBERS}
        losses = zip(by_name["loss"], by_name["finite"], strict=True)
        faulty = [rank for rank, (loss, finite) in enumerate(losses) if not (finite and math.isfinite(loss))]
        self._tracker.log_health(self._update, {**health, "not_finite": faulty})
        where = self._first_overflow()
        if 0 < len(faulty) < ranks.world_size():
            where += f", not finite on rank {faulty[0]}, host {ranks.host(faulty[0])}"
        if where or faulty:
            raise TrainingDiverged(
                f"loss, gradient or weights are not finite numbers by update {self._update} (loss {means['loss']}, "
                f"gradient norm {means.get('grad_norm', 'not known')}{where}): lower train.learning_rate, raise "
                "train.warmup_fraction, or avoid fp16; earlier checkpoints stay"
            )
        self._norms.clear()
        self._sums.clear()
        # JSON has no infinity, which is the norm of an update that fp16 skipped
        means = {name: mean for name, mean in means.items() if not name.endswith("norm") or math.isfinite(mean)}
        return means, sum(by_name["cost"])

    def _first_overflow(self) -> str:
        """Names the first update since the last line whose gradient is not finite; "" if there is none."""
        norms = [torch.as_tensor(norm, dtype=torch.float, device=ranks.device()) for norm in self._norms.values()]
        if not norms:
            return ""
        finite = torch.stack(norms).isfinite().tolist()  # a single wait for the device
        for update, is_finite in zip(self._norms, finite, strict=True):
            if not is_finite:
                return f", the gradient not finite first in update {update}"
        return ""


def add_up(sums: dict[str, tuple[Tensor, int]], micro_batches: Sequence[dict[str, Tensor]]) -> None:
    """Adds the statistics of micro-batches to their sums by name, kept on the device, and counts the micro-batches."""
    for statistics in micro_batches:
        for name, value in statistics.items():
            before, count = sums.get(name, (0, 0))
            sums[name] = (before + value.double(), count + 1)
