"""What SWEP's settings do: initialisation, beta's schedule, the note on collapsed noise."""

import math
import re

import numpy as np
import pytest
import torch

from swep_ds.methods.base import Inputs, MicroStep, Perturbed
from swep_ds.methods.noise_effect import noise_statistics
from swep_ds.methods.settings import SwepSettings
from swep_ds.methods.swep import NoiseGenerator, Swep
from tests.support import tiny_batches
from tests.support.fork_server import ROOT
from tests.support.tiny_objective import MEASURED, away_from_the_prior, objective


@pytest.mark.parametrize("mean", [1.0, 0.0])
def test_the_generator_starts_at_the_prior_or_as_pytorch_does_with_the_papers_number_of_parameters(mean):
    hidden = torch.randn(5, 7, 24)
    assert NoiseGenerator(SwepSettings(), 24, 16)(hidden).abs().max() < 0.02
    torch.manual_seed(0)
    settings = SwepSettings(initialisation="default", prior_variance=0.3, noise_dropout=0.4)
    module = NoiseGenerator(settings, 24, 16, mean)
    mu, log_variance = module(hidden).chunk(2, -1)
    torch.manual_seed(0)
    layers = (torch.nn.Linear(24, 16), torch.nn.ReLU(), torch.nn.Dropout(0.4), torch.nn.Linear(16, 32))
    expected = torch.nn.Sequential(*layers)(hidden)
    torch.testing.assert_close(torch.cat([mean + mu, math.log(0.3) + log_variance], -1), expected)
    square = NoiseGenerator(SwepSettings(), 48, 48)
    assert sum(p.numel() for p in square.parameters()) == 3 * 48**2 + 3 * 48


def test_schedules_of_beta():
    half = {"linear_to_zero": [1.0, 0.51, 0.5, 0.01], "zero_in_second_half": [1.0, 1.0, 0.0, 0.0]}
    for schedule, expected in half.items():
        module = Swep(SwepSettings(beta=2.0, beta_schedule=schedule), 16, 16)
        weights = [module.passes(progress)[-1].kl_weight for progress in (0.0, 0.49, 0.5, 0.99)]
        assert weights == pytest.approx(expected)  # (1 - lambda) * beta


def test_a_target_is_in_the_unit_of_the_kl_that_is_weighed():
    for reduction, watched in (("sum", "kl_per_window"), ("mean", "kl_per_token")):
        module = Swep(SwepSettings(beta=1e-3, kl_target=20, kl_reduction=reduction), 16, 16)
        assert module.watches == watched
        assert module.passes(0.9)[-1].kl_weight.item() == pytest.approx(5e-4)  # (1 - lambda) * beta
        module.observe(torch.tensor(100.0))
        assert module.passes(0.9)[-1].kl_weight.item() > 1e-3
    assert Swep(SwepSettings(), 16, 16).watches is None


def test_the_page_says_what_a_dose_does_to_sigma_and_mu():
    """For a window of 170 tokens, by torch.distributions; near the prior the spreads tell the KL."""
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").replace("−", "-")
    rows = re.findall(r"^\| ([\d,]+) \| (.*%) \|$", page, re.MULTILINE)
    assert [row[0] for row in rows] == ["20", "200", "2,000", "20,000"]
    prior = torch.distributions.Normal(1.0, 0.1**0.5)
    for nats, said in rows:
        percent = np.array(re.findall(r"[-+]?[\d.]+(?= )", said.replace("± ", "")), dtype=float).reshape(2, 3) / 100
        for d, (low, high, mu) in zip((384, 768), percent, strict=True):
            for shift, scale in ((0.0, 1 + low), (0.0, 1 + high), (mu, 1.0)):
                noise = torch.distributions.Normal(1 + shift * prior.scale, scale * prior.scale)
                kl = 170 * d * torch.distributions.kl_divergence(noise, prior).item()
                assert kl == pytest.approx(float(nats.replace(",", "")), rel=0.09)  # the page rounds to 0.1 %
    parameters = torch.cat([torch.full((1, 1, 8), 0.021 * prior.scale), torch.full((1, 1, 8), 2 * math.log(1.018))], -1)
    spread = {name: value.item() for name, value in noise_statistics(parameters, 0.1, "learned").items()}
    noise = torch.distributions.Normal(1 + 0.021 * prior.scale, prior.scale * 1.018)
    kl = torch.distributions.kl_divergence(noise, prior).item()
    assert spread["sigma_spread"] + spread["mu_spread"] / 2 == pytest.approx(kl, rel=0.02)


def test_the_log_says_where_the_kl_of_a_window_names_no_span():
    module = Swep(SwepSettings(), 16, 16)
    below, above = ({"kl_per_window": kl, "span_nats": 10.6} for kl in (1.2, 79.0))
    assert module.remark(below, 0.05) is None  # it starts there
    assert "the KL is 1.2 nats per window, and naming an answer span takes 10.6" in module.remark(below, 0.1)
    varied = below | {"sigma_spread": 0.0175, "mu_spread": 0.021}
    assert "1.2 nats per window (sigma varies by +- 1.8 %, mu by +- 2.1 % of the prior's" in module.remark(varied, 0.1)
    assert module.remark(above, 0.5) is None
    held = Swep(SwepSettings(kl_target=20.0), 16, 16)
    for kl, silent in ((5.1, True), (4.9, False)):  # it swings around its target
        assert (held.remark(below | {"kl_per_window": kl}, 0.5) is None) is silent
    per_token = Swep(SwepSettings(kl_target=20.0, kl_reduction="mean"), 16, 16)
    assert per_token.remark(below | {"kl_per_window": 8.0, "kl_per_token": 0.05}, 0.5)


@pytest.mark.parametrize("kl", [0.01, None])
def test_noise_of_another_kind_need_measure_nothing(kl, monkeypatch):
    def perturb(self, inputs: Inputs) -> Perturbed:
        kl_NT = None if kl is None else kl * inputs.batch.attention_mask.double()
        return Perturbed(inputs.embeddings + 0 * self.noise(inputs.carried.hidden).sum(), kl_NT)

    monkeypatch.setattr(Swep, "_perturb", perturb)
    module = objective("swep")
    _, _, statistics = module(tiny_batches.batch(), MEASURED)
    assert ("span_nats" in statistics) is (kl is not None)
    assert bool(module.method.remark(statistics, 0.5)) is (kl is not None)
    expected = {} if kl is None else {"kl_per_window": kl * np.mean([12, 7, 9])}
    logged = {name: value.item() for name, value in statistics.items() if name == "kl_per_window"}
    assert logged == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("noise", ["additive", "fixed_mu", "fixed_sigma", "no_eps"])
def test_ablations_start_at_their_prior_and_log_what_they_learn(noise):
    module, batch = objective("swep", noise=noise, prior_variance=0.3), tiny_batches.batch()
    _, _, statistics = module(batch, MEASURED)
    sigma, mu = {"sigma", "sigma_spread"}, {"mu", "mu_distance", "mu_spread"}
    learned = {"additive": mu | sigma, "fixed_mu": sigma}.get(noise, mu)
    learned |= {"words_changed", "words_changed_clean"}
    ignored = {"nll_clean", "nll_noisy", "kl_per_token", "kl_per_window", "beta", "span_nats", "unperturbed"}
    assert {name for name in statistics.keys() - ignored if "_nll_" not in name} == learned
    # KL(N(1, 1) || N(1, alpha)) per dimension, where sigma is fixed at 1
    d = module.qa.embedding_size
    expected = d * (1 / 0.3 - 1 + np.log(0.3)) / 2 if noise == "fixed_sigma" else 0.0
    assert statistics["kl_per_token"].item() == pytest.approx(expected, abs=0.01)
    if "mu" in learned:
        assert statistics["mu"].item() == pytest.approx(0.0 if noise == "additive" else 1.0, abs=0.01)


def test_adversarial_noise_raises_the_nll_at_the_kl_of_the_noise_that_lowers_it():
    """The generators of a fixed model and batch; the KL counts over the last 20 of 120 updates."""
    gained = {}
    for adversarial in (False, True):
        module, batch = objective("swep", beta=1e-4, kl_target=60.0, adversarial=adversarial), tiny_batches.batch()
        optimizer = torch.optim.Adam(module.method.parameters(), lr=5e-3)
        seen = []
        for update in range(120):
            optimizer.zero_grad()
            loss, _, statistics = module(batch, MicroStep(update, compare=update >= 115))
            loss.backward()
            module.method.observe(statistics["kl_per_window"])
            optimizer.step()
            seen.append(statistics)
        assert np.mean([line["kl_per_window"].item() for line in seen[-20:]]) == pytest.approx(60, rel=0.2)
        changes = [(line["gold_nll_learned"] - line["gold_nll_prior"]).item() for line in seen[-5:]]
        gained[adversarial] = np.mean(changes)
    assert gained[False] < 0 < gained[True]


def test_statistics_of_the_noise():
    module, batch = objective("swep", prior_variance=0.3, beta=0.7, mle_weight=0.3), tiny_batches.batch()
    away_from_the_prior(module)
    _, carried, statistics = module(batch, MEASURED)
    mu, log_variance = module.method.noise(carried.hidden)[batch.attention_mask.bool()].chunk(2, -1)
    mu, log_variance = 1 + mu, np.log(0.3) + log_variance
    variance = log_variance.exp()
    kl = 0.5 * ((variance + (mu - 1) ** 2) / 0.3 - 1 - torch.log(variance / 0.3))
    expected = {
        "mu": mu.mean(),
        "mu_distance": (mu - 1).abs().mean(),
        "sigma": variance.sqrt().mean(),
        "mu_spread": ((mu - 1) ** 2 / 0.3).mean(),  # the log has the root
        "sigma_spread": ((variance.sqrt() / 0.3**0.5 - 1) ** 2).mean(),
        "kl_per_token": kl.sum(-1).mean(),
        "kl_per_window": kl.sum() / len(batch.input_ids),
        "span_nats": 2 * np.log([12, 7, 9]).mean(),
        "beta": 0.7,
    }
    for name, value in expected.items():
        assert statistics[name].item() == pytest.approx(float(value), rel=1e-6), name
