"""What a QA model makes of a batch, the same for spans and for generated answers."""

from typing import NamedTuple

import torch
from torch import Tensor


class QAOutput(NamedTuple):
    """Of N windows, each with K predictions among V choices.

    Extractive: K = 2 (start, end) and V = T positions; generative: K target tokens and V words.

    nll: [N], -log p(y | e): the mean of a window's K cross-entropies.
    logits: [N, K, V].
    shares: [N, K], weights of a window's predictions; they sum to 1.
    hidden: h [N, T, hidden], the encoder's last hidden state, or None where not asked for.
    """

    nll: Tensor
    logits: Tensor
    shares: Tensor
    hidden: Tensor | None = None


def symmetric_divergence(one: QAOutput, other: QAOutput) -> Tensor:
    """(KL(p || q) + KL(q || p)) / 2 in nats, [N]: of each prediction's distributions, weighted by their shares."""
    precision = torch.promote_types(one.logits.dtype, torch.float32)
    log_p, log_q = (reading.logits.to(precision).log_softmax(-1) for reading in (one, other))
    # both sums at once: sum_v (p - q) (log p - log q)
    divergence_NK = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2
    return (divergence_NK * one.shares).sum(-1)
