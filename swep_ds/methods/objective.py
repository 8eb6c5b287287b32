"""The module under the engine: a QA model, a method, and the loss of its passes."""

import torch
from torch import Tensor, nn

from swep_ds.data.batches import Batch
from swep_ds.methods.base import Method, NoiseKey, Pass, Perturbed

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
        return 1 if execution == "joint" else sum(one.weight > 0 for one in self.method.passes(0.0))

    def forward(
        self,
        batch: Batch,
        update: int | None = None,
        progress: float = 0.0,
        micro_step: int | None = None,
        hidden: Tensor | None = None,
        measure_noise: bool = False,
    ) -> tuple:
        """Loss of a micro-step, or the plain model's logits where no update is named.

        Args:
            update: number of the update; keys the noise.
            progress: share of all updates already done, for schedules.
            micro_step: which part of `split` execution to run; None = all passes (`joint`).
            hidden: h [N, T, hidden] that the micro-step before handed on, detached.
            measure_noise: whether to add the learned noise's statistics (see `noise_statistics`).

        Returns:
            (loss, h for the next micro-step or None, statistics by name as detached scalars), every statistic
            weighted like the loss: its mean over micro-batches and ranks is its mean over the global batch.
            Without `update`: (start logits [N, T], end logits [N, T]).
        """
        if update is None:
            return self.qa.logits(batch)
        passes = list(enumerate(self.method.passes(progress)))
        draws = update * len(passes)
        if micro_step is not None:
            passes = _split(passes)[micro_step]
        loss = torch.zeros((), device=batch.input_ids.device)
        statistics: Statistics = {}
        uses_parameters = False
        for index, one in passes:
            with torch.set_grad_enabled(torch.is_grad_enabled() and one.weight > 0):
                embeddings, noise = self.qa.embed(batch), None
                if one.perturb is not None:
                    noise = one.perturb(embeddings, batch, hidden, NoiseKey(self.seed, draws + index))
                    embeddings = noise.embeddings
                nll_N, states = self.qa(embeddings, batch, hidden=one.keeps_hidden)
            if one.keeps_hidden:
                hidden = states.detach()
            if one.weight == 0:
                continue
            nll = (nll_N * batch.weight).sum()
            loss = loss + one.weight * nll
            statistics[f"nll_{one.name}"] = nll.detach()
            if noise is not None and noise.kl is not None:
                loss = loss + one.kl_weight * self._kl(noise.kl, batch)
                statistics["kl_per_token"] = (noise.kl.detach().sum(1) * batch.token_weight).sum()
            if noise is not None and noise.parameters is not None:
                uses_parameters = True
                if measure_noise:
                    statistics |= noise_statistics(noise, batch)
        if not uses_parameters and hidden is not None:
            idle = self.method.idle(hidden)
            loss = loss if idle is None else loss + idle
        return loss, hidden, statistics

    def _kl(self, kl_NT: Tensor, batch: Batch) -> Tensor:
        factor = batch.weight if self.method.kl_reduction == "sum" else batch.token_weight
        return (kl_NT.sum(1) * factor).sum()


@torch.no_grad()
def noise_statistics(noise: Perturbed, batch: Batch) -> Statistics:
    """Means over the update's tokens and d of mu, |mu - 1| and sigma."""
    size = noise.embeddings.shape[-1]
    share_NT = batch.attention_mask * batch.token_weight[:, None] / size
    mu, log_variance = noise.parameters.float().split(size, -1)
    return {
        "mu": (mu.sum(-1) * share_NT).sum(),
        "mu_distance": ((mu - 1).abs().sum(-1) * share_NT).sum(),
        "sigma": ((log_variance / 2).exp().sum(-1) * share_NT).sum(),
    }


def _split(numbered: list[tuple[int, Pass]]) -> list[list[tuple[int, Pass]]]:
    """Groups numbered passes so that each group ends with its one weighted pass."""
    groups: list[list[tuple[int, Pass]]] = [[]]
    for index, one in numbered:
        groups[-1].append((index, one))
        if one.weight > 0:
            groups.append([])
    return groups[:-1]
