"""The published procedure's loss against its formulas, and its batches."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from swep_ds.benchmarks.published import Published, random_batches
from swep_ds.models.extractive import ExtractiveQA
from tests.data.test_batches import ranks, windows
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


def test_its_batches_are_the_same_windows_each_padded_to_its_own_longest():
    [batches] = ranks(windows(60), micro=4)
    random = random_batches(batches)
    numbers = range(batches.updates_per_epoch)
    rows = np.concatenate([random[number].sample_id for number in numbers])
    assert sorted(rows) == list(range(60))
    assert rows.tolist() != np.concatenate([batches.windows(number) for number in numbers]).tolist()
    for number in numbers:
        rows = random[number].sample_id
        assert random[number].input_ids.shape == (4, max(batches.lengths[row] for row in rows))

    def padding(of) -> float:
        return 1 - sum(of[k].attention_mask.sum() for k in numbers) / sum(of[k].input_ids.numel() for k in numbers)

    assert padding(random) > padding(batches)
