"""Reliability and risk-coverage curves against loops over questions."""

from dataclasses import replace

import numpy as np
import pytest

from swep_ds.analysis.answered import Answered
from swep_ds.analysis.charts import OTHERS, confidence
from swep_ds.data.example import Example
from swep_ds.evaluation.calibration import calibration

EXAMPLE = Example("q", "Who?", "Ada", ("Ada",), None, "a")


def answers(seed: int, count: int = 60) -> list[Answered]:
    rng = np.random.default_rng(seed)
    sure = rng.random(count)
    return [Answered(EXAMPLE, "Ada", bool(rng.random() < value), 0.0, float(value)) for value in sure]


def test_curves_and_rows():
    answered = {"wiki": answers(0), "news": answers(1), "forum": answers(2)}
    told = confidence(answered)
    reliability, risk = told.charts
    for name, items in (("wiki", answered["wiki"]), (OTHERS, answered["news"] + answered["forum"])):
        ordered = sorted(items, key=lambda item: -item.confidence)
        wrong = np.cumsum([not item.right for item in ordered]) / np.arange(1, len(items) + 1)
        covered, share = risk.curves[name]
        rows = np.rint(covered * len(items) / 100).astype(int) - 1
        np.testing.assert_allclose(share, 100 * wrong[rows])
        assert rows[-1] == len(items) - 1
        size = len(items) // 15
        first = ordered[-size:]  # the least confident bin
        sure, right = (values[0] for values in reliability.curves[name])
        assert sure == pytest.approx(100 * np.mean([item.confidence for item in first]))
        assert right == pytest.approx(100 * np.mean([item.right for item in first]))
    for (name, sure, right, *scores), items in ((told.rows[1], answered["news"]), (told.groups[0], answered["wiki"])):
        values = [(item.confidence, item.right) for item in items]
        assert scores == [*calibration(*zip(*values, strict=True)).values()]
        assert (sure, right) == pytest.approx(tuple(100 * np.mean(values, axis=0)))
        assert name in answered


def test_a_calibrator_has_curves_and_rows_of_its_own():
    plain = {"wiki": answers(0), "news": answers(1)}
    sure = {name: np.random.default_rng(len(name)).permutation(60) / 60 for name in plain}
    answered = {
        name: [replace(item, calibrated=float(value)) for item, value in zip(items, sure[name], strict=True)]
        for name, items in plain.items()
    }
    told, before = confidence(answered), confidence(plain)
    assert told.rows == before.rows
    assert before.calibrated == before.calibrated_groups == []
    for name, mean, right, *scores in told.calibrated:
        exact = [item.right for item in plain[name]]
        assert scores == list(calibration(sure[name], exact).values())
        assert (mean, right) == pytest.approx((100 * np.mean(sure[name]), 100 * np.mean(exact)))
    names = ["wiki", OTHERS]
    assert list(told.charts[1].curves) == [*names, *(f"{name}, calibrated" for name in names)]
    assert told.calibrated_groups[1][1:] == told.calibrated[1][1:]  # news is the only other domain
    # runs without confidences
    old = [Answered(EXAMPLE, "Ada", True, 100.0)]
    assert confidence({}) is None
    assert confidence({"wiki": old, "news": answers(1)}) is None
    told = confidence({"wiki": answers(1), "news": old})
    assert [row[0] for row in told.rows] == [row[0] for row in told.groups] == ["wiki"]
