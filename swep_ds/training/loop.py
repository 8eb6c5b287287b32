"""The loop: forwards and backwards of all passes, and one optimizer step at the end of an update."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from swep_ds.methods.base import Method, MicroStep
from swep_ds.ranks.environment import note_checkpoint
from swep_ds.ranks.stopping import RESUMES, StopVote, request
from swep_ds.training.checkpoints import Checkpoints, TrainState
from swep_ds.training.engine import Engine
from swep_ds.training.instruments import Instruments
from swep_ds.training.settings import TrainSection
from swep_ds.training.tracking import Tracker

COMPARED_EVERY = 20  # updates, for `MicroStep.compare`; its cost: docs/methods.md
AHEAD = 2  # batches that are made while the device works on the present one


def train(
    engine: Engine,
    batches: TrainingBatches,
    settings: TrainSection,
    checkpoints: Checkpoints,
    tracker: Tracker,
    before: TrainState,
    validate: Callable[[], Score] | None,
) -> TrainState:
    """Trains from `before` to the end of `batches`; logs and saves on the way, and scores with `validate` before each
    checkpoint that the settings ask for.

    Raises on all ranks: TrainingDiverged, where a loss, gradient or weight is not finite when an update is logged or
    saved; Stopped, after a checkpoint, where a signal asked any rank to stop; WriteFailed, where none can be written.
    """
    instruments = Instruments(engine, batches, settings, tracker, before)
    if before.updates:
        engine.module.method.load(before.method)
    engine.train()
    state = before
    ahead = prefetch(batches, before.updates * batches.accumulation, ranks.device())
    with StopVote() as vote, closing(ahead) as micro_batches:
        ranks.wait_long()  # also in the groups that DeepSpeed has made by now
        for update in range(before.updates, batches.updates):
            number = update + 1
            due = number % settings.checkpoint_every == 0 or number == batches.updates
            logs = number % settings.log_every == 0 or due or update == 0
            step = MicroStep(update, update / batches.updates, measure=logs, compare=update % COMPARED_EVERY == 0)
            seed_dropout(batches.seed, update)
            instruments.begin(number)
            phase = instruments.watch.phase
            statistics = run_update(engine, micro_batches, batches.accumulation, step, phase)
            instruments.add(statistics)
            observe(engine.module.method, statistics)
            if checkpoints.average:
                checkpoints.average.add(number)
            rows = batches.windows(update)
            tokens = state.tokens + int(batches.lengths[rows].sum())
            state = replace(state, updates=number, windows=state.windows + len(rows), tokens=tokens)
            signal = vote.asked()
            saves = due or signal != 0
            if logs or saves:
                state, score = instruments.report(state, saves, validate if due else None)
            if saves:
                with instruments.watch.phase("checkpoint"):
                    done = replace(state, method=engine.module.method.state())
                    checkpoints.save(engine, done, score)
                if ranks.is_main():
                    note_checkpoint(number)
                signal = signal or max(ranks.gather(request.number))  # no second save for what came since the vote
            if signal:
                raise Stopped(
                    f"on request ({Signals(signal).name}) after update {number} of {batches.updates}; its checkpoint "
                    f"is saved, and {RESUMES}"
                )
    return state


def prefetch(batches: TrainingBatches, first: int, device: torch.device) -> Iterator[Batch]:
    """Yields `batches` on the device from micro-batch `first` on; close the iterator if you leave it early."""

    def make(number: int) -> Batch:
        batch = batches[number]
        if device.type == "cuda":  # from pinned memory it is copied without the host waiting
            batch = batch.map(Tensor.pin_memory)
        return batch

    ready = deque()
    # a process forked from a rank would inherit the locks and sockets of DeepSpeed's threads
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        for number in range(first, len(batches)):
            ready.append(thread.submit(make, number))
            if len(ready) > AHEAD:
                yield ready.popleft().result().to(device)
        while ready:
            yield ready.popleft().result().to(device)


def run_update(
    engine: Engine,
    micro_batches: Iterator[Batch],
    accumulation: int,
    step: MicroStep,
    phase: Callable[[str], AbstractContextManager] = nullcontext,
) -> list[dict[str, Tensor]]:
    """One update of any method: for each micro-batch and each part of it, a pass or all: forward, backward, step.

    The step changes weights only after the update's last backward; an engine that `steps_once` takes it only then.
    `phase` is entered with the name of each phase. Returns the statistics of each micro-batch, with its "loss".
    """
    statistics = []
    with engine.deepspeed.coalesce_grad_reduction() if engine.coalesces else nullcontext():
        for _ in range(accumulation):
            with phase("data"):
                batch = next(micro_batches)
            statistics.append(engine.accumulate(batch, step, phase))
    if engine.steps_once:
        with phase("step"):
            engine.step()
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
