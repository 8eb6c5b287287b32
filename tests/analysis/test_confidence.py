"""Reliability and risk-coverage curves against loops over questions."""

import numpy as np
import pytest

from swep_ds.analysis.answered import Answered
from swep_ds.analysis.charts import OTHERS, confidence
from swep_ds.data.example import Example
from swep_ds.evaluation.calibration import calibration

EXAMPLE = Example("q", "Who?", "Ada", ("Ada",), None, "a")


def answers(seed: int, calibrated: bool = False) -> list[Answered]:
    rng = np.random.default_rng(seed)
    items = []
    for sure, other in rng.random((60, 2)).tolist():
        right = bool(rng.random() < sure)
        items.append(Answered(EXAMPLE, "Ada", right, 0.0, sure, calibrated=other if calibrated else None))
    return items


def test_curves_and_rows_with_and_without_a_calibrator():
    answered = {name: answers(seed, calibrated=True) for seed, name in enumerate(("wiki", "news", "forum"))}
    told = confidence(answered)
    reliability, risk = told["charts"]
    groups = {"wiki": answered["wiki"], OTHERS: answered["news"] + answered["forum"]}
    names = [name + suffix for suffix in ("", ", calibrated") for name in groups]
    assert list(risk.curves) == list(reliability.curves) == names
    for kind, suffix in (("confidence", ""), ("calibrated", ", calibrated")):
        for name, items in groups.items():
            ordered = sorted(items, key=lambda item: -getattr(item, kind))
            wrong = np.cumsum([not item.right for item in ordered]) / np.arange(1, len(items) + 1)
            covered, share = risk.curves[name + suffix]
            rows = np.rint(covered * len(items) / 100).astype(int) - 1
            np.testing.assert_allclose(share, 100 * wrong[rows])
            assert rows[-1] == len(items) - 1
            first = ordered[-(len(items) // 15) :]  # the least confident bin
            sure, right = (values[0] for values in reliability.curves[name + suffix])
            assert sure == pytest.approx(100 * np.mean([getattr(item, kind) for item in first]))
            assert right == pytest.approx(100 * np.mean([item.right for item in first]))
    tables = {"confidence": told["rows"] + told["groups"], "calibrated": told["calibrated"] + told["calibrated_groups"]}
    for kind, rows in tables.items():
        assert [row[0] for row in rows] == [*answered, *groups]
        for (_, sure, right, *scores), items in zip(rows, [*answered.values(), *groups.values()], strict=True):
            values = [(getattr(item, kind), item.right) for item in items]
            assert scores == [*calibration(*zip(*values, strict=True)).values()]
            assert (sure, right) == pytest.approx(tuple(100 * np.mean(values, axis=0)))


def test_runs_without_confidences_or_a_calibrator():
    old = [Answered(EXAMPLE, "Ada", True, 100.0)]
    assert confidence({}) is None
    assert confidence({"wiki": old, "news": answers(1)}) is None
    told = confidence({"wiki": answers(1), "news": old})
    assert [row[0] for row in told["rows"]] == [row[0] for row in told["groups"]] == ["wiki"]
    assert told["calibrated"] == told["calibrated_groups"] == []
