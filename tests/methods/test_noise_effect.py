"""What noise does, against plain loops, NumPy and plain PyTorch; and that measuring it changes nothing."""

from collections import Counter
from dataclasses import replace
from unittest import mock

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.methods import METHODS, noise_effect
from swep_ds.methods.base import Pass, Perturbed
from swep_ds.methods.settings import SwepSettings
from tests.support import methods_reference, tiny_batches, tiny_objective
from tests.support.tiny_objective import JOINT, MEASURED, SEED, UPDATE, away_from_the_prior, inputs, objective, windows

MEASURING = [(method, {}) for method in sorted(set(METHODS) - {"mle", "ssmba", "r_drop"})]
MEASURING += [("swep", {"architecture": "t5", "noise": "shuffled"}), ("swep", {"separate_hidden_pass": True})]


@pytest.mark.parametrize(("method", "settings"), MEASURING)
def test_measuring_changes_nothing(method, settings):
    """Loss, gradients, mode and random state bit by bit, with dropout."""
    batch, seen = windows(settings.get("architecture", "bert")), []
    for measured in (False, True):
        module = objective(method, dropout=0.1, **settings)
        torch.manual_seed(3)
        losses, statistics = [], {}
        for loss, _, values in tiny_objective.split(module, batch, measure=measured):
            losses.append(loss.item())
            loss.backward()
            statistics |= values
        assert ("words_changed" in statistics) == measured
        assert ("guess_nll_shuffled" in statistics) == (measured and method == "swep")
        assert all(part.training for part in module.modules())
        gradients = [None if p.grad is None else p.grad.tolist() for p in module.parameters()]
        seen.append((losses, torch.get_rng_state().tolist(), gradients))
    assert seen[0] == seen[1]


@hypothesis.settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 30))
def test_the_nearest_word_is_that_of_a_loop(seed, chunk, vocabulary):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(vocabulary, 4))
    vectors = np.stack([rng.normal(size=(9, 4)), np.zeros((9, 4))])  # all words are equally near to zero
    with mock.patch.object(noise_effect, "CHUNK", chunk):
        words = noise_effect.nearest(torch.from_numpy(vectors), torch.from_numpy(table).__getitem__, vocabulary)
    assert words.tolist() == (vectors @ table.T).argmax(-1).tolist()


@pytest.mark.parametrize("architecture", ["electra", "bart"])
def test_the_share_is_of_the_real_tokens(architecture):
    """A batch of fewer tokens than are measured: all of them, with the same noise drawn again."""
    module, batch = objective("prior_aug", architecture, prior_variance=4.0), windows(architecture)
    _, _, statistics = module(batch, MEASURED)
    seen = []
    module.qa.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].detach().numpy()))
    module(batch, JOINT)
    every_word = batch._replace(input_ids=torch.arange(64)[None])
    table, mask = module.qa.embed(every_word)[0].detach().numpy(), batch.attention_mask.numpy() == 1
    words = table[batch.input_ids.numpy()[mask]]
    changed = [[any(v @ row > v @ word for row in table) for v, word in zip(e[mask], words, strict=True)] for e in seen]
    clean, noisy = np.mean(changed, 1)
    assert statistics["words_changed"].item() == pytest.approx(noisy)
    assert statistics["words_changed_clean"].item() == pytest.approx(clean)
    assert noisy > clean


def test_of_many_tokens_the_part_that_is_measured_is_of_all_positions_and_windows():
    """Two micro-batches of one global batch; embeddings from position 20 on turn around, to another nearest word."""
    module = objective("mle")
    sign = torch.where(torch.arange(60) < 20, 1.0, -1.0)[:, None]
    module.method.passes = lambda _: [Pass("noisy", 1.0, lambda inputs: Perturbed(inputs.embeddings * sign))]
    every_word = tiny_batches.batch((60,))._replace(input_ids=torch.arange(64)[None])
    table = module.qa.embed(every_word)[0].detach().numpy()
    products = table @ table.T
    another, turned = ((sign * products).max(1) > sign * products.diagonal() for sign in (1, -1))
    lengths = [(60,) * 20, (16,) * 60 + (60,) * 60]
    total, share, expected = sum(map(sum, lengths)), 0.0, 0.0
    for number, counts in enumerate(lengths):
        batch = tiny_batches.batch(counts, seed=number)
        for ids, length in zip(batch.input_ids.numpy(), counts, strict=True):
            expected += (another[ids[: min(20, length)]].sum() + turned[ids[20:length]].sum()) / total
        weight = torch.full((len(counts),), 1 / total, dtype=torch.float64)
        batch = batch._replace(token_weight=weight, sample_id=batch.sample_id + 1000 * number)
        share += module(batch, MEASURED)[2]["words_changed"].item()
    assert share == pytest.approx(expected, abs=0.05)  # 3 deviations of two shares of 512


@pytest.mark.parametrize(
    ("architecture", "noise"), [("bert", "no_eps"), ("electra", "learned"), ("bert", "additive"), ("t5", "fixed_sigma")]
)
def test_it_is_the_nll_under_the_three_kinds_of_noise(architecture, noise):
    settings = {"noise_dropout": 0.3, "noise": noise, "prior_variance": 0.3}
    module = away_from_the_prior(objective("swep", architecture, dropout=0.3, **settings))
    batch, expected = windows(architecture), Counter()
    got = module(batch, MEASURED)[2]
    module.eval()  # the reference needs no other precaution against dropout
    for window in methods_reference.windows(module.qa.model, batch, SEED, UPDATE):
        clean = window.read(window.words())
        guess = clean.answers.probs.argmax(-1)
        learned = module.method.noise(clean.states[-1])
        moved = methods_reference.shuffled(SEED, UPDATE, int(window.batch.sample_id), window.length, 12)
        for name, parameters in {"learned": learned, "shuffled": learned[:, moved], "prior": 0 * learned}.items():
            noisy, _ = methods_reference.under_noise(window, SwepSettings(**settings), parameters)
            expected[f"gold_nll_{name}"] += noisy.nll.item() / 3
            expected[f"guess_nll_{name}"] -= noisy.answers.log_prob(guess).mean().item() / 3
    assert {name: got[name].item() for name in got if "_nll_" in name} == pytest.approx(dict(expected), rel=1e-6)
    assert len({round(value, 9) for value in expected.values()}) == len(expected)


def test_a_shuffle_leaves_padding_where_it_is_and_every_window_has_its_own():
    batch = tiny_batches.batch((6, 12, 9, 7))
    left = batch._replace(attention_mask=batch.attention_mask.flip(1))  # padding on the left
    given = inputs(objective("swep"), left, UPDATE)
    values = torch.arange(4 * 12.0).view(4, 12, 1)
    for row, mask in zip(noise_effect.shuffle(values, given)[:, :, 0], left.attention_mask.bool(), strict=True):
        assert torch.equal(row[~mask], torch.arange(12.0)[~mask] + row[0] - row[0] % 12)
        assert torch.equal(row[mask].sort().values % 12, torch.arange(12.0)[mask])
    alike = replace(given, batch=batch._replace(attention_mask=torch.ones_like(batch.attention_mask)))
    orders = noise_effect.shuffle(values - values[:, :1], alike)[:, :, 0]
    assert len({tuple(row) for row in orders.tolist()}) == 4  # every window has an order of its own
