"""A run's curves from metrics.jsonl, as SVG to put into a page.

Text and axes take the page's own text colour and the lines its variables --line-1 to --line-4, so that a chart is
readable on light and on dark pages; lines differ by dashes as well as by colour.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

POINTS = 400  # of a line; more are averaged in blocks
INCHES = (5.2, 2.9)
FEW = 30  # points that are marked one by one
INK = "#010203"  # stands for the page's text colour until the SVG is written
COLOURS = ("#010204", "#010205", "#010206", "#010207")  # each stands for one of --line-1 ...
DASHES = ("-", "--", "-.", ":")
Curve = tuple[np.ndarray, np.ndarray]  # updates, values
Lines = Sequence[Mapping[str, Any]]  # of metrics.jsonl


@dataclass(frozen=True)
class Chart:
    """Curves over updates under one axis, labelled `unit`. `level` is a value to compare with: (name, value)."""

    title: str
    unit: str
    curves: Mapping[str, Curve]
    level: tuple[str, float] | None = None


def learning_curves(lines: Lines, prior_mean: float = 1.0, prior_variance: float | None = None) -> list[Chart]:
    """What there is of loss, KL, learned noise, changed words, learning rate and gradient; no empty chart.

    Args:
        prior_mean: of mu.
        prior_variance: alpha; None where the method has no prior.
    """
    passes = sorted({name for line in lines for name in line if name.startswith("nll_")})
    sigma = None if prior_variance is None else ("√α, the prior's", math.sqrt(prior_variance))
    charts = [
        ("Loss", "nats", {"loss": "loss", **{name: f"NLL, {name[4:]} pass" for name in passes}}, None),
        ("KL to the prior", "nats per token", {"kl_per_token": "KL"}, None),
        ("Mean of the noise", "mean μ over dimensions", {"mu": "μ"}, (f"{prior_mean:g}, the prior's", prior_mean)),
        ("Distance of the mean from the prior's", f"mean |μ − {prior_mean:g}|", {"mu_distance": "|μ − prior|"}, None),
        ("Deviation of the noise", "mean σ over dimensions", {"sigma": "σ"}, sigma),
        (
            "Tokens whose embedding is nearest to another word's",
            "share of tokens",
            {"words_changed": "perturbed", "words_changed_clean": "as they are"},
            None,
        ),
        ("Validation", "%", {"validation_f1": "F1", "validation_exact_match": "EM"}, None),
        ("Learning rate", "learning rate", {"learning_rate": "learning rate"}, None),
        ("Gradient", "global L2 norm before clipping", {"grad_norm": "norm"}, None),
    ]
    made = []
    for title, unit, names, level in charts:
        found = {label: curve(lines, name) for name, label in names.items()}
        if curves := {label: one for label, one in found.items() if one}:
            made.append(Chart(title, unit, curves, level))
    return made


def throughput(lines: Lines) -> Chart | None:
    """Samples/s of each stretch between two logged updates; the lines hold means since the run's start."""
    known = [line for line in lines if is_number(line.get("samples_per_second")) and is_number(line.get("seconds"))]
    seconds = np.array([0.0, *(line["seconds"] for line in known)])
    samples = np.array([0.0, *(line["samples_per_second"] * line["seconds"] for line in known)])
    took = np.diff(seconds)
    if not known or not (took > 0).all():
        return None
    updates = np.array([line["update"] for line in known])
    return Chart("Throughput", "samples/s", {"samples/s": _thin(updates, np.diff(samples) / took)})


def curve(lines: Lines, name: str) -> Curve | None:
    """(updates, values) of the lines that have this number; None where there are no such."""
    found = [(line["update"], line[name]) for line in lines if is_number(line.get(name))]
    return _thin(*np.array(found, dtype=float).T) if found else None


def is_number(value: Any) -> bool:
    """One that a chart can show: neither true nor false, nor too large for a float."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _thin(updates: np.ndarray, values: np.ndarray) -> Curve:
    """Means of blocks of neighbours, `POINTS` at most."""
    blocks = min(POINTS, len(values))
    return tuple(np.array([part.mean() for part in np.array_split(one, blocks)]) for one in (updates, values))


def svg(chart: Chart) -> str:
    """The chart as an `<svg>` element whose text is text, for a page that sets --line-1 to --line-4."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    axis = {f"{side}.{part}": INK for side in ("xtick", "ytick") for part in ("color", "labelcolor")}
    style = axis | {"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "legend.labelcolor": INK}
    # the salt makes names inside one chart unlike those of another one in the same page, and the same each time
    style |= {"svg.fonttype": "none", "svg.hashsalt": chart.title, "font.family": "sans-serif", "font.size": 10}
    with mpl.rc_context(style):
        figure = Figure(figsize=INCHES, facecolor="none")  # a fixed place for the axes: layout takes half the time
        axes = figure.add_axes((0.16, 0.18, 0.82, 0.77), facecolor="none")
        for number, (label, (updates, values)) in enumerate(chart.curves.items()):
            turn, place = divmod(number, len(COLOURS))  # in each turn the dashes go to other colours
            colour, dashes = COLOURS[place], DASHES[(place + turn) % len(DASHES)]
            marker = "o" if len(values) <= FEW else ""
            axes.plot(updates, values, dashes, color=colour, label=label, lw=1.8, marker=marker, ms=3)
        if chart.level:
            name, value = chart.level
            axes.axhline(value, color=INK, lw=1, ls=(0, (1, 2)), label=name)
        axes.set(xlabel="update", ylabel=chart.unit)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-3, 5))
        axes.grid(color=INK, alpha=0.15, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if len(chart.curves) > 1 or chart.level:
            axes.legend(frameon=False, fontsize=9)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_page(written.getvalue(), chart)


def _for_page(text: str, chart: Chart) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # "axes_1" and the like, which every chart has
    for number, colour in enumerate(COLOURS, 1):
        text = text.replace(colour, f"var(--line-{number})")
    text = text.replace(INK, "currentColor")
    width, height = (round(72 * inches) for inches in INCHES)
    label = f"{chart.title}: {chart.unit} by update"
    head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width} {height}" role="img" '
    return re.sub(r"<svg[^>]*>", lambda _: f'{head}aria-label="{label}">', text, count=1)
