"""The loop: for each pass a forward and a backward, and one optimizer step at the end of an update."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from signal import Signals

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.errors import Stopped
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.evaluation.results import Score
from swep_ds.methods.base import Method, MicroStep, PassState
from swep_ds.ranks.environment import note_checkpoint
from swep_ds.ranks.stopping import RESUMES, request, stop_vote
from swep_ds.training.average import WeightAverage
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.engine import step_engine
from swep_ds.training.metrics import GradientNorms, Meter, Outliers, Stopwatch, check_finite, columns
from swep_ds.training.prefetch import prefetch
from swep_ds.training.settings import TrainSection
from swep_ds.training.tracking import Tracker

COMPARED_EVERY = 20  # updates, for `MicroStep.compare`; its cost: docs/methods.md


def train(
    engine,
    batches: TrainingBatches,
    settings: TrainSection,
    checkpoints: Checkpoints,
    tracker: Tracker,
    before: TrainState,
    validate: Callable[[], Score] | None,
    average: WeightAverage | None,
) -> TrainState:
    """Trains from `before` to the end of `batches`; logs and saves on the way.

    Args:
        validate: scores the engine before each checkpoint that the settings ask for. Its time is not part of the run's
            seconds.
        average: takes in the weights after every update.

    Raises:
        TrainingDiverged: loss, gradient or weights are not finite; on all ranks, when an update is logged or saved.
        InputError: the ranks cannot reach each other over gloo.
        Stopped: a signal asked any rank to stop; on all ranks, after a checkpoint.
        WriteFailed: a checkpoint cannot be written, and train.on_checkpoint_failure is stop.
    """
    method, parts = engine.module.method, engine.module.parts(settings.execution)
    meter, watch = Meter(batches.accumulation, before.unlogged), Stopwatch(before.seconds)
    norms = GradientNorms()
    outliers = Outliers(forward=engine.zero_optimization_stage() < 3)
    state = before
    if before.updates:
        method.load(before.method)
    engine.train()
    ranks.watch_stalls(settings.stall_seconds)
    ahead = prefetch(batches, before.updates * batches.accumulation, ranks.device())
    with stop_vote() as vote, closing(ahead) as micro_batches:
        ranks.wait_long()  # also in the groups that DeepSpeed has made by now
        for update in range(before.updates, batches.updates):
            number, progress = update + 1, update / batches.updates
            due = number % settings.checkpoint_every == 0 or number == batches.updates
            logs = number % settings.log_every == 0 or due or update == 0
            seed_dropout(batches.seed, update)
            rate = engine.get_lr()[0]  # the engine's step moves on to the next update's
            watch.next_update(number)
            step = MicroStep(update, progress, measure=logs, compare=update % COMPARED_EVERY == 0)
            statistics = run_update(engine, micro_batches, batches.accumulation, step, parts, watch.phase)
            norms.add(number, engine.get_global_grad_norm())
            observe(method, statistics)
            meter.add(statistics)
            if average:
                with watch.phase("average"):
                    average.add(number)
            state = _count(state, batches, update)
            signal = vote.asked()
            saves = due or bool(signal)
            if not (logs or saves):
                continue
            means, health = meter.read(watch.read(), _are_weights_finite(engine) if saves else True)
            means |= {"learning_rate": rate} | _read_engine(engine, settings.precision)
            if logs:
                tracker.log_health(number, columns(health), outliers.news(health))
            gradient = norms.first_not_finite()
            check_finite(number, means, health, None if settings.precision == "fp16" else gradient)  # fp16 skips these
            ranks.synchronize()
            for name in ("grad_norm", "noise_grad_norm"):
                if not np.isfinite(means.get(name, 0.0)):
                    del means[name]  # an overflow in fp16; JSON has no infinity
            state = replace(state, seconds=watch.seconds)
            score = validate() if due and validate else None
            watch.reset(state.seconds)
            if score:
                means |= {f"validation_{name}": score[name] for name in ("exact_match", "f1")}
            if logs:
                tracker.log(state, means, method.remark(means, number / batches.updates))
                meter.empty()
            if saves:
                with watch.phase("checkpoint"):
                    done = replace(state, unlogged=meter.state(), method=method.state())
                    saved = checkpoints.save(engine, done, score)
                if saved and ranks.is_main():
                    note_checkpoint(number)
                signal = signal or max(ranks.gather(request.number))  # no second save for what came since the vote
            if signal:
                _stop(signal, number, batches.updates, saved)
            watch.restart()
    return state


def run_update(
    engine,
    micro_batches: Iterator[Batch],
    accumulation: int,
    step: MicroStep,
    parts: Sequence[int | None],
    phase: Callable[[str], AbstractContextManager] = nullcontext,
) -> list[dict[str, Tensor]]:
    """One update of any method: for each micro-batch and each of its passes forward, backward, step.

    The engine's step changes weights only after the update's last backward. With `train.coalesce_grad_reduction` it is
    called only then, after the reduction of all gradients.

    Args:
        parts: from `Objective.parts`.
        phase: entered with the name of each phase, such as `Stopwatch.phase`.

    Returns:
        The statistics of each micro-batch (`Objective.forward`), with its "loss".
    """
    statistics = []
    with engine.coalesce_grad_reduction() if engine.coalesces else nullcontext():
        for _ in range(accumulation):
            with phase("data"):
                batch = next(micro_batches)
            seen, carried = {"loss": torch.zeros((), device=batch.input_ids.device)}, PassState()
            for part in parts:
                with phase("forward"):
                    loss, carried, measured = engine(batch, replace(step, part=part, carried=carried))
                with phase("backward"):
                    engine.backward(loss * len(parts))  # the engine takes the mean over micro-steps; passes add up
                if not engine.coalesces:
                    with phase("step"):
                        step_engine(engine)
                seen |= measured | {"loss": seen["loss"] + loss.detach()}
                del loss  # frees the pass's graph before the next forward
            statistics.append(seen)
    if engine.coalesces:
        with phase("step"):
            step_engine(engine)
    return statistics


def observe(method: Method, statistics: Sequence[dict[str, Tensor]]) -> None:
    """Gives the method the mean of what it watches, if anything, over the update's global batch. Collective."""
    if method.watches:
        mean = torch.stack([seen[method.watches].double() for seen in statistics]).mean()
        dist.all_reduce(mean)
        method.observe(mean / ranks.world_size())


def seed_dropout(seed: int, update: int) -> None:
    """Keys dropout by (seed, update, rank): a resumed run needs no generator state to continue exactly."""
    torch.manual_seed(int(np.random.SeedSequence([seed, update, ranks.rank()]).generate_state(1, np.uint64)[0] >> 1))


def _count(state: TrainState, batches: TrainingBatches, update: int) -> TrainState:
    rows = batches.windows(update)
    tokens = state.tokens + int(batches.lengths[rows].sum())
    return replace(state, updates=update + 1, windows=state.windows + len(rows), tokens=tokens, unlogged={})


def _read_engine(engine, precision: str) -> dict[str, float]:
    norm = engine.get_global_grad_norm()
    numbers = {} if norm is None else {"grad_norm": float(norm)}
    if engine.group_norms:
        numbers["noise_grad_norm"] = engine.group_norms.method_norm()
    if precision == "fp16":
        scale = float(engine.optimizer.loss_scale)  # the engine's own `loss_scale()` is the ds_config's, 0 for dynamic
        numbers |= {"loss_scale": scale, "skipped_updates": engine.skipped_steps}
    return numbers


def _are_weights_finite(engine) -> bool:
    """Whether a checkpoint of them can be resumed; at ZeRO-3 this rank holds no whole weight to look at."""
    return all(parameter.isfinite().all() for parameter in engine.module.parameters())


def _stop(signal: int, update: int, updates: int, saved: bool) -> None:
    raise Stopped(
        f"on request ({Signals(signal).name}) after update {update} of {updates}; "
        f"{'its checkpoint is saved' if saved else 'earlier checkpoints stay'}, and {RESUMES}"
    )
