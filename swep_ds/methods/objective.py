"""The module under the engine: a QA model, a method, and the loss of its passes."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from swep_ds.data.batches import Batch
from swep_ds.methods.base import Carried, Inputs, Method, NoiseKey, Pass
from swep_ds.models.reading import Reading, symmetric_divergence

Statistics = dict[str, Tensor]


class Objective(nn.Module):
    """Runs a method's passes over a batch.

    One call makes one micro-step of the engine: all passes (`joint`), or one weighted pass together with the
    weightless ones right before it (`split`). Both leave the same gradients, to rounding.

    Args:
        qa: the model (`swep_ds.models`).
        method: whose passes are run.
        seed: of the run; keys the noise together with the update, the pass and the window.
    """

    def __init__(self, qa: nn.Module, method: Method, seed: int):
        super().__init__()
        self.qa, self.method, self.seed = qa, method, seed

    def micro_steps(self, execution: str) -> int:
        """Engine micro-steps per batch."""
        return 1 if execution == "joint" else len(_split(self.method.passes(0.0)))

    def forward(
        self,
        batch: Batch,
        update: int | None = None,
        progress: float = 0.0,
        micro_step: int | None = None,
        carried: Carried | None = None,
        measure_noise: bool = False,
    ) -> tuple:
        """Loss of a micro-step, or the plain model's predictions where no update is named.

        Args:
            update: number of the update; keys the noise.
            progress: share of all updates already done, for schedules.
            micro_step: which part of `split` execution to run; None = all passes (`joint`).
            carried: what the micro-step before handed on; None in the first.
            measure_noise: whether to add the perturbations' own statistics (`Perturbed.measure`).

        Returns:
            (loss, what to carry on to the next micro-step, statistics by name as detached scalars), every statistic
            weighted like the loss: its mean over micro-batches and ranks is its mean over the global batch.
            Without `update`: what the model's `predict` gives.
        """
        if update is None:
            return self.qa.predict(batch)
        passes = self.method.passes(progress)
        numbered = range(len(passes)) if micro_step is None else _split(passes)[micro_step]
        carried = carried or Carried()
        loss = torch.zeros((), device=batch.input_ids.device)
        statistics: Statistics = {}
        reading = None
        uses_parameters = False
        for number in numbered:
            one, before = passes[number], reading
            if one.repeats_dropout:
                carried = _repeat_dropout(carried, batch.input_ids.device)
            with torch.set_grad_enabled(torch.is_grad_enabled() and one.weight > 0):
                embeddings, noise = self.qa.embed(batch), None
                if one.perturb is not None:
                    key = NoiseKey(self.seed, update * len(passes) + number)
                    noise = one.perturb(Inputs(embeddings, batch, key, carried, partial(self._read, batch)))
                    embeddings = noise.embeddings
                reading = self.qa(embeddings, batch, hidden=one.keeps_hidden)
            if one.keeps_hidden:
                carried = replace(carried, hidden=reading.hidden.detach())
            if one.weight == 0:
                continue
            nll = (reading.nll * batch.weight).sum()
            loss = loss + one.weight * nll
            statistics[f"nll_{one.name}"] = nll.detach()
            if one.divergence_weight:
                divergence = (symmetric_divergence(reading, before) * batch.weight).sum()
                loss = loss + one.divergence_weight * divergence
                statistics["divergence"] = divergence.detach()
            if noise is None:
                continue
            if noise.delta is not None:
                carried = replace(carried, delta=noise.delta)
            if noise.kl is not None:
                loss = loss + one.kl_weight * self._kl(noise.kl, batch)
                statistics["kl_per_token"] = (noise.kl.detach().sum(1) * batch.token_weight).sum()
                uses_parameters = True
            if measure_noise and noise.measure is not None:
                share_NT = batch.attention_mask * batch.token_weight[:, None]
                statistics |= {name: (value_NT * share_NT).sum() for name, value_NT in noise.measure().items()}
        if not uses_parameters and carried.hidden is not None:
            idle = self.method.idle(carried.hidden)
            loss = loss if idle is None else loss + idle
        return loss, carried, statistics

    def _read(self, batch: Batch, embeddings: Tensor) -> Reading:
        training = self.qa.training
        self.qa.eval()
        try:
            return self.qa(embeddings, batch, hidden=True)
        finally:
            self.qa.train(training)

    def _kl(self, kl_NT: Tensor, batch: Batch) -> Tensor:
        factor = batch.weight if self.method.kl_reduction == "sum" else batch.token_weight
        return (kl_NT.sum(1) * factor).sum()


def _split(passes: list[Pass]) -> list[list[int]]:
    """Numbers of the passes of each micro-step: it ends with a weighted pass that the next one is not compared to."""
    groups: list[list[int]] = [[]]
    for number, one in enumerate(passes):
        if one.divergence_weight:
            groups[-2:] = [groups[-2] + groups[-1]]
        groups[-1].append(number)
        if one.weight > 0:
            groups.append([])
    return groups[:-1]


def _repeat_dropout(carried: Carried, device: torch.device) -> Carried:
    """Sets the generator back to the state that is carried, or carries the present one."""
    generator = torch if device.type == "cpu" else torch.get_device_module(device)
    if carried.dropout is None:
        return replace(carried, dropout=generator.get_rng_state())
    generator.set_rng_state(carried.dropout)
    return carried
