"""The published code's three-pass update, as a baseline for the benchmark: plain PyTorch in float32, without an engine.

h comes from a pass of its own, without gradient but with dropout; then the noisy pass, then the clean one; the losses
are summed and go backward once. Clipping at 1, prior variance sqrt(p / (1 - p)) for p = 0.1, the KL a mean over the
batch's tokens, noise from torch.randn. Only AdamW is faster than in the published code: it is fused.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from swep_ds.data.batches import Batch
from swep_ds.training.settings import TrainSection

PRIOR_VARIANCE = math.sqrt(0.1 / 0.9)


class Published(nn.Module):
    """The loss of an update of `qa`, a model of `swep_ds.models`."""

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


def plain_update(objective: nn.Module, train: TrainSection) -> Callable[[Batch, int], None]:
    """A whole update in plain PyTorch."""
    objective.train()
    adam = {"lr": train.learning_rate, "betas": train.adam_betas, "eps": train.adam_epsilon, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(objective.parameters(), **adam, fused=True)

    def update(batch: Batch, number: int) -> None:
        objective(batch).backward()
        nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update
