"""All that a run measures while it trains: mean losses, gradient norms and each rank's health, up to the log."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.errors import TrainingDiverged
from swep_ds.data.batches import TrainingBatches
from swep_ds.evaluation.results import Score
from swep_ds.training.checkpoint_files import TrainState
from swep_ds.training.engine import Engine
from swep_ds.training.metrics import NUMBERS, Stopwatch, add_up
from swep_ds.training.settings import TrainSection
from swep_ds.training.tracking import Tracker


class Instruments:
    """For every update `begin` and `add`; for one that is logged or saved `report`. Statistics and norms stay on the
    device until then: keeping one waits for nothing."""

    def __init__(
        self, engine: Engine, batches: TrainingBatches, settings: TrainSection, tracker: Tracker, before: TrainState
    ):
        self.watch = Stopwatch(before.seconds)
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

        Returns the state with the run's seconds so far, of which validation is not a part; and the score. Raises
        TrainingDiverged on all ranks: the loss or a gradient is not finite, or a weight that is to be saved.
        """
        means = self._read(saves)
        ranks.synchronize()
        state = replace(state, seconds=self.watch.seconds)
        score = None
        if validate:
            score = validate()
            self.watch.started += self.watch.seconds - state.seconds
            means["validation_exact_match"] = score["exact_match"]
            means["validation_f1"] = score["f1"]
        self._tracker.log(state, means, self._engine.module.method.remark(means, self._update / self._updates))
        return state, score

    def _read(self, saves: bool) -> dict[str, float]:
        """The means over all ranks since the last line, and the numbers of this update."""
        is_finite = not saves or self._engine.has_finite_weights()
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name][0] for name in names])
        mine = torch.cat([sums, sums.new_tensor([*self.watch.read(), is_finite])])
        gathered = mine.new_empty(ranks.world_size() * len(mine))
        dist.all_gather_into_tensor(gathered, mine)
        columns = gathered.view(-1, len(mine)).T.tolist()  # of each number its values by rank
        by_name = dict(zip([*names, *NUMBERS, "finite"], columns, strict=True))
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
        return {name: mean for name, mean in means.items() if not name.endswith("norm") or math.isfinite(mean)}

    def _first_overflow(self) -> str:
        """Names the first update since the last line whose gradient is not finite; "" if there is none."""
        if not self._norms:
            return ""
        norms = [torch.as_tensor(norm, dtype=torch.float, device=ranks.device()) for norm in self._norms.values()]
        finite = torch.stack(norms).isfinite().tolist()
        if all(finite):
            return ""
        return f", the gradient not finite first in update {list(self._norms)[finite.index(False)]}"
