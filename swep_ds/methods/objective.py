"""The module under the engine: a QA model, a method, and the loss of its passes."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from swep_ds.common.errors import InputError
from swep_ds.data.batches import Batch
from swep_ds.methods.base import (
    STACKED,
    Inputs,
    Method,
    MicroStep,
    NoiseKey,
    Pass,
    PassState,
    Perturbed,
    without_dropout,
)
from swep_ds.methods.nearest import words_changed
from swep_ds.models.outputs import QAOutput, hidden_distance, symmetric_divergence

Statistics = dict[str, Tensor]


class Objective(nn.Module):
    """Runs a method's passes over a batch.

    One call is one micro-step of the engine. It runs all passes, one after the other (`joint`) or as one batch
    (`stacked`), or one pass that trains and those before it that it needs: passes without gradient, and the pass that
    it is compared with (`split`). All give the same gradients, to rounding and to the units that are dropped.

    Args:
        qa: the model (`swep_ds.models`).
        seed: the run's; keys the noise together with the update, the perturbed pass and the window.
    """

    def __init__(self, qa: nn.Module, method: Method, seed: int):
        super().__init__()
        self.qa, self.method, self.seed = qa, method, seed

    def parts(self, execution: str) -> list[int | str | None]:
        """The micro-steps of a batch, as `MicroStep.part` names them.

        Raises:
            InputError: `stacked` for a method whose passes need each other, though its settings have no `needs`.
        """
        passes = self.method.passes(0.0)
        if execution == "split":
            return [*range(len(_split(passes)))]
        if execution == "stacked" and any(pass_.keeps_hidden or pass_.repeats_dropout for pass_ in passes):
            raise InputError(
                f"train.execution stacked: the passes of {type(self.method).__name__} need h or the dropout of another "
                "pass: set execution to split or joint, and `needs` in the method's settings"
            )
        return [STACKED if execution == "stacked" else None]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The model's trained parameters, then the method's, if it has any: the order of `parameters()`."""
        groups = [
            {"params": [parameter for parameter in module.parameters() if parameter.requires_grad]}
            for module in (self.qa, self.method)
        ]
        if self.method.learning_rate is not None:
            groups[1]["lr"] = self.method.learning_rate
        return [group for group in groups if group["params"]]

    def passes(self, step: MicroStep) -> list[tuple[Pass, NoiseKey | None]]:
        """The passes of a micro-step, each with the key of its noise if it is perturbed."""
        passes = self.method.passes(step.progress)
        perturbed = [number for number, pass_ in enumerate(passes) if pass_.perturb]
        first = step.update * len(perturbed)
        keys = {number: NoiseKey(self.seed, first + k) for k, number in enumerate(perturbed)}
        numbers = range(len(passes)) if step.part in (None, STACKED) else _split(passes)[step.part]
        return [(passes[number], keys.get(number)) for number in numbers]

    def forward(self, batch: Batch, step: MicroStep | None = None) -> tuple:
        """The loss of a micro-step; without one, the plain model's predictions.

        Returns:
            (loss, what the next micro-step needs, statistics by name as detached scalars). Statistics are weighted like
            the loss: the mean over micro-batches and ranks is the mean over the global batch.
            Without `step`: what the model's `predict` returns.
        """
        if step is None:
            return self.qa.predict(batch)
        loss, carried, output = torch.zeros((), device=batch.input_ids.device), step.carried, None
        statistics: Statistics = {}
        passes = self.passes(step)
        layers = any(pass_.hidden_distance_weight for pass_, _ in passes)
        stack = self._run_stacked(passes, batch, step, layers, statistics) if step.part == STACKED else None
        for pass_, key in passes:
            previous = output
            if pass_.repeats_dropout:
                carried = _repeat_dropout(carried, batch.input_ids.device)
            if stack:
                noise, output = stack.pop(0)
            else:
                with torch.set_grad_enabled(torch.is_grad_enabled() and pass_.trains):
                    inputs = self._inputs(self.qa.embed(batch), batch, key, carried)
                    noise = self._perturb(pass_, inputs, step, statistics)
                    embeddings = noise.embeddings if noise else inputs.embeddings
                    output = self.qa(embeddings, batch, hidden=pass_.keeps_hidden, layers=layers)
            if pass_.keeps_hidden:
                carried = replace(carried, hidden=output.hidden.detach())  # the paper's stop-gradient
            if not pass_.trains:
                continue
            nll = (output.nll * batch.weight).sum()
            if pass_.weight != 0:
                loss = loss + pass_.weight * nll
            statistics[f"nll_{pass_.name}"] = nll.detach()
            if pass_.divergence_weight:
                divergence = (symmetric_divergence(output, previous) * batch.weight).sum()
                loss = loss + pass_.divergence_weight * divergence
                statistics["divergence"] = divergence.detach()
            if pass_.hidden_distance_weight:
                distance = (hidden_distance(output, previous, batch.attention_mask) * batch.weight).sum()
                loss = loss + pass_.hidden_distance_weight * distance
                statistics["hidden_distance"] = distance.detach()
            if noise is None:
                continue
            if noise.delta is not None:
                carried = replace(carried, delta=noise.delta)
            if noise.kl is not None:
                share_N = batch.weight if self.method.kl_reduction == "sum" else batch.token_weight
                loss = loss + pass_.kl_weight * (noise.kl.sum(1) * share_N).sum()
                kl_N = noise.kl.detach().sum(1)
                statistics["kl_per_token"] = (kl_N * batch.token_weight).sum()
                statistics["kl_per_window"] = (kl_N * batch.weight).sum()
                if step.measure:
                    # what a KL per window is judged by: naming the start and the end of an answer among the tokens
                    spans_N = 2 * batch.attention_mask.sum(1).log()
                    statistics["span_nats"] = (spans_N * batch.weight).sum()
                if pass_.weight != 0:
                    statistics["beta"] = loss.new_zeros((), dtype=torch.double) + pass_.kl_weight / pass_.weight
            if step.measure and noise.measure is not None:
                statistics |= _means(noise.measure(), batch)
        return loss, carried, statistics

    def _run_stacked(
        self,
        passes: list[tuple[Pass, NoiseKey | None]],
        batch: Batch,
        step: MicroStep,
        layers: bool,
        statistics: Statistics,
    ) -> list[tuple[Perturbed | None, QAOutput]]:
        """Perturbation and output of each pass, which the model computes as one batch of P N windows."""
        clean, carried, noises = self.qa.embed(batch), step.carried, []
        for pass_, key in passes:
            noise = self._perturb(pass_, self._inputs(clean, batch, key, carried), step, statistics)
            if noise is not None and noise.delta is not None:
                carried = replace(carried, delta=noise.delta)
            noises.append(noise)
        embeddings = torch.cat([noise.embeddings if noise else clean for noise in noises])
        output = self.qa(embeddings, batch.repeated(len(passes)), layers=layers)
        return [*zip(noises, output.chunks(len(passes)), strict=True)]

    def _inputs(self, embeddings: Tensor, batch: Batch, key: NoiseKey | None, carried: PassState) -> Inputs:
        return Inputs(embeddings, batch, key, carried, partial(self._forward_without_dropout, batch))

    def _perturb(self, pass_: Pass, inputs: Inputs, step: MicroStep, statistics: Statistics) -> Perturbed | None:
        """The pass's perturbation, if any; adds what is measured of it to the statistics."""
        if pass_.perturb is None:
            return None
        noise = pass_.perturb(inputs)
        if step.measure:
            statistics |= words_changed(self.qa, inputs.embeddings, noise.embeddings, inputs.batch, inputs.key)
        if step.compare and noise.compare is not None:  # here: the pass holds no activations yet
            statistics |= _means(noise.compare(), inputs.batch)
        return noise

    def _forward_without_dropout(self, batch: Batch, embeddings: Tensor) -> QAOutput:
        with without_dropout(self.qa):
            return self.qa(embeddings, batch, hidden=True)


def _means(values: Statistics, batch: Batch) -> Statistics:
    """Weighted sums of values per window [N] or per token [N, T]; over an update they add up to its means."""
    share_NT = batch.attention_mask * batch.token_weight[:, None]
    return {name: (value * (batch.weight if value.dim() == 1 else share_NT)).sum() for name, value in values.items()}


def _split(passes: list[Pass]) -> list[list[int]]:
    """The passes' numbers by micro-step, which ends with a pass that trains, unless the next is compared with it."""
    groups: list[list[int]] = [[]]
    for number, pass_ in enumerate(passes):
        if pass_.compares:
            groups[-2:] = [groups[-2] + groups[-1]]
        groups[-1].append(number)
        if pass_.trains:
            groups.append([])
    return groups[:-1]


def _repeat_dropout(carried: PassState, device: torch.device) -> PassState:
    """Restores the carried generator state, or carries the present one: the passes then drop the same units."""
    generator = torch if device.type == "cpu" else torch.get_device_module(device)
    if carried.dropout is None:
        return replace(carried, dropout=generator.get_rng_state())
    generator.set_rng_state(carried.dropout)
    return carried
