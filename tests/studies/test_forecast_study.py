"""studies/forecast/compare.py: other estimators against loops; the package's correction against the page's cells."""

import math

import numpy as np
import pytest

from swep_ds.analysis.forecast import MEASURED, MEASURED_DECLINING
from tests.support import scripts

compare = scripts.load("studies/forecast/compare.py")


def test_other_estimators_against_loops():
    rng = np.random.default_rng(1)
    scores, confidence, there = rng.integers(2, size=500), rng.uniform(size=500), rng.uniform(size=300) ** 2
    threshold = sorted(confidence, reverse=True)[scores.sum() - 1]  # as many are at or above it as are right
    expected = sum(value >= threshold for value in there) / 300
    assert compare.thresholded_confidence(scores, confidence, there) == pytest.approx(expected, abs=1 / 300)
    expected = scores.mean() - (confidence.mean() - there.mean())
    assert compare.difference_of_confidences(scores, confidence, there) == pytest.approx(expected)
    assert compare.auc(["who is it"] * 9, ["who is it"] * 9) == 0  # equal odds: no pair is ordered
    assert compare.auc([f"red {i}" for i in range(40)], [f"blue {i}" for i in range(40)]) == 1


def test_the_measured_correction_is_that_of_the_cells():
    cells = compare.read_cells()
    fitted = compare.fit(cells)
    for fit, measured in (
        (fitted, MEASURED),
        (compare.fit(cells, "agreement" + compare.DECLINING), MEASURED_DECLINING),
    ):
        assert pytest.approx(fit[:4], abs=0.005) == measured[:4]
        assert measured.farthest == math.ceil(100 * fit.farthest) / 100  # no set that was measured is farther
    # the correction of a set does not depend on its own scores
    far = cells["set"] == "bioasq"
    worse = cells.assign(truth=cells["truth"].where(~far, 0.1))
    before, after = (compare.left_out(table, compare.corrected) for table in (cells, worse))
    assert before[before["set"] == "bioasq"]["value"].equals(after[after["set"] == "bioasq"]["value"])
    summed = compare.summary(before[(before["signal"] == "agreement") & (before["metric"] == "F1")])
    assert summed["all"] < 4.05
    assert 85 <= summed["held"] <= 95
