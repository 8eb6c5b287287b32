"""Curves as SVG inside a page: those of a run's metrics.jsonl, and those of its confidences.

Text and axes take the page's text colour, and lines its variables --line-1 to --line-4, so a chart is readable on light
and dark pages. Lines differ in dashes as well as in colour.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from swep_ds.analysis.answered import Answered
from swep_ds.evaluation.calibration import accuracy_by_coverage, bins, calibration, ordered

POINTS = 400  # a line with more is averaged in blocks
RISK_POINTS = 100  # a risk-coverage curve has at most so many
INCHES = (5.2, 2.9)
MAX_MARKS = 30  # a line with more points has no marks
INK = "#010203"  # replaced by the page's text colour in the SVG
COLOURS = ("#010204", "#010205", "#010206", "#010207")  # replaced by --line-1 to --line-4
DASHES = ("-", "--", "-.", ":")
STYLE = {f"{side}.{part}": INK for side in ("xtick", "ytick") for part in ("color", "labelcolor")}
STYLE |= {"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "legend.labelcolor": INK}
STYLE |= {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}
OTHERS = "other domains"
Curve = tuple[Sequence[float], Sequence[float]]  # such as updates and values
Lines = Sequence[Mapping[str, Any]]  # metrics.jsonl
Row = tuple[str, float, float, float, float, float]  # data set, mean confidence, EM, ECE, AURC, coverage, in percent
Values = Mapping[str, np.ndarray]  # by data set, [N, 2]: confidence and exact match


class Chart(NamedTuple):
    """Curves with one value axis, labelled `unit`, over another; `guides` are thin lines by name."""

    title: str
    unit: str
    curves: Mapping[str, Curve]
    guides: Mapping[str, Curve] = {}
    over: str = "update"

    def svg(self) -> Markup:
        """The chart as an `<svg>` element, with text as text, for a page that sets --line-1 to --line-4."""
        import matplotlib as mpl  # takes a third of a second
        from matplotlib.figure import Figure

        # the salt makes ids reproducible, and different in each chart of a page
        with mpl.rc_context({**STYLE, "svg.hashsalt": self.title}):
            figure = Figure(figsize=INCHES, facecolor="none")
            axes = figure.add_axes((0.16, 0.18, 0.82, 0.77), facecolor="none")  # fixed: a layout takes twice the time
            for number, (label, (updates, values)) in enumerate(self.curves.items()):
                turn, index = divmod(number, len(COLOURS))  # every turn pairs the dashes with other colours
                dashes = DASHES[(index + turn) % len(DASHES)]
                marker = "o" if len(values) <= MAX_MARKS else ""
                axes.plot(updates, values, dashes, color=COLOURS[index], label=label, lw=1.8, marker=marker, ms=3)
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
        text = file.getvalue()
        text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])  # "axes_1" and the like repeat in every chart
        for number, colour in enumerate(COLOURS, 1):
            text = text.replace(colour, f"var(--line-{number})")
        text = text.replace(INK, "currentColor")
        width, height = (round(72 * inches) for inches in INCHES)
        ends = (f"{label} ends at {values[-1]:.3g}" for label, (_, values) in self.curves.items())
        label = escape(f"{self.title}: {self.unit} by {self.over}. {', '.join(ends)}.")
        head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width} {height}" role="img" '
        return Markup(re.sub(r"<svg[^>]*>", lambda _: f'{head}aria-label="{label}">', text, count=1))


# The course of a run


def learning_curves(lines: Lines, prior_mean: float = 1.0, prior_variance: float | None = None) -> list[Chart]:
    """The charts that have data, the most telling ones first.

    Args:
        prior_mean: the prior's mean of mu.
        prior_variance: alpha; None if the method has no prior.
    """
    passes = sorted({name for line in lines for name in line if name.startswith("nll_")})
    ends = [line["update"] for line in lines[:1] + lines[-1:]]
    mu = {f"{prior_mean:g}, the prior's": (ends, [prior_mean] * len(ends))}
    sigma = {}
    if prior_variance is not None:
        sigma = {"√α, the prior's": (ends, [math.sqrt(prior_variance)] * len(ends))}
    changed = {"words_changed": "perturbed", "words_changed_clean": "clean"}
    all_charts = [
        ("Loss", "nats", {"loss": "loss", **{name: f"NLL, {name[4:]} pass" for name in passes}}, {}),
        ("Validation", "%", {"validation_f1": "F1", "validation_exact_match": "EM"}, {}),
        ("Deviation of the noise", "mean σ over dimensions", {"sigma": "σ"}, sigma),
        ("KL to the prior, per token", "nats per token", {"kl_per_token": "KL"}, {}),
        ("KL to the prior, per window", "nats per window", {"kl_per_window": "KL"}, {}),
        ("Weight of the KL", "beta", {"beta": "beta"}, {}),
        ("Mean of the noise", "mean μ over dimensions", {"mu": "μ"}, mu),
        ("Distance of the mean from the prior's", f"mean |μ − {prior_mean:g}|", {"mu_distance": "|μ − prior|"}, {}),
        ("Tokens whose embedding is nearest to another word's", "share of tokens", changed, {}),
        ("Learning rate", "learning rate", {"learning_rate": "learning rate"}, {}),
        ("Gradient", "global L2 norm before clipping", {"grad_norm": "norm", "noise_grad_norm": "noise"}, {}),
        ("Throughput since the start", "samples/s", {"samples_per_second": "samples/s"}, {}),
    ]
    charts = []
    for title, unit, labels, guides in all_charts:
        curves = {label: points for name, label in labels.items() if (points := curve(lines, name))}
        if curves:
            charts.append(Chart(title, unit, curves, guides))
    return charts


def curve(lines: Lines, name: str) -> Curve | None:
    """(updates, values) of the lines that have this number, or None if there are none."""
    points = [(line["update"], line[name]) for line in lines if name in line]
    return _thin(*np.array(points, dtype=float).T) if points else None


def _thin(updates: np.ndarray, values: np.ndarray) -> Curve:
    """Means over at most `POINTS` blocks of neighbours."""
    blocks = min(POINTS, len(values))
    return tuple(np.array([block.mean() for block in np.array_split(array, blocks)]) for array in (updates, values))


# Does the model know when it does not know? Definitions and sources are in `evaluation/calibration.py`.


class Confidence(NamedTuple):
    """Rows by the softmax's confidences and by the calibrator's: of each data set, and of the curves' two groups."""

    rows: list[Row]
    calibrated: list[Row]
    groups: list[Row]
    calibrated_groups: list[Row]
    charts: list[Chart]


def confidence(answered: Mapping[str, Sequence[Answered]]) -> Confidence | None:
    """The data sets whose answers all have a confidence; None if the first one is not among them.

    The curves are of the source domain and of all questions of the other domains together.

    Args:
        answered: by data set, the source domain first.
    """
    source = next(iter(answered), None)
    known = _values(answered, "confidence")
    if source not in known:
        return None
    calibrated = _values(answered, "calibrated")
    groups = _groups(known, source)
    after = _groups(calibrated, source)
    curves = groups | {f"{name}, calibrated": values for name, values in after.items()}
    reliability = {name: _reliability(values) for name, values in curves.items()}
    risk = {name: _risk(values) for name, values in curves.items()}
    bin_ = "mean confidence of a bin, %"
    share = "share of questions answered, most confident first, %"
    charts = [
        Chart("Reliability", "exactly right, %", reliability, {"perfectly calibrated": ((0, 100), (0, 100))}, bin_),
        Chart("Risk and coverage", "wrong answers, %", risk, over=share),
    ]
    return Confidence(*map(_rows, (known, calibrated, groups, after)), charts)


def _values(answered: Mapping[str, Sequence[Answered]], kind: str) -> Values:
    values = {}
    for name, items in answered.items():
        if all(getattr(item, kind) is not None for item in items):
            values[name] = np.array([(getattr(item, kind), item.right) for item in items], dtype=float)
    return values


def _groups(known: Values, source: str) -> Values:
    """The source domain and the others together, as far as they are known."""
    groups = {name: values for name, values in known.items() if name == source}
    others = [values for name, values in known.items() if name != source]
    if others:
        groups[OTHERS] = np.concatenate(others)
    return groups


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
    rows = np.unique(np.linspace(0, total - 1, min(RISK_POINTS, total)).round().astype(int))
    return 100 * (rows + 1) / total, 100 * (1 - accuracy_N[rows])
