"""Calibration scores against plain loops and cases worked out by hand."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.evaluation.calibration import CALIBRATED, CHANGES, RESAMPLES, calibrated_scores, calibration

answers = st.lists(
    st.tuples(st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0]), st.booleans()), min_size=1, max_size=6
)


def risk_coverage(pairs) -> tuple[float, float]:
    """(area, coverage at 80 %) of (confidence, right) in this order."""
    risks, coverage = [], 0.0
    for n in range(1, len(pairs) + 1):
        wrong = sum(not right for _, right in pairs[:n])
        risks.append(wrong / n)
        if (n - wrong) / n >= 0.8:
            coverage = n / len(pairs)
    return 100 * sum(risks) / len(risks), 100 * coverage


def test_scores_by_loops_without_ties():
    rng = np.random.default_rng(0)
    for total in (1, 7, 15, 16, 200):
        confidence = rng.random(total)
        right = rng.random(total) < confidence**0.3
        pairs = sorted(zip(confidence.tolist(), right.tolist(), strict=True), reverse=True)
        error, begin = 0.0, 0
        for number in range(min(15, total)):
            size = total // min(15, total) + (number < total % min(15, total))
            rows, begin = pairs[begin : begin + size], begin + size
            gap = sum(confident for confident, _ in rows) / size - sum(is_right for _, is_right in rows) / size
            error += size / total * abs(gap)
        area, coverage = risk_coverage(pairs)
        expected = {"ece": 100 * error, "aurc": area, "coverage_at_80": coverage}
        assert calibration(confidence, right) == pytest.approx(expected)


@given(answers)
def test_the_order_of_equal_confidences_does_not_count(pairs):
    confidence, right = zip(*pairs, strict=True)
    scores = calibration(confidence, right)
    shuffled = pairs[::-1]
    assert calibration(*zip(*shuffled, strict=True)) == pytest.approx(scores)
    # the mean over all orders in which equal confidences can come
    orders = [order for order in permutations(pairs) if [c for c, _ in order] == sorted(confidence, reverse=True)]
    assert scores["aurc"] == pytest.approx(np.mean([risk_coverage(order)[0] for order in orders]))


def test_intervals_of_what_a_calibrator_changes_by_loops():
    rng = np.random.default_rng(1)
    cluster = np.repeat(np.arange(14), rng.integers(2, 6, 14))
    before, after = (rng.integers(1, 5, len(cluster)) / 5 for _ in range(2))
    right = (rng.random(len(cluster)) < before).astype(float)
    scores = calibrated_scores(before, after, right, cluster)
    assert [scores[name] for name in CALIBRATED] == pytest.approx(list(calibration(after, right).values()))
    drawn, changes = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        chosen = drawn.integers(14, size=14)
        rows = np.concatenate([np.flatnonzero(cluster == number) for number in chosen])
        old, new = (calibration(values[rows], right[rows]) for values in (before, after))
        changes.append([new[name] - old[name] for name in CHANGES])
    assert len(scores) == len(CALIBRATED) + 2 * len(CHANGES)
    for name, values in zip(CHANGES, np.transpose(changes), strict=True):
        bounds = [scores[f"{name}_change_{side}"] for side in ("low", "high")]
        assert bounds == pytest.approx(np.percentile(values, [2.5, 97.5]).tolist())


def test_questions_about_few_texts_have_no_interval():
    for texts in (9, 10):
        confidence, right = np.random.default_rng(0).random((2, 2 * texts)), [0, 1] * texts
        scores = calibrated_scores(*confidence, right, np.repeat(np.arange(texts), 2))
        assert (list(scores) == list(CALIBRATED)) == (texts < 10)
