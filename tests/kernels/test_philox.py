"""The noise: Philox's published answers; normals as NumPy computes them, and independent along every part of the key.

Keys of statistics are fixed, so a test passes always or never; bounds are those of a 1-in-10,000 event or rarer.
"""

import math

import pytest
import scipy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swep_ds.kernels import standard_normal
from swep_ds.kernels.philox import MASK, noise_words, philox
from tests.support import perturb_reference as reference

ZEROS, ONES = ([0] * 4, [0] * 2), ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2)
PI = ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0])
# Random123's published known-answer vectors (kat_vectors: philox4x32)
KNOWN_ANSWERS = [
    (10, ZEROS, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (10, ONES, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (10, PI, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    (7, ZEROS, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
    (7, ONES, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
    (7, PI, [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A]),
]
words32 = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("rounds", "inputs", "expected"), KNOWN_ANSWERS)
def test_known_answers(rounds, inputs, expected):
    counter, key = inputs
    words = philox(tuple(torch.tensor([word]) for word in counter), tuple(key), rounds)
    assert [word.item() & MASK for word in words] == expected
    assert [int(word) for word in reference.philox(counter, key, rounds)] == expected


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**64 - 1),
    draw=words32,
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    positions=st.integers(1, 4),
    d=st.sampled_from([4, 12, 64]),
)
def test_normals_match_numpy(seed, draw, ids, positions, d):
    sample_ids = torch.tensor(ids)[:, None]
    expected = torch.from_numpy(reference.normal(seed, draw, ids, positions, d))
    exact = standard_normal(seed, draw, sample_ids, torch.arange(positions), d, torch.float64)
    torch.testing.assert_close(exact, expected, rtol=1e-12, atol=1e-12)
    single = standard_normal(seed, draw, sample_ids, torch.arange(positions), d)
    # u is rounded to 24 bits: just under u = 1 the radius itself is small and moves by up to sqrt(2^-24)
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-3)
    assert (single.double() - expected).abs().median() < 1e-6


def test_seed_and_draw_may_be_tensors_and_the_width_is_divisible_by_four():
    at = (torch.tensor([3]), torch.tensor([1]))
    seed = 2**64 - 5
    assert torch.equal(
        standard_normal(seed, 9, *at, 8), standard_normal(torch.tensor(seed - 2**64), torch.tensor(9), *at, 8)
    )
    with pytest.raises(ValueError, match="divisible by 4"):
        noise_words(0, 0, *at, 6)


# Statistics

SEED, D = 20260101, 768


def draw(seed=SEED, draw=0, samples=8, positions=128):
    """[samples, positions, D] float64."""
    ids, t = torch.arange(samples)[:, None], torch.arange(positions)
    return standard_normal(seed, draw, ids, t, D, torch.float64)


def test_the_distribution_and_its_tails_are_the_normals():
    x = draw().flatten().numpy()
    assert scipy.stats.kstest(x, "norm").statistic * math.sqrt(len(x)) < 2.2  # P(D sqrt n > 2.2) = 1.2e-4
    x = draw(samples=64).flatten().abs()
    for bound in (2.0, 3.0, 4.0, 4.5):
        expected = x.numel() * math.erfc(bound / math.sqrt(2))
        assert abs((x > bound).sum() - expected) < 4.5 * math.sqrt(expected)
    assert x.max() < math.sqrt(66 * math.log(2)) + 1e-6


def correlated(x, y):
    """sqrt(n) times the correlations of values and of squares, which a bad Box-Muller pair would show."""
    n = math.sqrt(x.numel())
    return n * (x * y).mean(), n * ((x**2 - 1) * (y**2 - 1)).mean() / 2


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
    for name, (first, second) in others.items():
        for z in correlated(first, second):
            assert abs(z) < 4.5, name


def test_every_dimension_is_standard_normal():
    x = draw(samples=16).flatten(0, 1)
    z = x.mean(0) * math.sqrt(len(x))
    assert z.abs().max() < 4.8
    assert abs((z**2).sum() - D) < 4.5 * math.sqrt(2 * D)
