"""SWEP's objective is a lower bound of the log likelihood: log p(y | x) >= E_q[log p(y | x, z)] - KL(q || p)."""

import math

import numpy as np
import pytest
import torch

from swep_ds.kernels import perturb
from tests.support import tiny_batches
from tests.support.tiny_objective import JOINT, objective

ALPHA, NOISE_VARIANCE = 0.1, 0.3
DRAWS, WINDOWS = 4000, 800  # for the closed form, for the model


def log_normal(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return -0.5 * (np.log(2 * math.pi * variance) + (y - mean) ** 2 / variance)


@pytest.mark.parametrize("kind", ["posterior", "prior", "another"])
def test_the_bound_holds_and_is_tight_for_the_posterior(kind):
    """y ~ N(e * z, s I), z ~ N(1, alpha I): evidence and posterior are Gaussian. The gap is KL(q || posterior)."""
    rng, d = np.random.default_rng(0), 8
    e, y = rng.normal(size=d), rng.normal(size=d)
    evidence = log_normal(y, e, e**2 * ALPHA + NOISE_VARIANCE).sum()
    posterior_variance = 1 / (1 / ALPHA + e**2 / NOISE_VARIANCE)
    posterior_mean = posterior_variance * (1 / ALPHA + e * y / NOISE_VARIANCE)
    mean, variance = {
        "posterior": (posterior_mean, posterior_variance),
        "prior": (np.ones(d), np.full(d, ALPHA)),
        "another": (1 + 0.5 * rng.normal(size=d), ALPHA * rng.uniform(0.2, 3, size=d)),
    }[kind]
    params = torch.from_numpy(np.concatenate([mean - 1, np.log(variance / ALPHA)])).expand(DRAWS, 1, 2 * d)
    embeddings, mask = torch.from_numpy(e).expand(DRAWS, 1, d), torch.ones(DRAWS, 1, dtype=torch.int64)
    noisy, kl = perturb(embeddings, params, mask, torch.arange(DRAWS), seed=5, draw=0, prior_variance=ALPHA)
    log_likelihoods = log_normal(y, noisy[:, 0].numpy(), np.array(NOISE_VARIANCE)).sum(1)
    bound = log_likelihoods.mean() - kl[0, 0].item()
    error = log_likelihoods.std() / math.sqrt(DRAWS)
    ratio = variance / posterior_variance
    gap = 0.5 * (ratio + (mean - posterior_mean) ** 2 / posterior_variance - 1 - np.log(ratio)).sum()
    assert evidence - bound == pytest.approx(gap, abs=4 * error)
    assert abs(gap) < 1e-12 if kind == "posterior" else gap > 10 * error


def test_beta_of_one_half_makes_swep_a_bound_for_spans():
    """The nll is a mean over start and end: -2 (nll + KL / 2) bounds log E_prior[p(start, end | e z)] from below."""
    window = tiny_batches.batch((7,))
    batch = type(window)(*(None if t is None else t.expand(WINDOWS, *t.shape[1:]) for t in window))
    weight = torch.full((WINDOWS,), 1 / WINDOWS, dtype=torch.float64)
    batch = batch._replace(sample_id=torch.arange(WINDOWS), weight=weight, token_weight=weight / 7)
    prior = objective("prior_aug", mle_weight=0.0)
    with torch.no_grad():
        nll_N = []
        prior.qa.register_forward_hook(lambda _, arguments, output: nll_N.append(output.nll))
        prior(batch, JOINT)
        evidence = (torch.logsumexp(-2 * nll_N[0], 0) - math.log(WINDOWS)).item()
        gaps = {}
        for distance in (0.0, 0.02, 0.1):
            swep = objective("swep", mle_weight=0.0, beta=0.5)
            swep.qa.load_state_dict(prior.qa.state_dict())
            torch.nn.init.normal_(swep.method.noise.difference.weight, std=distance)
            loss, _, statistics = swep(batch, JOINT)
            expected = statistics["nll_noisy"] + statistics["kl_per_window"] / 2
            assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
            gaps[distance] = evidence + 2 * loss.item()
    assert 0 < gaps[0.0] < gaps[0.02] < gaps[0.1]  # each -2 loss is below the evidence
    assert gaps[0.0] < 0.1  # the prior is close to this model's posterior
