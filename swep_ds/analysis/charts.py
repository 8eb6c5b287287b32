"""Curves as SVG inside a page: those of a run's metrics.jsonl, and those of its confidences.

Text and axes take the page's text colour, and lines its variables --line-1 to --line-4, so a chart is readable on light
and dark pages. Lines differ in dashes as well as in colour.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure

from swep_ds.analysis.answered import Answered
from swep_ds.evaluation.calibration import accuracy_by_coverage, bins, calibration, ordered

CHARTS = yaml.safe_load(Path(__file__).with_name("charts.yaml").read_text(encoding="utf-8"))
POINTS = 400  # a line with more is averaged in blocks of neighbours
RISK_POINTS = 100  # a risk-coverage curve has at most so many
INCHES = (5.2, 2.9)
MAX_MARKS = 30  # a line with more points has no marks
INK = "#010203"  # replaced by the page's text colour in the SVG
COLOURS = ("#010204", "#010205", "#010206", "#010207")  # replaced by --line-1 to --line-4
DASHES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)))  # one more than colours, so all pairs come before one repeats
STYLE = {f"{side}.{part}": INK for side in ("xtick", "ytick") for part in ("color", "labelcolor")}
STYLE |= {"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "legend.labelcolor": INK}
STYLE |= {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}
OTHERS = "other domains"
Curve = tuple[Sequence[float], Sequence[float]]  # such as updates and values
Lines = Sequence[Mapping[str, Any]]  # metrics.jsonl
Row = tuple[str, float, float, float, float, float]  # data set, mean confidence, EM, ECE, AURC, coverage, in percent


class Chart(NamedTuple):
    """Curves with one value axis, labelled `unit`, over another; `guides` are thin lines by name."""

    title: str
    unit: str
    curves: Mapping[str, Curve]
    guides: Mapping[str, Curve] = {}
    over: str = "update"

    def svg(self) -> Markup:
        """The chart as an `<svg>` element without its opening "<svg ", after which the page puts its description."""
        # the salt makes ids reproducible, and different in each chart of a page
        with mpl.rc_context({**STYLE, "svg.hashsalt": self.title}):
            figure = Figure(figsize=INCHES, facecolor="none")
            axes = figure.add_axes((0.16, 0.18, 0.82, 0.77), facecolor="none")  # fixed: a layout takes twice the time
            looks = zip(cycle(COLOURS), cycle(DASHES), strict=False)
            for (label, (updates, values)), (colour, dashes) in zip(self.curves.items(), looks, strict=False):
                marker = "o" if len(values) <= MAX_MARKS else ""
                axes.plot(updates, values, ls=dashes, color=colour, label=label, lw=1.8, marker=marker, ms=3)
            for name, points in self.guides.items():
                axes.plot(*points, color=INK, lw=1, ls=(0, (1, 2)), label=name)
            axes.set(xlabel=self.over, ylabel=self.unit)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-3, 5))
            axes.grid(color=INK, alpha=0.15, lw=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            if len(self.curves) > 1 or self.guides:
                axes.legend(frameon=False, fontsize=9)
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        text = re.sub(r'<g id="[^"]*"', "<g", file.getvalue())  # "axes_1" and the like repeat in every chart
        for number, colour in enumerate(COLOURS, 1):
            text = text.replace(colour, f"var(--line-{number})")
        text = text.replace(INK, "currentColor")
        return Markup(text[text.index("<svg ") + len("<svg ") :])


def learning_curves(lines: Lines, prior_mean: float = 1.0, prior_variance: float | None = None) -> list[Chart]:
    """The charts that have data, the most telling ones first. `prior_variance`: alpha; None without a prior."""
    passes = sorted({name for line in lines for name in line if name.startswith("nll_")})
    more = {"Loss": {name: f"NLL, {name[4:]} pass" for name in passes}}
    ends = [line["update"] for line in lines[:1] + lines[-1:]]
    guides = {"prior_mean": {f"{prior_mean:g}, the prior's": (ends, [prior_mean] * len(ends))}}
    if prior_variance is not None:
        guides["prior_deviation"] = {"√α, the prior's": (ends, [math.sqrt(prior_variance)] * len(ends))}
    charts = []
    for title, chart in CHARTS.items():
        curves = {}
        for name, label in (chart["curves"] | more.get(title, {})).items():
            points = np.array([(line["update"], line[name]) for line in lines if name in line], dtype=float)
            if len(points):
                blocks = np.array_split(points, min(POINTS, len(points)))
                curves[label] = np.transpose([block.mean(0) for block in blocks])
        if curves:
            unit = chart["unit"].format(prior_mean=prior_mean)
            charts.append(Chart(title, unit, curves, guides.get(chart.get("guide"), {})))
    return charts


def confidence(answered: Mapping[str, Sequence[Answered]]) -> dict[str, list] | None:
    """Does the model know when it does not know? Definitions and sources are in `evaluation/calibration.py`.

    Of the data sets whose answers all have a confidence; None if the first, the source domain, is not among them.

    "rows" of each data set, "groups" of two, the source domain and all questions of the others together; the same by
    the calibrator's confidences ("calibrated", "calibrated_groups"); "charts" of the groups: the mean confidence and
    the share of right answers in each bin, and the share of wrong ones by the share answered.
    """
    source = next(iter(answered), None)
    if source is None or any(item.confidence is None for item in answered[source]):
        return None
    told = {}
    reliability = {}
    risk = {}
    kinds = (("confidence", "rows", "groups", ""), ("calibrated", "calibrated", "calibrated_groups", ", calibrated"))
    for kind, by_set, by_group, suffix in kinds:
        values = {}  # by data set, [N, 2]: confidence and exact match
        for name, items in answered.items():
            if all(getattr(item, kind) is not None for item in items):
                values[name] = np.array([(getattr(item, kind), item.right) for item in items], dtype=float)
        told[by_set] = _rows(values)
        others = [values.pop(name) for name in list(values) if name != source]
        if others:
            values[OTHERS] = np.concatenate(others)
        told[by_group] = _rows(values)
        for name, of_group in values.items():
            confidence_N, right_N = ordered(*of_group.T)
            of_bins = [(confidence_N[rows].mean(), right_N[rows].mean()) for rows in reversed(bins(len(right_N)))]
            reliability[name + suffix] = 100 * np.transpose(of_bins)
            total = len(right_N)
            rows = np.unique(np.linspace(0, total - 1, min(RISK_POINTS, total)).round().astype(int))
            risk[name + suffix] = (100 * (rows + 1) / total, 100 * (1 - accuracy_by_coverage(right_N)[rows]))
    bin_ = "mean confidence of a bin, %"
    share = "share of questions answered, most confident first, %"
    told["charts"] = [
        Chart("Reliability", "exactly right, %", reliability, {"perfectly calibrated": ((0, 100), (0, 100))}, bin_),
        Chart("Risk and coverage", "wrong answers, %", risk, over=share),
    ]
    return told


def _rows(values: Mapping[str, np.ndarray]) -> list[Row]:
    rows = []
    for name, of_set in values.items():
        rows.append((name, *(100 * of_set.mean(0)).tolist(), *calibration(*of_set.T).values()))
    return rows
