"""The loop: for each pass a forward and a backward, one step at the end of an update."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from signal import Signals
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from swep_ds import ranks
from swep_ds.data.batches import TrainingBatches
from swep_ds.errors import Stopped, TrainingDiverged
from swep_ds.evaluation.results import Score
from swep_ds.ranks.launch import note_checkpoint
from swep_ds.ranks.signals import RESUMES, request
from swep_ds.ranks.stalls import ranks_of
from swep_ds.ranks.vote import stop_vote
from swep_ds.recipe import TrainSection
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.health import Health, Outliers, Stopwatch, columns
from swep_ds.training.prefetch import prefetch
from swep_ds.training.tracking import Tracker

DIVERGED = (
    "lower train.learning_rate or method.beta, raise train.warmup_fraction, or use bf16 or fp32 in place of fp16; "
    "earlier checkpoints stay"
)


def train(
    engine,
    batches: TrainingBatches,
    settings: TrainSection,
    checkpoints: Checkpoints,
    tracker: Tracker,
    before: TrainState,
    validate: Callable[[], Score] | None,
) -> TrainState:
    """Trains from where the run stands to the end of `batches`, logging and saving on the way.

    `validate` scores the engine, in evaluation mode, before each save that the settings ask for; what it takes is not
    part of the run's seconds.

    Raises:
        TrainingDiverged: loss or gradient not finite, noticed when next logged or before being saved; on all ranks.
        InputError: of `StopVote`.
        Stopped: a signal asked any rank to stop; on all ranks, after a checkpoint.
        WriteFailed: of `Checkpoints.save`.
    """
    objective, device = engine.module, ranks.device()
    micro_steps = objective.micro_steps(settings.execution)
    parts = [None] if settings.execution == "joint" else range(micro_steps)
    ahead = prefetch(batches, before.updates * batches.accumulation, device)
    meter, watch = Meter(batches.accumulation, before.unlogged), Stopwatch()
    outliers = Outliers(forward=engine.zero_optimization_stage() < 3)
    engine.train()
    windows, tokens = before.windows, before.tokens
    done = before
    began = time.perf_counter() - before.seconds
    ranks.watch_stalls(settings.stall_seconds)
    with stop_vote() as vote, closing(ahead) as micro_batches:
        ranks.wait_long()  # in the groups that DeepSpeed has made by now, too
        for update in range(before.updates, batches.updates):
            number, last = update + 1, update + 1 == batches.updates
            due = number % settings.checkpoint_every == 0 or last
            logs = number % settings.log_every == 0 or due or update == 0
            seed_dropout(batches.seed, update)
            rate = engine.get_lr()[0]  # of this update; the engine's step moves on to the next one's
            watch.next_update()
            for _ in range(batches.accumulation):
                ranks.progress(f"update {number}, data")
                with watch.data():
                    batch, carried = next(micro_batches), None
                seen = {"loss": torch.zeros((), device=device)}
                for part in parts:
                    ranks.progress(f"update {number}, forward")
                    with watch.forward():
                        loss, carried, statistics = engine(
                            batch, update, update / batches.updates, part, carried, measure_noise=logs
                        )
                    ranks.progress(f"update {number}, backward")
                    engine.backward(loss * micro_steps)  # the engine takes the mean over micro-steps; passes add up
                    ranks.progress(f"update {number}, step")
                    step(engine)
                    seen |= statistics | {"loss": seen["loss"] + loss.detach()}
                meter.add(seen)
            rows = batches.windows(update)
            windows += len(rows)
            tokens += int(batches.lengths[rows].sum())
            asked = vote.asked()
            saves = due or bool(asked)
            if not (logs or saves):
                continue
            norm, weights_finite = engine.get_global_grad_norm(), True
            if norm is None and saves:  # at stage 0 in fp32; nobody else looks at what is about to be kept
                weights_finite = all(p.isfinite().all() for p in objective.parameters())
            means, everyone = meter.read(watch.read(), weights_finite)
            means |= {"learning_rate": rate}
            if logs:
                tracker.log_health(number, columns(everyone), outliers.news(everyone))
            if norm is not None:
                means["grad_norm"] = float(norm)
            # fp16's loss scaler lives with overflows; elsewhere an update that DeepSpeed skipped had no finite gradient
            skipped = engine.skipped_steps
            if settings.precision == "fp16":
                means |= {"loss_scale": engine.loss_scale(), "skipped_updates": skipped}
            check_finite(number, means, everyone, 0 if settings.precision == "fp16" else skipped)
            ranks.synchronize()
            if not np.isfinite(means.get("grad_norm", 0.0)):
                del means["grad_norm"]  # an overflow in fp16; JSON has no infinity
            done, score = TrainState(number, windows, tokens, time.perf_counter() - began), None
            if due and validate:
                engine.eval()
                score = validate()
                engine.train()
                means |= {f"validation_{name}": score[name] for name in ("exact_match", "f1")}
                began = time.perf_counter() - done.seconds
            if logs:
                tracker.log(done, means, objective.method.remark(means, number / batches.updates))
                meter.empty()
            if saves:
                ranks.progress(f"update {number}, checkpoint")
                saved = checkpoints.save(engine, replace(done, unlogged=meter.state()), score)
                if saved and ranks.is_main():
                    note_checkpoint(number)
                asked = asked or max(ranks.gather(request.number))  # what came since the last vote needs no other save
            if asked:
                request.settle(Stopped.exit_code)
                raise Stopped(
                    f"on request ({Signals(asked).name}) after update {number} of {batches.updates}; "
                    f"{'its checkpoint is saved' if saved else 'earlier checkpoints stay'}, and {RESUMES}"
                )
            watch.restart()
    return done


def step(engine) -> None:
    """DeepSpeed's step; where fp16's loss scale cannot be lowered any further, that is a diverged training."""
    try:
        engine.step()
    except Exception as error:
        if "loss scale already at minimum" not in str(error):
            raise
        raise TrainingDiverged(f"every fp16 gradient overflows, at the smallest loss scale: {DIVERGED}") from None


def seed_dropout(seed: int, update: int) -> None:
    """Dropout draws from (seed, update, rank): a resumed run needs no generator state to go on exactly."""
    torch.manual_seed(int(np.random.SeedSequence([seed, update, ranks.rank()]).generate_state(1, np.uint64)[0] >> 1))


def check_finite(update: int, means: dict[str, float], everyone: Sequence[Health], skipped: int) -> None:
    """Raises TrainingDiverged if a rank's numbers are not finite or updates were skipped; names the ranks that it is
    of."""
    found = [rank for rank, one in enumerate(everyone) if not one.finite]
    if np.isfinite(means["loss"]) and not found and not skipped:
        return
    where = ""
    if 0 < len(found) < len(everyone):
        where = f", not finite on {ranks_of(found)}, host {ranks.host(found[0])}"
    raise TrainingDiverged(
        f"loss, gradient or weights are no finite numbers by update {update} (loss {means['loss']}, gradient norm "
        f"{means.get('grad_norm', 'not known')}, {skipped} updates skipped{where}): {DIVERGED}"
    )


class Meter:
    """Means of weighted statistics since the last logged line, over ranks, kept on the device until they are read.

    Args:
        accumulation: micro-batches of an update.
        state: of the meter of a run that was stopped between two lines.
    """

    def __init__(self, accumulation: int, state: dict[str, Any]):
        self.accumulation = accumulation
        self.empty()
        if state:
            scale = accumulation / state["accumulation"]
            for name, sums in state["sums"].items():
                same = len(sums) == ranks.world_size()
                own = sums[ranks.rank()] if same else sum(sums) / len(sums)
                self.sums[name] = torch.tensor(own * scale, dtype=torch.double, device=ranks.device())
                self.counts[name] = state["counts"][name] * scale

    def empty(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.counts: dict[str, float] = {}

    def add(self, statistics: dict[str, torch.Tensor]) -> None:
        """Statistics of one micro-batch."""
        for name, value in statistics.items():
            self.sums[name] = self.sums.get(name, 0) + value.double()
            self.counts[name] = self.counts.get(name, 0) + 1

    def read(self, own: Sequence[float], weights_finite: bool) -> tuple[dict[str, float], list[Health]]:
        """The means, and every rank's health of its `own` numbers. All ranks call this together."""
        self._gathered = self._gather([*own, weights_finite])
        names, world = sorted(self.sums), ranks.world_size()
        sums = {name: [row[k] for row in self._gathered] for k, name in enumerate(names)}
        means = {name: sum(column) / world / self.counts[name] for name, column in sums.items()}
        rows = zip(self._gathered, sums["loss"], strict=True)
        return means, [Health(*row[len(names) : -1], row[-1] > 0 and math.isfinite(loss)) for row, loss in rows]

    def _gather(self, own: Sequence[float]) -> list[list[float]]:
        sums = torch.stack([self.sums[name] for name in sorted(self.sums)])
        mine = torch.cat([sums, sums.new_tensor(own)])
        everyone = mine.new_empty(ranks.world_size() * len(mine))
        dist.all_gather_into_tensor(everyone, mine)
        return everyone.view(-1, len(mine)).tolist()

    def state(self) -> dict[str, Any]:
        """As of the last `read`, for a meter that goes on; of an empty one, nothing."""
        sums = {name: [row[k] for row in self._gathered] for k, name in enumerate(sorted(self.sums))}
        return {"accumulation": self.accumulation, "counts": self.counts, "sums": sums} if sums else {}
