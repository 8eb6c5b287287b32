"""The noise is standard normal and independent along every part of its key.

Keys are fixed, so a test passes always or never; the bounds are those of a 1-in-10,000 event or rarer.
"""

import math

import scipy
import torch

from swep_ds.kernels import standard_normal

SEED, D = 20260101, 768


def draw(seed=SEED, draw=0, samples=8, positions=128):
    """[samples, positions, D] float64."""
    ids, t = torch.arange(samples)[:, None], torch.arange(positions)
    return standard_normal(seed, draw, ids, t, D, torch.float64)


def test_the_distribution_its_tails_and_every_dimension_are_the_normals():
    x = draw().flatten().numpy()
    assert scipy.stats.kstest(x, "norm").statistic * math.sqrt(len(x)) < 2.2  # P(D sqrt n > 2.2) = 1.2e-4
    x = draw(samples=64).flatten().abs()
    for bound in (2.0, 3.0, 4.0, 4.5):
        expected = x.numel() * math.erfc(bound / math.sqrt(2))
        assert abs((x > bound).sum() - expected) < 4.5 * math.sqrt(expected)
    assert x.max() < math.sqrt(66 * math.log(2)) + 1e-6
    x = draw(samples=16).flatten(0, 1)
    z = x.mean(0) * math.sqrt(len(x))
    assert z.abs().max() < 4.8
    assert abs((z**2).sum() - D) < 4.5 * math.sqrt(2 * D)


def test_independence():
    x = draw()
    others = {
        "draw": (x, draw(draw=1)),
        "distant draw": (x, draw(draw=2**31)),
        "seed": (x, draw(seed=SEED + 1)),
        "high word of the seed": (x, draw(seed=SEED + 2**32)),
        "sample": (x[:-1], x[1:]),
        "position": (x[:, :-1], x[:, 1:]),
    }
    for gap in (1, 2, D // 4, D // 2, 3 * D // 4):  # neighbours, and words of the same counter
        others[f"dimensions {gap} apart"] = (x[..., :-gap], x[..., gap:])
    for name, (x, y) in others.items():
        # correlations of values, and of squares, which a bad Box-Muller pair would show
        for products in (x * y, (x**2 - 1) * (y**2 - 1) / 2):
            assert abs(products.mean()) * math.sqrt(x.numel()) < 4.5, name
