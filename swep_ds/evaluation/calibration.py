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
    """Three scores of N >= 1 questions, in percent, from their confidences and exact matches (0 or 1).

    "ece": expected calibration error: the mean over questions of |mean confidence - mean exact match| of their bin. The
    `ECE_BINS` bins hold equally many questions, give or take one (Nguyen and O'Connor, EMNLP 2015).
    "aurc": area under the risk-coverage curve: the mean over n = 1 ... N of the share of wrong answers among the n most
    confident ones (Geifman and El-Yaniv, NeurIPS 2017).
    "coverage_at_80": the largest share n / N at which 80 % of the n most confident answers are right; 0 if there is
    none (Kamath et al., ACL 2020).
    """
    confidence_N, right_N = ordered(confidence, exact_match)
    gaps = [abs((confidence_N[rows] - right_N[rows]).sum()) for rows in bins(len(right_N))]
    ece = _percent(sum(gaps) / len(right_N))
    return dict(zip(CALIBRATION, [ece, *_order_scores(right_N)], strict=True))


def _order_scores(right_N: np.ndarray) -> list[float]:
    """The scores `CHANGES`, of exact matches that are `ordered`."""
    accuracy_N = accuracy_by_coverage(right_N)
    enough = np.flatnonzero(accuracy_N >= COVERED_ACCURACY / 100 - 1e-12)  # but for rounding
    coverage = max(enough + 1, default=0) / len(right_N)
    return [_percent(np.mean(1 - accuracy_N)), _percent(coverage)]


def _percent(share: float) -> float:
    return 100.0 * float(np.clip(share, 0, 1))


def calibrated_scores(
    softmax: Sequence[float], calibrated: Sequence[float], exact_match: Sequence[float], clusters: Sequence[int]
) -> dict[str, float]:
    """What a calibrator changes on N >= 1 questions, from the confidences without it and with it: `CALIBRATED`, in
    percent, and for `CHANGES` "<name>_change_low" and "_high", in points.

    These are the `LEVEL` % interval of the score with the calibrator less that without, by a paired percentile
    bootstrap over `clusters` (N numbers from 0; `RESAMPLES`, seed 0), if there are `MIN_CLUSTERS` effective ones. The
    ECE has none: few questions a bin bias it, and resampling does so again.
    """
    scores = dict(zip(CALIBRATED, calibration(calibrated, exact_match).values(), strict=True))
    cluster_N = np.asarray(clusters)
    if effective_clusters(cluster_N) < MIN_CLUSTERS:
        return scores
    right_N = np.asarray(exact_match, dtype=float)
    sorted_once = []
    for confidence_N in (np.asarray(softmax), np.asarray(calibrated)):
        order_N = np.argsort(-confidence_N, kind="stable")
        sorted_once.append((cluster_N[order_N], confidence_N[order_N], right_N[order_N]))
    count = int(cluster_N.max()) + 1
    rng = np.random.default_rng(0)
    changes = []
    for _ in range(RESAMPLES):
        copies = np.bincount(rng.integers(count, size=count), minlength=count)
        before, after = (
            _order_scores(_means_of_ties(np.repeat(confidence_N, copies[of_N]), np.repeat(right_N, copies[of_N])))
            for of_N, confidence_N, right_N in sorted_once
        )
        changes.append(np.subtract(after, before))
    tail = (100 - LEVEL) / 2
    for name, values in zip(CHANGES, np.transpose(changes), strict=True):
        low, high = np.percentile(values, [tail, 100 - tail]).tolist()
        scores |= {f"{name}_change_low": low, f"{name}_change_high": high}
    return scores


def ordered(confidence: Sequence[float], exact_match: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Both [N] by confidence, the highest first; exact matches are means over questions of the same confidence."""
    confidence_N = np.asarray(confidence, dtype=float)
    order_N = np.argsort(-confidence_N, kind="stable")
    confidence_N = confidence_N[order_N]
    return confidence_N, _means_of_ties(confidence_N, np.asarray(exact_match, dtype=float)[order_N])


def _means_of_ties(confidence_N: np.ndarray, right_N: np.ndarray) -> np.ndarray:
    tie_N = np.cumsum(np.diff(confidence_N, prepend=np.inf) != 0) - 1  # its number, for each question
    return (np.bincount(tie_N, right_N) / np.bincount(tie_N))[tie_N]


def bins(total: int) -> list[np.ndarray]:
    """The rows of `ordered` questions in each of at most `ECE_BINS` bins."""
    return np.array_split(np.arange(total), min(ECE_BINS, total))


def accuracy_by_coverage(right_N: np.ndarray) -> np.ndarray:
    """The share of right answers among the n most confident ones, n = 1 ... N, from `ordered` exact matches [N]."""
    return np.cumsum(right_N) / np.arange(1, len(right_N) + 1)
