"""Does the model know when it does not know? A run's confidences against its exact matches, for its report.

The curves are of the source domain and of all questions of the other domains together, by the softmax's probability
and, if the run has a calibrator, by its confidences. Definitions and sources of the scores are in
`evaluation/calibration.py`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from swep_ds.analysis.answered import Answered
from swep_ds.analysis.charts import Chart, Curve
from swep_ds.evaluation.calibration import accuracy_by_coverage, bins, calibration, ordered

POINTS = 100  # a risk-coverage curve has at most so many
OTHERS = "other domains"
Row = tuple[str, float, float, float, float, float]  # data set, mean confidence, EM, ECE, AURC, coverage, in percent
Values = Mapping[str, np.ndarray]  # by data set, [N, 2]: confidence and exact match


class Confidence(NamedTuple):
    """Rows by the softmax's confidences and by the calibrator's: of each data set, and of the curves' two groups."""

    rows: list[Row]
    calibrated: list[Row]
    groups: list[Row]
    calibrated_groups: list[Row]
    charts: list[Chart]


def confidence(answered: Mapping[str, Sequence[Answered]]) -> Confidence | None:
    """The data sets whose answers all have a confidence; None if the first one is not among them.

    Args:
        answered: by data set, the source domain first.
    """
    known, calibrated = _values(answered, "confidence"), _values(answered, "calibrated")
    source = next(iter(answered), None)
    if source not in known:
        return None
    groups, after = _groups(known, source), _groups(calibrated, source)
    curves = groups | {f"{name}, calibrated": values for name, values in after.items()}
    reliability = Chart(
        "Reliability",
        "exactly right, %",
        {name: _reliability(values) for name, values in curves.items()},
        over="mean confidence of a bin, %",
        diagonal="perfectly calibrated",
    )
    risk = Chart(
        "Risk and coverage",
        "wrong answers, %",
        {name: _risk(values) for name, values in curves.items()},
        over="share of questions answered, most confident first, %",
    )
    return Confidence(*map(_rows, (known, calibrated, groups, after)), [reliability, risk])


def _values(answered: Mapping[str, Sequence[Answered]], kind: str) -> Values:
    values = {}
    for name, items in answered.items():
        if all(getattr(item, kind) is not None for item in items):
            values[name] = np.array([(getattr(item, kind), item.right) for item in items], dtype=float)
    return values


def _groups(known: Values, source: str) -> Values:
    """The source domain and the others together, as far as they are known."""
    groups = {source: known[source]} if source in known else {}
    others = [values for name, values in known.items() if name != source]
    return groups | ({OTHERS: np.concatenate(others)} if others else {})


def _rows(known: Values) -> list[Row]:
    return [
        (name, *(100 * values.mean(0)).tolist(), *calibration(*values.T).values()) for name, values in known.items()
    ]


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
