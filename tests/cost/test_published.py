"""The published procedure's loss against its formulas, and its batches."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from swep_ds.cost.published import Published
from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_models
from tests.support.tiny_batches import batch


@pytest.fixture
def published() -> Published:
    torch.manual_seed(3)
    return Published(ExtractiveQA(tiny_models.model("bert", dropout=0.0))).double().train()


def test_loss_and_gradient_are_those_of_the_formulas(published):
    windows, model = batch(), published.qa.model
    torch.manual_seed(5)
    published(windows).backward()

    words = model.get_input_embeddings()(windows.input_ids)
    rest = {"attention_mask": windows.attention_mask, "output_hidden_states": True}
    answer = {"start_positions": windows.start_position, "end_positions": windows.end_position}
    clean = model(inputs_embeds=words, **rest, **answer)
    mu, log_variance = published.method(clean.hidden_states[-1].detach()).chunk(2, -1)
    sigma = log_variance.exp().sqrt()
    torch.manual_seed(5)
    noisy = model(inputs_embeds=words * (mu + sigma * torch.randn_like(mu)), **rest, **answer)
    alpha = (0.1 / 0.9) ** 0.5
    kl_NTd = kl_divergence(Normal(mu, sigma), Normal(torch.ones_like(mu), torch.full_like(mu, alpha**0.5)))
    tokens = [kl_NTd[n, t].sum() for n, t in windows.attention_mask.nonzero().tolist()]
    expected = 0.5 * clean.loss + 0.5 * noisy.loss + sum(tokens) / len(tokens)

    torch.manual_seed(5)
    torch.testing.assert_close(published(windows), expected)
    parameters = [p for p in published.parameters() if p.grad is not None]
    for parameter, gradient in zip(parameters, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
