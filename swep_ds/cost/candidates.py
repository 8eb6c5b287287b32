"""What an update costs: its time, in turns with others on the same batches, its memory and its FLOPs.

Memory (`peak_bytes`) is the most that PyTorch's allocator holds during an update, from the moment the model is loaded,
without the interpreter and libraries.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.profiler import profile
from torch.autograd.profiler_util import MEMORY_EVENT_NAME
from torch.utils.flop_counter import FlopCounterMode

from swep_ds import ranks
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.methods.base import MicroStep
from swep_ds.ranks import accelerator
from swep_ds.training.loop import run_update
from swep_ds.training.settings import TrainSection

PRIOR_VARIANCE = math.sqrt(0.1 / 0.9)  # of the published code
Update = Callable[[Batch, int], None]


@dataclass
class Candidate:
    """One way to train, and what it took."""

    name: str
    update: Update
    flops_per_token: float
    peak_bytes: int
    batches: list[Batch]
    seconds: list[float] = field(default_factory=list)


def engine_update(engine, execution: str) -> Update:
    """An update of a method under the engine, as the training loop runs it; the engine's accumulation is 1 batch."""
    engine.train()
    parts = engine.module.parts(execution)

    def update(batch: Batch, number: int) -> None:
        run_update(engine, iter([batch]), 1, MicroStep(number), parts)

    return update


class Published(nn.Module):
    """The loss of the published code's three-pass update of `qa`, a model of `swep_ds.models`.

    h comes from a pass of its own, without gradient but with dropout; then the noisy pass, then the clean one; the
    losses are summed and go backward once. Noise from torch.randn; the KL is a mean over the batch's tokens.
    """

    def __init__(self, qa: nn.Module):
        super().__init__()
        width = qa.embedding_size
        self.qa = qa
        self.method = nn.Sequential(nn.Linear(qa.hidden_size, width), nn.ReLU(), nn.Linear(width, 2 * width))

    def forward(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            hidden = self.qa(self.qa.embed(batch), batch, hidden=True).hidden
        mu, log_variance = self.method(hidden).chunk(2, -1)
        embeddings = self.qa.embed(batch)
        sigma = torch.exp(0.5 * log_variance)
        noisy = self.qa(embeddings * (mu + sigma * torch.randn_like(mu)), batch).nll.mean()
        ratio = log_variance.exp() / PRIOR_VARIANCE
        kl_NT = 0.5 * (ratio + (mu - 1) ** 2 / PRIOR_VARIANCE - 1 - ratio.log()).sum(-1)
        kl = (kl_NT * batch.attention_mask).sum() / batch.attention_mask.sum()
        clean = self.qa(self.qa.embed(batch), batch).nll.mean()
        return 0.5 * (clean + noisy) + kl


def published_update(qa: nn.Module, train: TrainSection) -> Update:
    """The published code's update in plain PyTorch, in float32 without an engine, clipped at 1. Only AdamW is faster
    than there: it is fused."""
    objective = Published(qa).to(ranks.device()).train()
    adam = {"lr": train.learning_rate, "betas": train.adam_betas, "eps": train.adam_epsilon, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(objective.parameters(), **adam, fused=True)

    def update(batch: Batch, number: int) -> None:
        objective(batch).backward()
        nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def flops_per_token(update: Update, batch: Batch) -> float:
    """FLOPs of an update on this batch as if it had no padding, as PyTorch counts them, by its tokens."""
    N, T = batch.input_ids.shape
    # a model may leave padding out
    full = batch._replace(attention_mask=torch.ones_like(batch.attention_mask), lengths=(T,) * N)
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        update(full, 0)
    return counter.get_total_flops() / (N * T)


def largest_batch(batches: TrainingBatches) -> Batch:
    """The batch of the first epoch with the most positions."""
    return _first_micro_batch(batches, np.argmax(_sizes(batches)))


def sample(batches: TrainingBatches, warmup: int, updates: int) -> list[Batch]:
    """Batches of `updates` updates that represent the first epoch, in random order, after `warmup` of the same.

    A systematic sample of the updates by their positions: windows of similar length share an update, so a few more or
    fewer long ones among 20 consecutive updates would move the mean by a tenth.
    """
    by_size = np.argsort(_sizes(batches), kind="stable")
    middles = (np.arange(updates) + 0.5) * len(by_size) / updates
    chosen = np.random.default_rng(batches.seed).permutation(by_size[middles.astype(int)])
    return [_first_micro_batch(batches, update) for update in (*np.resize(chosen, warmup), *chosen)]


def _sizes(batches: TrainingBatches) -> list[int]:
    """Positions of each update of the first epoch."""
    return [len(batches.windows(update)) * batches.width(update) for update in range(batches.updates_per_epoch)]


def _first_micro_batch(batches: TrainingBatches, update: int) -> Batch:
    """On this rank's device."""
    return batches[int(update) * batches.accumulation].to(ranks.device())


def measure_memory(make: Callable[[], Update], batch: Batch) -> tuple[Update, int]:
    """What `make` returns, which loads the model, and the most bytes that are held during an update after the first."""
    if accelerator.on_gpu():
        gc.collect()  # else freeing what the previous candidate left would be subtracted from this one's memory
        gpu = get_accelerator()
        before = gpu.memory_allocated()
        update = make()
        update(batch, 0)
        gpu.synchronize()
        gpu.reset_peak_memory_stats()
        update(batch, 1)
        gpu.synchronize()
        return update, gpu.max_memory_allocated() - before
    before = held_bytes()
    update = make()
    update(batch, 0)
    state = held_bytes() - before
    with profile(profile_memory=True) as recorded:
        update(batch, 1)
    events = [event for event in recorded.kineto_results.events() if event.name() == MEMORY_EVENT_NAME]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return update, state + max(accumulate(changes, initial=0))


def held_bytes() -> int:
    """Bytes of all tensors that Python knows; each storage counts once."""
    gc.collect()
    storages: dict[int, int] = {}
    for value in gc.get_objects():
        if issubclass(type(value), Tensor) and not isinstance(value, FakeTensor):
            for tensor in (value, value.grad if value.is_leaf else None):
                if tensor is not None and tensor.device.type != "meta":
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def measure(candidates: list[Candidate], warmup: int) -> None:
    """Runs each candidate over its batches, in turns; the first `warmup` batches do not count."""
    # the first update with a shape allocates its memory and may plan its kernels: the first candidate would pay for it
    if accelerator.on_gpu():
        for candidate in candidates:
            for number, batch in enumerate(candidate.batches[warmup:]):
                candidate.update(batch, number)
    for number in range(len(candidates[0].batches)):
        for candidate in candidates:
            ranks.synchronize()
            began = time.perf_counter()
            candidate.update(candidate.batches[number], number)
            ranks.synchronize()
            if number >= warmup:
                candidate.seconds.append(time.perf_counter() - began)


def figures(candidates: list[Candidate], warmup: int) -> list[dict[str, Any]]:
    """A row for each candidate, with ratios to the first one where both ran on the same batches."""
    base = candidates[0]
    rows = []
    for candidate in candidates:
        counted = candidate.batches[warmup:]
        windows = sum(len(batch.input_ids) for batch in counted)
        tokens = sum(int(batch.attention_mask.sum()) for batch in counted)
        positions = sum(batch.input_ids.numel() for batch in counted)
        seconds = sum(candidate.seconds)
        quartiles = [None] * 3
        if candidate.batches is base.batches:
            ratios = [a / b for a, b in zip(candidate.seconds, base.seconds, strict=True)]
            quartiles = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "name": candidate.name,
                "median_update_seconds": statistics.median(candidate.seconds),
                "time_ratio": quartiles[1],
                "time_ratio_quartiles": quartiles[::2],
                "samples_per_second": ranks.world_size() * windows / seconds,
                "tokens_per_second": ranks.world_size() * tokens / seconds,
                "padding": 1 - tokens / positions,
                "peak_bytes": candidate.peak_bytes,
                "memory_ratio": candidate.peak_bytes / base.peak_bytes,
                "flops_per_second": candidate.flops_per_token * tokens / seconds,
            }
        )
    return rows
