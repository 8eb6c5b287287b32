"""The draws that a perturbation combines: distributions and independence at fp64, and what keys them."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from swep_ds.data.batches import Batch
from swep_ds.kernels import perturb
from swep_ds.methods.base import Inputs, PassState, gaussian, multiply_by_gaussian, uniform

N, T, D = 512, 64, 16
LIMIT = 5.5  # standard errors: all comparisons of this file together exceed it once in some thousand seeds
DRAWS = {"gaussian": gaussian, "uniform": uniform}


def inputs(*, before: int = 0, after: int = 0, dtype: torch.dtype = torch.float64, draw: int = 3) -> Inputs:
    """Windows of T tokens of ones, with padding before and after."""
    mask = pad(torch.ones(N, T, dtype=torch.long), (before, after))
    batch = Batch(mask, mask, sample_id=torch.arange(N))
    return Inputs(torch.ones(*mask.shape, D, dtype=dtype), batch, 2**40 + 7, draw, PassState(), forward=None)


def drawn(given: Inputs, *wanted: tuple[str, str]) -> list[Tensor]:
    """Draws of one perturbation, standardised by the moments of their distributions."""
    values = []
    for kind, per in wanted:
        value = DRAWS[kind](given, per).double()
        values.append(value if kind == "gaussian" else (value - 0.5) * 12**0.5)
    return values


def dependence(first: Tensor, second: Tensor) -> float:
    """The largest correlation, in standard errors, between a dimension of `first` and one of `second` [N, T, K], of
    their values and of their squares."""
    largest = 0.0
    for a, b in itertools.product((first, first**2), (second, second**2)):
        a, b = ((values - values.mean((0, 1))).flatten(0, 1) for values in (a, b))
        correlations = a.T @ b / (a.norm(dim=0)[:, None] * b.norm(dim=0))
        largest = max(largest, (correlations.abs().max() * len(a) ** 0.5).item())
    return largest


ALL = [(kind, per) for per in ("dimension", "token", "window") for kind in DRAWS]


@pytest.mark.parametrize(("kind", "per"), ALL)
def test_a_draw_has_its_distribution_and_its_numbers_are_independent(kind, per):
    [values] = drawn(inputs(), (kind, per))
    assert values.shape == {"dimension": (N, T, D), "token": (N, T, 1), "window": (N, 1, 1)}[per]
    count = values.numel()
    fourth = {"gaussian": 3.0, "uniform": 1.8}[kind]
    assert abs(values.mean()) < LIMIT / count**0.5
    assert abs(values.var() - 1) < LIMIT * ((fourth - 1) / count) ** 0.5
    pairs = {"windows": (values[:-1], values[1:])}
    if per != "window":
        pairs["tokens"] = values[:, :-1], values[:, 1:]
    if per == "dimension":
        # a counter's four words are in dimensions that lie D / 4 apart
        pairs |= {f"dimensions {k} apart": (values[..., :-k], values[..., k:]) for k in (1, D // 4, D // 2)}
    for name, (first, second) in pairs.items():
        if name.startswith("dimensions"):  # one by one: some of them are in both
            assert max(dependence(first[..., [k]], second[..., [k]]) for k in range(first.shape[-1])) < LIMIT, name
        else:
            assert dependence(first, second) < LIMIT, name


def test_draws_of_one_perturbation_and_of_two_passes_are_independent():
    given = inputs()
    many = drawn(given, *ALL, *reversed(ALL))
    many.append(multiply_by_gaussian(given, 1.0) - 1)
    many += drawn(inputs(draw=4), *ALL)
    for first, second in itertools.combinations(many, 2):
        tokens = min(first.shape[1], second.shape[1])
        assert dependence(first[:, :tokens], second[:, :tokens]) < LIMIT
    chosen = uniform(given) < 0.5
    half = gaussian(given)[chosen]
    assert abs(half.mean()) < LIMIT / len(half) ** 0.5


def test_planted_dependence_is_seen():
    """The first draw of each perturbation has the same key, so two perturbations of one pass repeat each other."""
    given = inputs()
    [first] = drawn(given, ("gaussian", "dimension"))
    for kind, per in ALL[:4]:
        [second] = drawn(inputs(), (kind, per))
        assert dependence(first, second) > 2 * LIMIT, (kind, per)
    [other] = drawn(inputs(draw=4), ("gaussian", "dimension"))
    assert dependence(first, other + 0.05 * first.roll(1, -1)) > LIMIT


@pytest.mark.parametrize(("kind", "per"), ALL)
def test_a_draw_does_not_depend_on_padding_on_either_side_or_on_other_windows(kind, per):
    [plain] = drawn(inputs(), (kind, per))
    padded = inputs(before=5, after=2)
    rows = torch.tensor([3, 0, 200])
    part = Batch(padded.batch.input_ids[rows], padded.batch.attention_mask[rows], sample_id=rows)
    [values] = drawn(replace(padded, batch=part, embeddings=padded.embeddings[rows]), (kind, per))
    tokens = values if per == "window" else values[:, 5 : 5 + T]
    assert torch.equal(tokens, plain[rows])
    assert (values != 0).all()  # at padding, too


def test_the_first_draw_is_that_of_the_bare_kernel_and_half_precision_draws_in_float32():
    given = inputs()
    bare = perturb(
        given.embeddings, None, None, given.batch.sample_id, seed=given.seed, draw=3, prior_variance=1.0, mode="prior"
    )[0]
    assert torch.equal(multiply_by_gaussian(given, 1.0), bare)
    assert torch.equal(gaussian(inputs()), bare - 1)
    for draw in DRAWS.values():
        exact, half = (draw(inputs(dtype=dtype)) for dtype in (torch.float64, torch.bfloat16))
        assert half.dtype == torch.float32
        torch.testing.assert_close(half.double(), exact.double(), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match='per must be "dimension", "token" or "window"; got 4'):
        uniform(given, 4)
