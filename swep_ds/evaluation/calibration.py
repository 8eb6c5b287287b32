"""Do a model's confidences say which of its answers are right? An answer is right if its exact match is 1.

Questions are ordered by confidence, the highest first. Where several have the same confidence, their order is
arbitrary: each counts with the mean of their exact matches.
"""

from collections.abc import Sequence

import numpy as np

from swep_ds.data.splits import effective_clusters

ECE_BINS = 15
COVERED_ACCURACY = 80  # percent
CALIBRATION = ("ece", "aurc", f"coverage_at_{COVERED_ACCURACY}")
CALIBRATED = tuple(f"calibrated_{name}" for name in CALIBRATION)  # the same of a calibrator's confidences
RESAMPLES = 1000
LEVEL = 95  # percent, of intervals
MIN_CLUSTERS = 10  # a percentile interval over fewer resampled clusters is too narrow
CHANGES = CALIBRATION[1:]  # whose change by a calibrator has an interval


def calibration(confidence: Sequence[float], exact_match: Sequence[float]) -> dict[str, float]:
    """Three scores of N >= 1 questions, in percent.

    Args:
        confidence: N probabilities.
        exact_match: N times 0 or 1, in the same order.

    Returns:
        "ece": expected calibration error: the mean over questions of |mean confidence - mean exact match| of their bin.
        The `ECE_BINS` bins hold equally many questions, give or take one (Nguyen and O'Connor, EMNLP 2015).
        "aurc": area under the risk-coverage curve: the mean over n = 1 ... N of the share of wrong answers among the n
        most confident ones (Geifman and El-Yaniv, NeurIPS 2017).
        "coverage_at_80": the largest share n / N at which 80 % of the n most confident answers are right; 0 if there is
        none (Kamath et al., ACL 2020).
    """
    return _scores(*ordered(confidence, exact_match))


def _scores(confidence_N: np.ndarray, right_N: np.ndarray) -> dict[str, float]:
    """As `calibration`, of questions that are `ordered`."""
    total = len(right_N)
    ece = sum(abs((confidence_N[rows] - right_N[rows]).sum()) for rows in bins(total)) / total
    return dict(zip(CALIBRATION, [100.0 * float(np.clip(ece, 0, 1)), *_order_scores(right_N)], strict=True))


def _order_scores(right_N: np.ndarray) -> list[float]:
    """The scores `CHANGES`, of exact matches that are `ordered`."""
    accuracy_N = accuracy_by_coverage(right_N)
    enough = np.flatnonzero(accuracy_N >= COVERED_ACCURACY / 100 - 1e-12)  # but for rounding
    coverage = (enough[-1] + 1) / len(right_N) if len(enough) else 0.0
    return [100.0 * float(np.clip(value, 0, 1)) for value in (np.mean(1 - accuracy_N), coverage)]


def calibrated_scores(
    softmax: Sequence[float], calibrated: Sequence[float], exact_match: Sequence[float], clusters: Sequence[int]
) -> dict[str, float]:
    """What a calibrator changes on N >= 1 questions, in percent and points.

    Args:
        softmax, calibrated: the confidences without it and with it.
        exact_match: N times 0 or 1.
        clusters: N numbers from 0; questions of one cluster are drawn together.

    Returns:
        `CALIBRATED`, and for `CHANGES` "<name>_change_low" and "_high": the `LEVEL` % interval of the score with the
        calibrator less that without, by a paired percentile bootstrap over clusters (`RESAMPLES`, seed 0). Fewer than
        `MIN_CLUSTERS` effective clusters give no interval. Neither does the ECE: few questions a bin make it too
        large, most of all that of well calibrated confidences, and resampling does so a second time.
    """
    scores = dict(zip(CALIBRATED, calibration(calibrated, exact_match).values(), strict=True))
    both = [_Ordered(confidence, exact_match) for confidence in (softmax, calibrated)]
    cluster_N, rng = np.asarray(clusters), np.random.default_rng(0)
    count = int(cluster_N.max()) + 1
    if effective_clusters(cluster_N) < MIN_CLUSTERS:
        return scores
    changes = []
    for _ in range(RESAMPLES):
        copies_N = np.bincount(rng.integers(count, size=count), minlength=count)[cluster_N]
        before, after = (_order_scores(confidences.resampled(copies_N)[1]) for confidences in both)
        changes.append(np.subtract(after, before))
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(changes, [tail, 100 - tail], axis=0)
    for name, *bounds in zip(CHANGES, low.tolist(), high.tolist(), strict=True):
        scores |= {f"{name}_change_{side}": bound for side, bound in zip(("low", "high"), bounds, strict=True)}
    return scores


class _Ordered:
    """Questions that are sorted once for all resamples."""

    def __init__(self, confidence: Sequence[float], exact_match: Sequence[float]):
        confidence_N = np.asarray(confidence, dtype=float)
        self.order_N = np.argsort(-confidence_N, kind="stable")
        self.confidence_N, self.right_N = confidence_N[self.order_N], np.asarray(exact_match, float)[self.order_N]

    def resampled(self, copies_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `ordered`, with this many copies of each question, in the order in which they were given."""
        row_M = np.repeat(np.arange(len(copies_N)), copies_N[self.order_N])
        confidence_M, right_M = self.confidence_N[row_M], self.right_N[row_M]
        first_M = np.diff(confidence_M, prepend=np.inf) != 0
        tied_M = np.cumsum(first_M) - 1
        return confidence_M, (np.bincount(tied_M, right_M) / np.bincount(tied_M))[tied_M]


def ordered(confidence: Sequence[float], exact_match: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Both [N] by confidence, the highest first; exact matches are means over questions of the same confidence."""
    return _Ordered(confidence, exact_match).resampled(np.ones(len(confidence), int))


def bins(total: int) -> list[np.ndarray]:
    """The rows of `ordered` questions in each of at most `ECE_BINS` bins."""
    return np.array_split(np.arange(total), min(ECE_BINS, total))


def accuracy_by_coverage(right_N: np.ndarray) -> np.ndarray:
    """The share of right answers among the n most confident ones, n = 1 ... N, from `ordered` exact matches [N]."""
    return np.cumsum(right_N) / np.arange(1, len(right_N) + 1)
