"""Does the model know when it does not know? A run's confidences against its exact matches, for its report.

The curves are of the source domain and of all questions of the other domains together, by the softmax's probability
and, if the run has a calibrator, by its confidences. Definitions and sources of the scores are in
`evaluation/calibration.py`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from swep_ds.analysis.answers import Answered
from swep_ds.analysis.charts import Chart, Curve
from swep_ds.evaluation.calibration import (
    COVERED_ACCURACY,
    accuracy_by_coverage,
    bins,
    calibration,
    ordered,
)

POINTS = 100  # a risk-coverage curve has at most so many
OTHERS = "other domains"
CALIBRATED_SUFFIX = ", calibrated"  # after the name of a curve


class Confidence(NamedTuple):
    """rows: (data set, mean confidence, EM, ECE, AURC, coverage), in percent.

    calibrated: the same by the calibrator.
    """

    statement: str
    rows: list[tuple[str, float, float, float, float, float]]
    calibrated: list[tuple[str, float, float, float, float, float]]
    charts: list[Chart]


def confidence(answered: Mapping[str, Sequence[Answered]]) -> Confidence | None:
    """The data sets whose answers all have a confidence; None if the first one is not among them.

    Args:
        answered: by data set, the source domain first.
    """
    known, calibrated = (
        {
            name: np.array([(getattr(item, kind), item.right) for item in items], dtype=float)
            for name, items in answered.items()
            if all(getattr(item, kind) is not None for item in items)
        }
        for kind in ("confidence", "calibrated")
    )
    source = next(iter(answered), None)
    if source not in known:
        return None
    groups, after = _groups(known, source), _groups(calibrated, source)
    curves = groups | {f"{name}{CALIBRATED_SUFFIX}": values for name, values in after.items()}
    reliability = {name: _reliability(values) for name, values in curves.items()}
    risk = {name: _risk(values) for name, values in curves.items()}
    unit, over = "exactly right, %", "mean confidence of a bin, %"
    charts = [
        Chart("Reliability", unit, reliability, over=over, diagonal="perfectly calibrated"),
        Chart(
            "Risk and coverage", "wrong answers, %", risk, over="share of questions answered, most confident first, %"
        ),
    ]
    rows, after_rows = ([(name, *_row(values)) for name, values in sets.items()] for sets in (known, calibrated))
    return Confidence(_statement(groups, after), rows, after_rows, charts)


def _groups(known: Mapping[str, np.ndarray], source: str) -> dict[str, np.ndarray]:
    """The source domain and the others together, as far as they are known."""
    groups = {source: known[source]} if source in known else {}
    others = [values for name, values in known.items() if name != source]
    return groups | ({OTHERS: np.concatenate(others)} if others else {})


def _row(values: np.ndarray) -> tuple[float, ...]:
    return (*(100 * values.mean(0)).tolist(), *calibration(*values.T).values())


def _reliability(values: np.ndarray) -> Curve:
    """(mean confidence, share of right answers) of each bin, in percent, the least confident first."""
    confidence_N, right_N = ordered(*values.T)
    parts = reversed(bins(len(right_N)))
    return tuple(100 * np.array([(confidence_N[rows].mean(), right_N[rows].mean()) for rows in parts]).T)


def _risk(values: np.ndarray) -> Curve:
    """(share answered, share of wrong answers among these), in percent."""
    accuracy_N = accuracy_by_coverage(ordered(*values.T)[1])
    total = len(accuracy_N)
    rows = np.unique(np.linspace(0, total - 1, min(POINTS, total)).round().astype(int))
    return 100 * (rows + 1) / total, 100 * (1 - accuracy_N[rows])


def _statement(groups: Mapping[str, np.ndarray], calibrated: Mapping[str, np.ndarray]) -> str:
    rows = {name: _row(values) for name, values in groups.items()}
    sentences = [
        f"On {name} its confidence is {sure:.0f} % on average, and {right:.0f} % of its answers are exactly right"
        for name, (sure, right, *_) in rows.items()
    ]
    kept = [f"{covered:.0f} % of the questions of {name}" for name, (*_, covered) in rows.items()]
    after = [f"{_row(values)[-1]:.0f} % of those of {name}" for name, values in calibrated.items()]
    source = next(iter(groups))
    then = f" By its calibrator, which was fitted to held-out text of {source}, it can answer {' and '.join(after)}."
    return (
        f"{'. '.join(sentences)}. If it may decline, it can answer {' and '.join(kept)} in this test with "
        f"at least {COVERED_ACCURACY} % of these answers right.{then if after else ''}"
    )
