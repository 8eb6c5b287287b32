"""The module under the engine: a QA model, a method, and the loss of its passes."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from swep_ds.data.batches import Batch
from swep_ds.kernels.philox import noise_words
from swep_ds.methods.base import Inputs, Method, NoiseKey, Pass, PassState
from swep_ds.methods.nearest import is_another
from swep_ds.models.outputs import QAOutput, symmetric_divergence

Statistics = dict[str, Tensor]
# of a micro-batch, whose nearest words are looked for: as many as make so many products with the vocabulary, between
MEASURED_PRODUCTS, MEASURED_TOKENS = 2**22, (128, 512)


class Objective(nn.Module):
    """Runs a method's passes over a batch.

    One call makes one micro-step of the engine: all passes (`joint`), or one weighted pass together with the
    weightless ones right before it (`split`). Both leave the same gradients, to rounding.

    Attributes:
        defer_embedding_grad: whether in `split` execution the gradient of the word embeddings [N, T, d] waits for the
            last micro-step, which adds it to its own. Between micro-steps nobody then holds one of the whole table,
            half of a small encoder's parameters. Not where ZeRO divides gradients after every micro-step: there all
            parameters must have one.

    Args:
        qa: the model (`swep_ds.models`).
        method: whose passes are run.
        seed: of the run; keys the noise together with the update, the pass and the window.
    """

    def __init__(self, qa: nn.Module, method: Method, seed: int):
        super().__init__()
        self.qa, self.method, self.seed = qa, method, seed
        self.defer_embedding_grad = False

    def micro_steps(self, execution: str) -> int:
        """Engine micro-steps per batch."""
        return 1 if execution == "joint" else len(_split(self.method.passes(0.0)))

    def forward(
        self,
        batch: Batch,
        update: int | None = None,
        progress: float = 0.0,
        micro_step: int | None = None,
        carried: PassState | None = None,
        measure_noise: bool = False,
    ) -> tuple:
        """Loss of a micro-step, or the plain model's predictions where no update is named.

        Args:
            update: number of the update; keys the noise.
            progress: share of all updates already done, for schedules.
            micro_step: which part of `split` execution to run; None = all passes (`joint`).
            carried: what the micro-step before handed on; None in the first.
            measure_noise: whether to add the perturbations' own statistics (`Perturbed.measure`), and as
                `words_changed` the share of tokens whose perturbed embedding is nearest to another word
                (`nearest.is_another`), of a method with several perturbations after the last one. Beside it,
                `words_changed_clean` is the same before: in a table with rows of unequal length a long one can have
                larger products with a word than that word's own.

        Returns:
            (loss, what to carry on to the next micro-step, statistics by name as detached scalars), every statistic
            weighted like the loss: its mean over micro-batches and ranks is its mean over the global batch.
            Without `update`: what the model's `predict` gives.
        """
        if update is None:
            return self.qa.predict(batch)
        passes = self.method.passes(progress)
        groups = [range(len(passes))] if micro_step is None else _split(passes)
        numbered, ends = groups[micro_step or 0], micro_step in (None, len(groups) - 1)
        carried = carried or PassState()
        loss = torch.zeros((), device=batch.input_ids.device)
        statistics: Statistics = {}
        reading = None
        perturbs = any(passes[number].perturb for number in numbered)
        for number in numbered:
            one, before = passes[number], reading
            if one.repeats_dropout:
                carried = _repeat_dropout(carried, batch.input_ids.device)
            with torch.set_grad_enabled(torch.is_grad_enabled() and one.weight > 0):
                embeddings, noise = self.qa.embed(batch), None
                if self.defer_embedding_grad and embeddings.requires_grad:
                    embeddings, carried = _add_held(embeddings, carried) if ends else _hold_back(embeddings, carried)
                if one.perturb is not None:
                    key = NoiseKey(self.seed, update * len(passes) + number)
                    noise = one.perturb(Inputs(embeddings, batch, key, carried, partial(self._read, batch)))
                    if measure_noise:
                        statistics |= self._words_changed(embeddings, noise.embeddings, batch, key)
                    embeddings = noise.embeddings
                # before the encoder, where perturbations stand: ZeRO-3 keeps weights gathered between a forward and
                # its backward only if all micro-steps take the modules in the same order
                idle = None if perturbs else self.method.idle(embeddings)
                reading = self.qa(embeddings, batch, hidden=one.keeps_hidden)
            if one.keeps_hidden:
                carried = replace(carried, hidden=reading.hidden.detach())
            if one.weight == 0:
                continue
            nll = (reading.nll * batch.weight).sum()
            loss = loss + one.weight * nll
            if idle is not None:
                loss = loss + idle
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
            if measure_noise and noise.measure is not None:
                share_NT = batch.attention_mask * batch.token_weight[:, None]
                statistics |= {name: (value_NT * share_NT).sum() for name, value_NT in noise.measure().items()}
        return loss, carried, statistics

    def _read(self, batch: Batch, embeddings: Tensor) -> QAOutput:
        training = self.qa.training
        self.qa.eval()
        try:
            return self.qa(embeddings, batch, hidden=True)
        finally:
            self.qa.train(training)

    @torch.no_grad()
    def _words_changed(self, clean: Tensor, perturbed: Tensor, batch: Batch, key: NoiseKey) -> Statistics:
        """Of some hundred tokens, drawn by the key as the noise is: no generator's state changes."""
        positions = torch.arange(batch.input_ids.shape[1], device=clean.device)
        vocabulary = self.qa.model.get_input_embeddings().num_embeddings
        fewest, most = MEASURED_TOKENS
        count = min(max(MEASURED_PRODUCTS // vocabulary, fewest), most, batch.input_ids.numel())
        # not the noise's own key: Word-Dropout compares such numbers with its probability
        lots_NT = noise_words(~key.seed, key.draw, batch.sample_id[:, None], positions, 4)[0][..., 0]
        lots, drawn = lots_NT.masked_fill(batch.attention_mask == 0, -1).flatten().topk(count)
        own, real = batch.input_ids.flatten()[drawn], (lots >= 0).to(batch.token_weight.dtype)
        vectors = torch.stack([embeddings.detach().flatten(0, 1)[drawn] for embeddings in (perturbed, clean)])

        def look_up(ids: Tensor) -> Tensor:
            return self.qa.embed(batch._replace(input_ids=ids[None]))[0]

        another = is_another(vectors, own, look_up, vocabulary)
        weight = (batch.attention_mask.sum(1) * batch.token_weight).sum()  # of this micro-batch among all tokens
        after, before = weight * (another * real).sum(-1) / real.sum()
        return {"words_changed": after, "words_changed_clean": before}

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


def _hold_back(embeddings: Tensor, carried: PassState) -> tuple[Tensor, PassState]:
    """The leaf in their place that gathers their gradient."""
    leaf = embeddings.detach().requires_grad_() if carried.embeddings is None else carried.embeddings
    return leaf, replace(carried, embeddings=leaf)


def _add_held(embeddings: Tensor, carried: PassState) -> tuple[Tensor, PassState]:
    """The embeddings, whose gradient will have the held one added: once, of the passes of this micro-step."""
    if (leaf := carried.embeddings) is not None:
        embeddings.register_hook(lambda gradient: gradient + leaf.grad)
    return embeddings, replace(carried, embeddings=None)


def _repeat_dropout(carried: PassState, device: torch.device) -> PassState:
    """Sets the generator back to the state that is carried, or carries the present one."""
    generator = torch if device.type == "cpu" else torch.get_device_module(device)
    if carried.dropout is None:
        return replace(carried, dropout=generator.get_rng_state())
    generator.set_rng_state(carried.dropout)
    return carried
