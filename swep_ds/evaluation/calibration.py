"""Do a model's confidences say which of its answers are right? An answer is right if its exact match is 1.

Questions are ordered by confidence, the highest first. Where several have the same confidence, their order is
arbitrary: each counts with the mean of their exact matches.
"""

from collections.abc import Sequence

import numpy as np

ECE_BINS = 15
COVERED_ACCURACY = 80  # percent
CALIBRATION = ("ece", "aurc", f"coverage_at_{COVERED_ACCURACY}")


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
    confidence_N, right_N = ordered(confidence, exact_match)
    total = len(right_N)
    ece = sum(abs((confidence_N[rows] - right_N[rows]).sum()) for rows in bins(total)) / total
    accuracy_N = accuracy_by_coverage(right_N)
    enough = np.flatnonzero(accuracy_N >= COVERED_ACCURACY / 100 - 1e-12)  # but for rounding
    coverage = (enough[-1] + 1) / total if len(enough) else 0.0
    scores = (ece, np.mean(1 - accuracy_N), coverage)
    return {name: 100.0 * float(np.clip(value, 0, 1)) for name, value in zip(CALIBRATION, scores, strict=True)}


def ordered(confidence: Sequence[float], exact_match: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Both [N] by confidence, the highest first; exact matches are means over questions of the same confidence."""
    order = np.argsort(-np.asarray(confidence, dtype=float), kind="stable")
    confidence_N, right_N = np.asarray(confidence, dtype=float)[order], np.asarray(exact_match, dtype=float)[order]
    _, tied, count = np.unique(confidence_N, return_inverse=True, return_counts=True)
    return confidence_N, (np.bincount(tied, right_N) / count)[tied]


def bins(total: int) -> list[np.ndarray]:
    """The rows of `ordered` questions in each of at most `ECE_BINS` bins."""
    return np.array_split(np.arange(total), min(ECE_BINS, total))


def accuracy_by_coverage(right_N: np.ndarray) -> np.ndarray:
    """Of `ordered` exact matches [N]: the share of right answers among the n most confident ones, n = 1 ... N."""
    return np.cumsum(right_N) / np.arange(1, len(right_N) + 1)
