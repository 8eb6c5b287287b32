"""Words that a perturbation changes: against plain loops, and without a trace in training."""

from unittest import mock

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.methods import METHODS, noise_effect
from swep_ds.methods.base import Method, Pass, Perturbed
from swep_ds.methods.objective import Objective
from tests.support import tiny_batches
from tests.support.tiny_objective import JOINT, MEASURED, SEED, objective, split

PERTURBING = sorted(set(METHODS) - {"mle", "ssmba", "r_drop"})


def by_loop(vector: np.ndarray, word: int, table: np.ndarray) -> bool:
    return any(vector @ row > vector @ table[word] for row in table)


@hypothesis.settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 30))
def test_the_nearest_word_is_that_of_a_loop(seed, chunk, vocabulary):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(vocabulary, 4))
    vectors = np.stack([rng.normal(size=(9, 4)), np.zeros((9, 4))])  # all words are equally near to zero
    with mock.patch.object(noise_effect, "CHUNK", chunk):
        words = noise_effect.nearest(torch.from_numpy(vectors), torch.from_numpy(table).__getitem__, vocabulary)
    assert words.tolist() == (vectors @ table.T).argmax(-1).tolist()


MEASURING = [(method, {}) for method in PERTURBING]
MEASURING += [("swep", {"architecture": "t5", "noise": "shuffled"}), ("swep", {"separate_hidden_pass": True})]


@pytest.mark.parametrize(("method", "settings"), MEASURING)
def test_measuring_changes_nothing(method, settings):
    """Loss, gradients, mode and random state bit by bit, with dropout."""
    batch, seen = tiny_batches.batch(), []
    if "architecture" in settings:
        batch = tiny_batches.generative()
    for measured in (False, True):
        module = objective(method, dropout=0.1, **settings)
        torch.manual_seed(3)
        losses, statistics = [], {}
        for loss, _, values in split(module, batch, measure=measured):
            losses.append(loss.item())
            loss.backward()
            statistics |= values
        assert ("words_changed" in statistics) == measured
        assert ("guess_nll_shuffled" in statistics) == (measured and method == "swep")
        assert all(part.training for part in module.modules())
        gradients = [None if p.grad is None else p.grad.tolist() for p in module.parameters()]
        seen.append((losses, torch.get_rng_state().tolist(), gradients))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("architecture", ["electra", "bart"])
def test_the_share_is_of_the_real_tokens(architecture):
    """A batch of fewer tokens than are measured: all of them, with the same noise drawn again."""
    generative = architecture == "bart"
    module = objective("prior_aug", architecture, prior_variance=4.0)
    batch = tiny_batches.generative() if generative else tiny_batches.batch()
    _, _, statistics = module(batch, MEASURED)
    seen = {}
    own_forward = module.qa.forward

    def keep(embeddings, *arguments, **options):
        seen[len(seen)] = embeddings.detach().numpy()
        return own_forward(embeddings, *arguments, **options)

    with mock.patch.object(module.qa, "forward", keep):
        module(batch, JOINT)
    every_word = batch._replace(input_ids=torch.arange(64)[None])
    table, mask = module.qa.embed(every_word)[0].detach().numpy(), batch.attention_mask.numpy() == 1
    words = batch.input_ids.numpy()[mask]
    clean, noisy = (np.mean([by_loop(v, w, table) for v, w in zip(seen[k][mask], words, strict=True)]) for k in (0, 1))
    assert statistics["words_changed"].item() == pytest.approx(noisy)
    assert statistics["words_changed_clean"].item() == pytest.approx(clean)
    assert noisy > clean


class Tail(Method):
    """Turns the embeddings of all tokens from position 20 on around, which are then nearest to another word."""

    def passes(self, progress):
        return [Pass("noisy", 1.0, lambda inputs: Perturbed(inputs.embeddings * self.sign(inputs.embeddings)))]

    def sign(self, embeddings):
        return torch.where(torch.arange(embeddings.shape[1]) < 20, 1.0, -1.0)[:, None]


def test_of_many_tokens_the_part_that_is_measured_is_of_all_positions_and_windows():
    """Two micro-batches of one global batch: 20 windows of 60 tokens, and 60 of 16 in front of 60 of 60."""
    module = Objective(objective("mle").qa, Tail(), SEED)
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
        changed, again = (module(batch, MEASURED)[2]["words_changed"].item() for _ in range(2))
        assert changed == again
        share += changed
    assert share == pytest.approx(expected, abs=0.05)  # 3 deviations of two shares of 512
