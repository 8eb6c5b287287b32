"""Intervals for differences between two methods when seeds and questions are both samples.

The score difference of seed s on question q is D_sq = m + a_s + b_q + e_sq: every seed answers every question, and
questions come in clusters (`data.splits.clusters`), within which b and e may be correlated. With S seeds and Q
questions the mean over all D_sq has the variance

    Var(a) / S + Var(mean of b) + Var(mean of e),      estimated by V = max(A + B - E, A, B):

    A = s_seed^2 / S, the variance of the S means over questions:       Var(a) / S + Var(mean of e)
    B, that of the means over seeds, by clusters:                       Var(mean of b) + Var(mean of e)
    E, that of the doubly centred residuals, by clusters:               Var(mean of e), which A and B both contain

With clusters of one question that is the analysis of variance of a crossed design. Where A < E or B < E, the estimate
of Var(a) or Var(b) is negative and counts as 0. With one seed A and E are 0, and V = B, which says nothing about other
seeds. The interval is Student's t with Satterthwaite's degrees of freedom

    V^2 / (A^2 / (S - 1) + B^2 / (G - 1)),      G = Q^2 / sum of squared cluster sizes.

If all D are alike, V is 0, and any other cluster could change that: V is then what one cluster more that differs by 100
points would make it, (100 / G)^2, with G - 1 degrees of freedom.

For a mean over M data sets, A is of each seed's mean over the sets, since a seed's effects on them belong together; B
and E are sums over the sets divided by M^2, since questions do not. tests/analysis/test_crossed.py simulates the
coverage.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from swep_ds.data.splits import effective_clusters
from swep_ds.evaluation.calibration import LEVEL

MIN_SEEDS = 3  # fewer give no interval
MIN_TEXTS = 5  # effective clusters in each set; with fewer in one of them the interval is too narrow
MARGIN = 0.5  # points: differences that are certainly smaller count as no difference
AIM = 3.0  # points: half the width of an interval that is narrow enough
WIDE = 5.0  # points: half the width of an interval that leaves the size of a difference open
POINTS = 100.0  # the most by which two scores differ
MANY = 1e6  # degrees of freedom with which Student's t is normal
ROUNDING = 1e-18  # a variance, in squared points


class Estimate(NamedTuple):
    """A mean difference in points, or in any other unit; all are arrays of one shape, or scalars."""

    mean: np.ndarray
    variance: np.ndarray
    df: np.ndarray

    def margin(self, level: float = LEVEL) -> np.ndarray:
        """Half the width of the two-sided interval of `level` percent."""
        return stdtrit(self.df, 0.5 + level / 200) * np.sqrt(self.variance)

    def interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) of the two-sided interval of `level` percent."""
        return self.mean - self.margin(level), self.mean + self.margin(level)

    def p(self) -> np.ndarray:
        """The two-sided p value of no difference."""
        return 2 * stdtr(self.df, -np.abs(self.mean) / np.sqrt(self.variance))

    def within(self, margin: float = MARGIN) -> np.ndarray:
        """Whether two one-sided tests at 100 - LEVEL percent place the difference inside (-margin, margin)."""
        low, high = self.interval(2 * LEVEL - 100)
        return (low > -margin) & (high < margin)


def estimate(sets: Sequence[tuple[np.ndarray, np.ndarray]]) -> Estimate:
    """The mean difference over seeds, questions and data sets, in arrays [...]. `sets`: by data set, the differences
    D [..., S, Q] in points, and each question's cluster [Q], numbered from 0 without gaps. S is the same in all
    sets, and each has at least two clusters."""
    per_seed = sum(values.mean(-1) for values, _ in sets) / len(sets)
    seeds = per_seed.shape[-1]
    of_seeds = per_seed.var(-1, ddof=min(seeds - 1, 1)) / seeds
    of_questions = of_residuals = of_questions_squared = unseen = unseen_squared = 0.0
    for values, clusters in sets:
        between, within, effective = _by_cluster(values, clusters)
        of_set = between / len(sets) ** 2
        unseen_of_set = (POINTS / effective / len(sets)) ** 2
        of_questions = of_questions + of_set
        of_residuals = of_residuals + within / len(sets) ** 2
        of_questions_squared = of_questions_squared + of_set**2 / (effective - 1)
        unseen += unseen_of_set
        unseen_squared += unseen_of_set**2 / (effective - 1)
    variance = np.maximum(of_seeds + of_questions - of_residuals, np.maximum(of_seeds, of_questions))
    with np.errstate(divide="ignore", invalid="ignore"):
        df = variance**2 / (of_seeds**2 / max(seeds - 1, 1) + of_questions_squared)
    alike = variance < ROUNDING
    variance = np.where(alike, unseen, variance)[()]
    df = np.where(alike, unseen**2 / unseen_squared, df)[()]
    return Estimate(per_seed.mean(-1), variance, df)


def _by_cluster(values: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """(B, E, G) of the module's docstring."""
    sizes = np.bincount(clusters)
    questions = len(clusters)
    seeds = values.shape[-2]
    effective = effective_clusters(clusters)
    starts = np.cumsum(sizes) - sizes
    sums = np.add.reduceat(values[..., np.argsort(clusters, kind="stable")], starts, axis=-1)
    sums = sums - values.mean(-1, keepdims=True) * sizes  # [..., S, C], centred by seed
    mean_sums = sums.mean(-2)
    scale = effective / (effective - 1) / questions**2
    residuals = np.square(sums - mean_sums[..., None, :]).sum((-2, -1)) / max(seeds - 1, 1)
    return scale * np.square(mean_sums).sum(-1), scale * residuals / seeds, effective


def not_shown(questions: int, low: float, high: float, df: float = MANY) -> str:
    """A clause that says what this many questions leave open about a difference in F1 with this interval, and about how
    many more like them would narrow it to +- `AIM`; "" if they show the difference and its size. `df`: degrees of
    freedom of an interval by Student's t."""
    half = (high - low) / 2
    if low <= 0 <= high:
        clause = f"these {questions} questions do not show a difference in F1"
    elif half > WIDE:
        clause = f"these {questions} questions show a difference in F1, but not how large it is"
    else:
        return ""
    quantile = 0.5 + LEVEL / 200
    half *= stdtrit(MANY, quantile) / stdtrit(df, quantile)  # as with many questions
    if half > AIM:
        more = math.ceil(questions * ((half / AIM) ** 2 - 1))  # the width goes by the root of their number
        clause += f", and about {float(f'{more:.2g}'):.0f} more like them would give it to within {AIM:g} points"
    return clause


def holm(p: Sequence[float]) -> list[float]:
    """p values adjusted by Holm's step-down rule (1979): by chance, any is below 0.05 in at most 5 % of tables."""
    order = np.argsort(p, kind="stable")
    adjusted = np.minimum(np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)), 1.0)
    return adjusted[np.argsort(order)].tolist()
