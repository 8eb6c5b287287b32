"""The controller of the KL: its equations in NumPy, and what it does to generators that are slow to follow."""

import math

import numpy as np
import pytest
import torch

from swep_ds.methods.kl_control import KLController


@pytest.mark.parametrize("first", [5.0, 500.0])
def test_it_is_its_equations_and_continues_from_its_state(first):
    control, kls = KLController(20.0, 1e-4), np.random.default_rng(0).lognormal(2.0, 3.0, 200)
    mean, recent, theta = 20.0, 500.0 if first > 20 else 0.0, math.log(1e-4)
    assert control.beta.item() == pytest.approx(1e-4)
    control.observe(torch.tensor(math.inf))  # an overflow of the first update does not say where the KL begins
    for kl in (first, *kls):
        control.observe(torch.tensor(kl))
        mean += (kl - mean) / 2
        recent += (min(kl, 4 * max(recent, 20)) - recent) / 16
        error, later = math.log(mean / 20), math.log(mean / 20) + 12 * math.log(mean / recent)
        if 10 < mean < 40 or (error > 0) == (later > 0):
            theta += 0.1 * min(mean / 20 - 1, 1)
        expected = math.exp(theta + 3 * np.clip(math.log(mean / 20), -2, 2))
        assert control.beta.item() == pytest.approx(expected, rel=1e-6)
    assert control.beta.dtype == torch.float32  # a float64 weight would make the loss float64
    again = KLController(20.0, 1e-4)
    again.load(control.state())
    for kl in kls[:10]:
        control.observe(torch.tensor(kl))
        again.observe(torch.tensor(kl))
    assert again.state() == control.state()
    assert torch.equal(again.beta, control.beta)


@pytest.mark.parametrize(
    ("beta", "learning_rate", "target", "curvature"),
    [(1e-1, 1e-3, 5, 0.0), (1e-3, 3e-3, 80, 0.0), (1e-3, 3e-3, 80, -1.0), (1e-6, 3e-3, 80, -1.0)],
)
def test_it_holds_the_target_of_a_generator_that_is_slow_to_follow(beta, learning_rate, target, curvature):
    """In the last 50 of 300 updates. The generator is a vector x, the noise's distance from its prior, with KL ~ |x|^2.
    Adam trains it against a constant gradient under larger noise, with warm-up and decay; like windows share a batch.
    With a negative curvature the nll falls ever faster along x, as for adversarial noise: below a beta of 2.5e-4 the KL
    has no stationary point, and only the controller bounds it.
    """
    updates, width, ends = 300, 16, []
    for seed in range(6):
        control, rng = KLController(target, beta), np.random.default_rng(seed)
        gradients = 0.02 * (-rng.lognormal(0, 0.7, width) + 3 * rng.normal(size=(updates, width)))
        lengths = rng.lognormal(-0.06, 0.35, updates)
        x, first, second, seen = np.zeros(width), 0.0, 0.0, []
        for update, (gradient, length) in enumerate(zip(gradients, lengths, strict=True)):
            seen.append(2000 * length * x @ x)
            gradient = gradient + (control.beta.item() * 4000 * length + curvature) * x
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            rate = learning_rate * min(1, (update + 1) / 15) * (1 - update / updates)
            unbiased = first / (1 - 0.9 ** (update + 1)), second / (1 - 0.999 ** (update + 1))
            x = x - rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-12)
            control.observe(torch.tensor(seen[-1]))
        ends.append(np.sum(seen[-50:]) / np.sum(lengths[-50:]) / target)
    assert np.mean(ends) == pytest.approx(1, abs=0.08)
    assert np.std(ends) < 0.2


def test_a_target_out_of_reach_and_kls_of_rounding_or_overflow_leave_beta_finite():
    for kl in (0.0, 1e9, -5e-4):
        control = KLController(20.0, 1e-4)
        for value in [kl] * 400 + [0.0]:
            control.observe(torch.tensor(value))
        assert 0 < control.beta.item() < math.inf
        assert abs(control.state()["theta"] - math.log(1e-4)) <= math.log(1e6) + 1e-9
    for kl in (math.inf, math.nan):
        control = KLController(20.0, 1e-4)
        control.observe(torch.tensor(20.0))
        before = control.state()
        control.observe(torch.tensor(kl))
        after = control.state()
        assert (after["theta"], after["mean"]) == (before["theta"], before["mean"])
        assert before["recent"] < after["recent"] < after["mean"]  # as if the mean had come once more
