"""The loop: for each pass a forward and a backward, one step at the end of an update."""

import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from swep_ds import distributed as ranks
from swep_ds.data.batches import TrainingBatches
from swep_ds.errors import TrainingDiverged
from swep_ds.evaluation.results import Score
from swep_ds.recipe import TrainSection
from swep_ds.training.checkpoints import Checkpoints, Done
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
    before: Done,
    validate: Callable[[], Score] | None,
) -> Done:
    """Trains from where the run stands to the end of `batches`, logging and saving on the way.

    `validate` scores the engine, in evaluation mode, before each save; what it takes is not part of the run's seconds.

    Raises:
        TrainingDiverged: loss or gradient not finite, noticed when next logged or before being saved; on all ranks.
    """
    objective, device = engine.module, ranks.device()
    micro_steps = objective.micro_steps(settings.execution)
    parts = [None] if settings.execution == "joint" else range(micro_steps)
    loader = torch.utils.data.DataLoader(
        batches, batch_size=None, sampler=range(before.updates * batches.accumulation, len(batches))
    )
    micro_batches = iter(loader)
    meter, skipped_before = Meter(), engine.skipped_steps
    engine.train()
    windows, tokens = before.windows, before.tokens
    done = before
    began = time.perf_counter() - before.seconds
    for update in range(before.updates, batches.updates):
        number, last = update + 1, update + 1 == batches.updates
        saves = number % settings.checkpoint_every == 0 or last
        logs = number % settings.log_every == 0 or saves or update == 0
        seed_dropout(batches.seed, update)
        rate = engine.get_lr()[0]  # of this update; the engine's step moves on to the next one's
        for _ in range(batches.accumulation):
            batch, carried = next(micro_batches).to(device), None
            seen = {"loss": torch.zeros((), device=device)}
            for part in parts:
                loss, carried, statistics = engine(
                    batch, update, update / batches.updates, part, carried, measure_noise=logs
                )
                engine.backward(loss * micro_steps)  # the engine takes the mean over micro-steps; passes add up
                step(engine)
                seen |= statistics | {"loss": seen["loss"] + loss.detach()}
            meter.add(seen)
        rows = batches.windows(update)
        windows += len(rows)
        tokens += int(batches.lengths[rows].sum())
        if not logs:
            continue
        means = meter.means() | {"learning_rate": rate}
        if (norm := engine.get_global_grad_norm()) is not None:  # DeepSpeed does not compute it at stage 0 in fp32
            means["grad_norm"] = float(norm)
        elif saves:  # nobody else looks at what is about to be kept
            means["loss"] += 0.0 if all(p.isfinite().all() for p in objective.parameters()) else np.nan
        # fp16's loss scaler lives with overflows; elsewhere an update that DeepSpeed skipped had no finite gradient
        skipped = engine.skipped_steps - skipped_before
        if settings.precision == "fp16":
            means |= {"loss_scale": engine.loss_scale(), "skipped_updates": skipped}
        if not np.isfinite(means["loss"]) or (skipped and settings.precision != "fp16"):
            raise TrainingDiverged(
                f"loss, gradient or weights are no finite numbers by update {number} (loss {means['loss']}, gradient "
                f"norm {means.get('grad_norm', 'not known')}, {skipped} updates skipped): {DIVERGED}"
            )
        ranks.synchronize()
        if not np.isfinite(means.get("grad_norm", 0.0)):
            del means["grad_norm"]  # an overflow in fp16; JSON has no infinity
        done, score = Done(number, windows, tokens, time.perf_counter() - began), None
        if saves and validate:
            engine.eval()
            score = validate()
            engine.train()
            means |= {f"validation_{name}": score[name] for name in ("exact_match", "f1")}
            began = time.perf_counter() - done.seconds
        tracker.log(done, means, objective.method.remark(means, number / batches.updates))
        if saves:
            checkpoints.save(engine, done, score)
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


class Meter:
    """Means of weighted statistics since the last look, over ranks, kept on the device until then."""

    def __init__(self):
        self.sums: dict[str, torch.Tensor] = {}
        self.counts: dict[str, int] = defaultdict(int)

    def add(self, statistics: dict[str, torch.Tensor]) -> None:
        """Statistics of one micro-batch."""
        for name, value in statistics.items():
            self.sums[name] = self.sums.get(name, 0) + value.double()
            self.counts[name] += 1

    def means(self) -> dict[str, float]:
        """All ranks call this together; it empties the meter."""
        names = sorted(self.sums)
        total = torch.stack([self.sums[name] for name in names])
        dist.all_reduce(total)
        values = (total / ranks.world_size()).tolist()
        self.sums, counts, self.counts = {}, self.counts, defaultdict(int)
        return {name: value / counts[name] for name, value in zip(names, values, strict=True)}
