"""All that a run measures while it trains, from its clock to the log."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from swep_ds import ranks
from swep_ds.data.batches import TrainingBatches
from swep_ds.evaluation.results import Score
from swep_ds.training.checkpoint_files import TrainState
from swep_ds.training.engine import Engine
from swep_ds.training.metrics import Meter, Stopwatch, check_finite, first_not_finite
from swep_ds.training.settings import TrainSection
from swep_ds.training.tracking import Tracker


class Instruments:
    """For every update `begin` and `add`; for one that is logged or saved `report`.

    Args:
        before: the state that the run continues from.
    """

    def __init__(
        self, engine: Engine, batches: TrainingBatches, settings: TrainSection, tracker: Tracker, before: TrainState
    ):
        self.watch = Stopwatch(before.seconds)
        self._engine = engine
        self._tracker = tracker
        self._updates = batches.updates
        self._meter = Meter(batches.accumulation, before.unlogged)
        self._norms: dict[int, Tensor | float] = {}  # by update, on the device: keeping one waits for nothing
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
        self._meter.add(statistics)

    def report(
        self, state: TrainState, logs: bool, saves: bool, validate: Callable[[], Score] | None
    ) -> tuple[TrainState, Score | None]:
        """Reads all ranks' numbers, checks them, validates and logs. Collective.

        Returns:
            The state with the run's seconds so far, of which validation is not a part; and the score.

        Raises:
            TrainingDiverged: on all ranks; the loss or a gradient is not finite, or a weight that is to be saved.
        """
        self._read(logs, saves)
        state = replace(state, seconds=self.watch.seconds)
        score = None
        if validate:
            with self.watch.paused():
                score = validate()
        if logs:
            self._log(state, score)
        return state, score

    def _read(self, logs: bool, saves: bool) -> None:
        is_finite = not saves or self._engine.has_finite_weights()
        means, health = self._meter.read(self.watch.read(), is_finite)
        means |= {"learning_rate": self._rate} | self._engine.read()
        if logs:
            self._tracker.log_health(self._update, health)
        check_finite(self._update, means, health["not_finite"], first_not_finite(self._norms))
        self._norms.clear()
        # JSON has no infinity, which is the norm of an update that fp16 skipped
        self._means = {name: mean for name, mean in means.items() if not name.endswith("norm") or math.isfinite(mean)}
        ranks.synchronize()

    def _log(self, state: TrainState, score: Score | None) -> None:
        """Writes what was read as a line of metrics.jsonl, and begins new means."""
        means = dict(self._means)
        if score is not None:
            means["validation_exact_match"] = score["exact_match"]
            means["validation_f1"] = score["f1"]
        remark = self._engine.module.method.remark(means, self._update / self._updates)
        self._tracker.log(state, means, remark)
        self._meter.empty()

    def unlogged(self) -> dict[str, Any]:
        """What no line has yet, for a run that resumes here. Collective."""
        return self._meter.state()
