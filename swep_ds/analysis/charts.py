"""Curves as SVG inside a page: those of a run's metrics.jsonl, and any other.

Text and axes take the page's text colour, and lines its variables --line-1 to --line-4, so a chart is readable on light
and dark pages. Lines differ in dashes as well as in colour.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

POINTS = 400  # a line with more is averaged in blocks
INCHES = (5.2, 2.9)
MAX_MARKS = 30  # a line with more points has no marks
INK = "#010203"  # replaced by the page's text colour in the SVG
COLOURS = ("#010204", "#010205", "#010206", "#010207")  # replaced by --line-1 to --line-4
DASHES = ("-", "--", "-.", ":")
STYLE = {f"{side}.{part}": INK for side in ("xtick", "ytick") for part in ("color", "labelcolor")}
STYLE |= {"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "legend.labelcolor": INK}
STYLE |= {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}
Curve = tuple[np.ndarray, np.ndarray]  # updates, values
Lines = Sequence[Mapping[str, Any]]  # metrics.jsonl


@dataclass(frozen=True)
class Chart:
    """Curves with one value axis, labelled `unit`.

    level: a horizontal line (name, value).
    over: the label of the other axis.
    diagonal: the name of a line from (0, 0) to (100, 100), of a chart whose axes are both percentages.
    """

    title: str
    unit: str
    curves: Mapping[str, Curve]
    level: tuple[str, float] | None = None
    over: str = "update"
    diagonal: str | None = None


def learning_curves(lines: Lines, prior_mean: float = 1.0, prior_variance: float | None = None) -> list[Chart]:
    """The charts of loss, KL, learned noise, changed words, validation, learning rate and gradient that have data.

    Args:
        prior_mean: the prior's mean of mu.
        prior_variance: alpha; None if the method has no prior.
    """
    passes = sorted({name for line in lines for name in line if name.startswith("nll_")})
    sigma = None if prior_variance is None else ("√α, the prior's", math.sqrt(prior_variance))
    changed = {"words_changed": "perturbed", "words_changed_clean": "clean"}
    all_charts = [
        ("Loss", "nats", {"loss": "loss", **{name: f"NLL, {name[4:]} pass" for name in passes}}, None),
        ("KL to the prior, per token", "nats per token", {"kl_per_token": "KL"}, None),
        ("KL to the prior, per window", "nats per window", {"kl_per_window": "KL"}, None),
        ("Weight of the KL", "beta", {"beta": "beta"}, None),
        ("Mean of the noise", "mean μ over dimensions", {"mu": "μ"}, (f"{prior_mean:g}, the prior's", prior_mean)),
        ("Distance of the mean from the prior's", f"mean |μ − {prior_mean:g}|", {"mu_distance": "|μ − prior|"}, None),
        ("Deviation of the noise", "mean σ over dimensions", {"sigma": "σ"}, sigma),
        ("Tokens whose embedding is nearest to another word's", "share of tokens", changed, None),
        ("Validation", "%", {"validation_f1": "F1", "validation_exact_match": "EM"}, None),
        ("Learning rate", "learning rate", {"learning_rate": "learning rate"}, None),
        ("Gradient", "global L2 norm before clipping", {"grad_norm": "norm", "noise_grad_norm": "noise"}, None),
    ]
    charts = []
    for title, unit, labels, level in all_charts:
        curves = {label: points for name, label in labels.items() if (points := curve(lines, name))}
        if curves:
            charts.append(Chart(title, unit, curves, level))
    return charts


def throughput(lines: Lines) -> Chart | None:
    """Samples/s between each two logged updates; the lines themselves hold means since the run's start."""
    known = [line for line in lines if "samples_per_second" in line and "seconds" in line]
    seconds = np.array([0.0, *(line["seconds"] for line in known)])
    samples = np.array([0.0, *(line["samples_per_second"] * line["seconds"] for line in known)])
    durations = np.diff(seconds)
    if not known or not (durations > 0).all():
        return None
    updates = np.array([line["update"] for line in known])
    return Chart("Throughput", "samples/s", {"samples/s": _thin(updates, np.diff(samples) / durations)})


def curve(lines: Lines, name: str) -> Curve | None:
    """(updates, values) of the lines that have this number, or None if there are none."""
    points = [(line["update"], line[name]) for line in lines if name in line]
    return _thin(*np.array(points, dtype=float).T) if points else None


def _thin(updates: np.ndarray, values: np.ndarray) -> Curve:
    """Means over at most `POINTS` blocks of neighbours."""
    blocks = min(POINTS, len(values))
    return tuple(np.array([block.mean() for block in np.array_split(array, blocks)]) for array in (updates, values))


def svg(chart: Chart) -> str:
    """The chart as an `<svg>` element, with text as text, for a page that sets --line-1 to --line-4."""
    import matplotlib as mpl  # takes a third of a second
    from matplotlib.figure import Figure

    # the salt makes ids reproducible, and different in each chart of a page
    with mpl.rc_context({**STYLE, "svg.hashsalt": chart.title}):
        figure = Figure(figsize=INCHES, facecolor="none")
        axes = figure.add_axes((0.16, 0.18, 0.82, 0.77), facecolor="none")  # fixed: a layout takes twice the time
        for number, (label, (updates, values)) in enumerate(chart.curves.items()):
            turn, index = divmod(number, len(COLOURS))  # every turn pairs the dashes with other colours
            dashes = DASHES[(index + turn) % len(DASHES)]
            marker = "o" if len(values) <= MAX_MARKS else ""
            axes.plot(updates, values, dashes, color=COLOURS[index], label=label, lw=1.8, marker=marker, ms=3)
        if chart.level:
            name, value = chart.level
            axes.axhline(value, color=INK, lw=1, ls=(0, (1, 2)), label=name)
        if chart.diagonal:
            axes.plot((0, 100), (0, 100), color=INK, lw=1, ls=(0, (1, 2)), label=chart.diagonal)
        axes.set(xlabel=chart.over, ylabel=chart.unit)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-3, 5))
        axes.grid(color=INK, alpha=0.15, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if len(chart.curves) > 1 or chart.level or chart.diagonal:
            axes.legend(frameon=False, fontsize=9)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])  # "axes_1" and the like repeat in every chart
    for number, colour in enumerate(COLOURS, 1):
        text = text.replace(colour, f"var(--line-{number})")
    text = text.replace(INK, "currentColor")
    width, height = (round(72 * inches) for inches in INCHES)
    ends = (f"{label} ends at {values[-1]:.3g}" for label, (_, values) in chart.curves.items())
    label = escape(f"{chart.title}: {chart.unit} by {chart.over}. {', '.join(ends)}.")
    head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width} {height}" role="img" '
    return re.sub(r"<svg[^>]*>", lambda _: f'{head}aria-label="{label}">', text, count=1)
