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
    tables = {"confidence": told["rows"] + told["groups"], "calibrated": told["calibrated"] + told["calibrated_groups"]}
    for (kind, table), suffix in zip(tables.items(), ("", ", calibrated"), strict=True):
        assert [row[0] for row in table] == [*answered, *groups]
        for (_, sure, right, *scores), items in zip(table, [*answered.values(), *groups.values()], strict=True):
            values = [(getattr(item, kind), item.right) for item in items]
            assert scores == [*calibration(*zip(*values, strict=True)).values()]
            assert (sure, right) == pytest.approx(tuple(100 * np.mean(values, axis=0)))
        for name, items in groups.items():
            values = np.array(sorted(((getattr(item, kind), item.right) for item in items), reverse=True))
            wrong = np.cumsum(1 - values[:, 1]) / np.arange(1, len(items) + 1)
            covered, share = risk.curves[name + suffix]
            rows = np.rint(covered * len(items) / 100).astype(int) - 1
            np.testing.assert_allclose(share, 100 * wrong[rows], atol=1e-12)
            assert rows[-1] == len(items) - 1
            least_confident = 100 * values[-(len(items) // 15) :].mean(0)
            assert [bins[0] for bins in reliability.curves[name + suffix]] == pytest.approx(least_confident)


def test_runs_without_confidences_or_a_calibrator():
    old = [Answered(EXAMPLE, "Ada", True, 100.0)]
    assert confidence({}) is None
    assert confidence({"wiki": old, "news": answers(1)}) is None
    told = confidence({"wiki": answers(1), "news": old})
    assert [row[0] for row in told["rows"]] == [row[0] for row in told["groups"]] == ["wiki"]
    assert told["calibrated"] == told["calibrated_groups"] == []
