"""The terms of losses, of logits and states in any precision, against torch.distributions in float64."""

import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from torch.testing import assert_close

from swep_ds.data.batches import IGNORED
from swep_ds.models.outputs import QAOutput, answer_nll, hidden_distance, symmetric_divergence, uniform_nll

SHARES = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])  # the first window has two predictions
TARGETS = torch.tensor([[1, 4, IGNORED], [0, 6, 3]])


def output(seed: int, dtype: torch.dtype) -> QAOutput:
    """2 windows of 3 predictions among 7 choices and 5 tokens, in a model of 2 layers of width 4."""
    torch.manual_seed(seed)
    logits = 5 * torch.randn(2, 3, 7)
    layers = tuple(3 * torch.randn(2, 5, 4) for _ in range(2))
    return QAOutput(torch.zeros(2), logits.to(dtype), SHARES, layers=tuple(layer.to(dtype) for layer in layers))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_term_is_computed_in_half_precision_and_none_counts_padding(dtype):
    first, second = output(0, dtype), output(1, dtype)
    p, q = (Categorical(logits=given.logits.double()) for given in (first, second))
    log_p = p.logits

    expected = torch.where(TARGETS == IGNORED, 0.0, -p.log_prob(TARGETS.clamp(min=0)))
    assert_close(answer_nll(first.logits, TARGETS).double(), expected, rtol=1e-5, atol=0)

    divergence = (kl_divergence(p, q) + kl_divergence(q, p)) / 2
    assert_close(symmetric_divergence(first, second).double(), (divergence * SHARES).sum(1), rtol=1e-5, atol=0)

    assert_close(uniform_nll(first, None).double(), -(log_p.mean(-1) * SHARES).sum(1), rtol=1e-5, atol=0)
    counted = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1] * 7])
    means = torch.stack([log_p[0, :, :4].mean(-1), log_p[1].mean(-1)])
    assert_close(uniform_nll(first, counted).double(), -(means * SHARES).sum(1), rtol=1e-5, atol=0)

    mask = torch.tensor([[1, 1, 1, 0, 0], [1] * 5])
    pairs = zip(first.layers, second.layers, strict=True)
    lengths = torch.stack([(a.double() - b.double()).norm(dim=-1) ** 2 for a, b in pairs]).mean(0)
    expected = torch.stack([lengths[0, :3].mean(), lengths[1].mean()])
    assert_close(hidden_distance(first, second, mask).double(), expected, rtol=1e-5, atol=0)
