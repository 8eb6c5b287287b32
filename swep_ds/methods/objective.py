"""The module under the engine: a QA model, a method, and the loss of its passes."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from swep_ds.data.batches import Batch
from swep_ds.methods.base import Inputs, Method, MicroStep, Pass, PassState, Perturbed, without_dropout
from swep_ds.methods.micro_steps import Key, passes_of, repeat_dropout, split, with_networks
from swep_ds.methods.noise_effect import words_changed
from swep_ds.models.outputs import QAOutput, hidden_distance, symmetric_divergence, uniform_nll

Statistics = dict[str, Tensor]
NO_NOISE = "the noisy pass equals the clean one: the method's perturbation changes no token's embedding"


class Objective(nn.Module):
    """Runs a method's passes over a batch with `qa`, a model of `swep_ds.models`. The run's `seed` keys the noise.

    One call is one micro-step of the engine. It runs all passes (`joint`), or one pass that trains and those before it
    that it needs: passes without gradient, and the pass that it is compared with (`split`).

    With `label_smoothing` x the targets of training are smoothed (Szegedy et al. 2016, Section 7): the gold choice has
    1 - x, and x is spread evenly. For generative models that is over the vocabulary, as in transformers. For a span's
    start and end it is over the window's tokens, question and special tokens included: the heads of transformers, and
    here, give them all a probability, and [CLS] stands for no answer. Padding gets no mass. `nll` stays without it.
    """

    def __init__(self, qa: nn.Module, method: Method, seed: int, label_smoothing: float = 0.0):
        super().__init__()
        self.qa = qa
        self.method = method
        self.seed = seed
        self.label_smoothing = label_smoothing

    def parts(self, execution: str) -> list[int | None]:
        """The micro-steps of a batch, as `MicroStep.part` names them."""
        if execution == "joint":
            return [None]
        return list(range(len(split(self.method.passes(0.0)))))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The model's trained parameters, then the method's, if it has any: the order of `parameters()`."""
        modules = self.qa, self.method
        groups = [{"params": [weight for weight in module.parameters() if weight.requires_grad]} for module in modules]
        if self.method.learning_rate is not None:
            groups[1]["lr"] = self.method.learning_rate
        return [group for group in groups if group["params"]]

    def passes(self, step: MicroStep) -> list[tuple[Pass, Key | None]]:
        """The passes of a micro-step, each with the key of its noise if it is perturbed."""
        return passes_of(self.method, step, self.seed)

    def forward(self, batch: Batch, step: MicroStep | None = None) -> Any:
        """What `loss` returns; without a step, what the model's `predict` returns. DeepSpeed casts and gathers weights
        only around the `forward` of the whole module."""
        if step is None:
            return self.qa.predict(batch)
        return self.loss(batch, step)

    def loss(self, batch: Batch, step: MicroStep) -> tuple[Tensor, PassState, Statistics]:
        """Runs the passes of a micro-step.

        Returns:
            The loss (0-dim); what the next micro-step needs; and statistics by name, as detached scalars. These are
            weighted like the loss, so that their mean over micro-batches and ranks is that of the global batch.
        """
        passes = self.passes(step)
        is_noisy = any(key for _, key in passes)
        layers = any(pass_.hidden_distance_weight for pass_, _ in passes)
        loss = torch.zeros((), device=batch.input_ids.device)
        carried = step.carried
        previous = None
        statistics: Statistics = {}
        for pass_, key in passes:
            if pass_.repeats_dropout:
                carried = repeat_dropout(carried, batch.input_ids.device)
            with torch.set_grad_enabled(torch.is_grad_enabled() and pass_.trains):
                read = Perturbed(self.qa.embed(batch))
                if key:
                    inputs = Inputs(read.embeddings, batch, *key, carried, partial(self._without_dropout, batch))
                    read = pass_.perturb(inputs)
                    statistics |= self._measure(read, inputs, step)  # while no activations are held
                elif not is_noisy:  # ZeRO-3 needs a gradient of every parameter of the method
                    loss = with_networks(loss, self.method, read.embeddings, self.qa.hidden_size)
                output = self.qa(read.embeddings, batch, hidden=pass_.keeps_hidden, layers=layers)
            if pass_.keeps_hidden:
                carried = replace(carried, hidden=output.hidden.detach())  # the paper's stop-gradient
            if pass_.trains:
                loss, measured = self._add_terms(loss, pass_, output, previous, read, batch)
                statistics |= measured
                if read.delta is not None:
                    carried = replace(carried, delta=read.delta)
            previous = output
        return loss, carried, statistics

    def _add_terms(
        self, loss: Tensor, pass_: Pass, output: QAOutput, previous: QAOutput | None, noise: Perturbed, batch: Batch
    ) -> tuple[Tensor, Statistics]:
        """The loss with the terms that a pass adds to it, and their statistics. `previous` is the output of the pass
        that it may be compared with."""
        nll = (output.nll * batch.weight).sum()
        statistics = {f"nll_{pass_.name}": nll.detach()}
        if pass_.weight != 0:
            target = nll
            if self.label_smoothing:
                counted_NT = batch.attention_mask if batch.target_ids is None else None
                uniform = (uniform_nll(output, counted_NT) * batch.weight).sum()
                target = (1 - self.label_smoothing) * nll + self.label_smoothing * uniform
            loss = loss + pass_.weight * target
        if pass_.divergence_weight:
            divergence = (symmetric_divergence(output, previous) * batch.weight).sum()
            loss = loss + pass_.divergence_weight * divergence
            statistics["divergence"] = divergence.detach()
        if pass_.hidden_distance_weight:
            distance = (hidden_distance(output, previous, batch.attention_mask) * batch.weight).sum()
            loss = loss + pass_.hidden_distance_weight * distance
            statistics["hidden_distance"] = distance.detach()
        if noise.kl is not None:
            kl_N = noise.kl.sum(1)
            kl_per_token = (kl_N * batch.token_weight).sum()
            kl_per_window = (kl_N * batch.weight).sum()
            kl = kl_per_window if self.method.kl_reduction == "sum" else kl_per_token
            kl_weight = pass_.kl_weight
            if isinstance(kl_weight, Tensor):
                kl_weight = kl_weight.to(kl.dtype)
            loss = loss + kl_weight * kl
            statistics["kl_per_token"] = kl_per_token.detach()
            statistics["kl_per_window"] = kl_per_window.detach()
            if pass_.weight != 0:
                statistics["beta"] = nll.new_zeros((), dtype=torch.double) + pass_.kl_weight / pass_.weight
        return loss, statistics

    def _measure(self, noise: Perturbed, inputs: Inputs, step: MicroStep) -> Statistics:
        """What the noise does, and `unperturbed`: 1 if it changes no embedding (`NO_NOISE`), else 0."""
        batch = inputs.batch
        changed_NT1 = (noise.embeddings != inputs.embeddings).any(-1, keepdim=True) & inputs.mask.bool()
        statistics = {"unperturbed": 1 - changed_NT1.any().float()}
        values: Statistics = {}
        if step.compare:
            values |= noise.compare()
        if step.measure:
            statistics |= words_changed(self.qa, inputs, noise.embeddings)
            if noise.kl is not None:
                # what a KL per window is judged by: naming the start and the end of an answer among the tokens
                values["span_nats"] = 2 * batch.attention_mask.sum(1).log()
            values |= noise.measure()
        for name, value in values.items():
            share = batch.weight
            if value.dim() == 2:
                share = batch.attention_mask * batch.token_weight[:, None]
            statistics[name] = (value * share).sum()
        return statistics

    def _without_dropout(self, batch: Batch, embeddings: Tensor) -> QAOutput:
        with without_dropout(self.qa):
            return self.qa(embeddings, batch, hidden=True)
