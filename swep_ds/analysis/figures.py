"""The figures of a table, each of one metric: curves, forest plots, and F1 on shifted sets against that in domain.

Over an axis of numbers there is a curve, with a panel per data set and a line per method, in a band of one deviation
over seeds. A block that is in no curve has a forest plot: the methods' differences on each data set.
"""

from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from swep_ds.analysis.crossed import LEVEL
from swep_ds.analysis.robustness import ABOVE, Line
from swep_ds.analysis.table import HEADS, Table
from swep_ds.evaluation.results import OUT_OF_DOMAIN
from swep_ds.sweeps.sweep import slug

# The palette of Okabe and Ito, which readers with any colour vision can tell apart, without its yellow, which is pale
# on white; the marks tell lines apart in black and white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^vPX*"
PANELS_IN_A_ROW = 4  # at most
LOGARITHMIC_FROM = 15  # the ratio of the largest number to the smallest


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes a figure as PNG, SVG and PDF; returns the files."""
    files = [folder / f"{name}.{suffix}" for suffix in ("png", "svg", "pdf")]
    with mpl.rc_context({"pdf.fonttype": 42}):  # publishers refuse the default, Type 3 fonts
        for file in files:
            figure.savefig(file, dpi=160)
    return files


@mpl.rc_context({"text.parse_math": False})  # names may have dollars
def draw(table: Table, folder: Path) -> list[Path]:
    """Writes the figures of a table; returns the files."""
    files = []
    cells = table.cells[table.cells["data_set"].notna()]
    in_curves = set()
    for axis in dict.fromkeys(axis for labels in cells["labels"] for axis in labels):
        curves = _curves(cells, axis)
        for title, points in curves.items():
            in_curves |= set(points["block"])
            name = f"curve-{slug(axis)}"
            if len(curves) > 1:
                name += f"-{slug(title)}"
            for metric, head in HEADS.items():
                files += save(plot_curve(axis, title, points, metric), folder, f"{name}-{head.lower()}")
    for (block, metric), points in cells.groupby(["block", "metric"], sort=False):
        if metric in HEADS and block not in in_curves:
            name = f"forest-{table.names[block]}-{HEADS[metric].lower()}"
            files += save(plot_forest(block, points, HEADS[metric], table.against), folder, name)
    if table.line and (cells["metric"] == ABOVE).any():
        files += save(plot_line(cells, table.line), folder, "robustness")
    return files


def _curves(cells: pd.DataFrame, axis: str) -> dict[str, pd.DataFrame]:
    """The cells of an axis of numbers such as "10 %" or "1e-4", with their "label" and the number "at" it, in order, by
    the title of each model and point of the other axes; only where there are two numbers or more."""

    def title(cell: pd.Series) -> str:
        others = [f"{other} {label}" for other, label in cell["labels"].items() if other != axis]
        return ", ".join([cell["model"], *others])

    labels = cells["labels"].map(lambda labels: labels.get(axis, ""))
    numbers = pd.to_numeric(labels.str.removesuffix("%"), errors="coerce")
    points = cells.assign(label=labels, at=numbers.astype(float), title=cells.apply(title, axis=1))
    points = points[np.isfinite(points["at"])].sort_values("at", kind="stable")
    return {title: group for title, group in points.groupby("title", sort=False) if group["at"].nunique() > 1}


def plot_curve(axis: str, title: str, points: pd.DataFrame, metric: str) -> Figure:
    """One metric over an axis; `points` as in `_curves`."""
    columns = points["data_set"].unique()
    down = -(-len(columns) // PANELS_IN_A_ROW)
    across = -(-len(columns) // down)
    figure = Figure(layout="constrained", figsize=(3.1 * across, 2.5 * down + 0.8))
    labels = points.drop_duplicates("at").set_index("at")["label"]
    looks = _looks(points)
    lines = {}
    for place, column in enumerate(columns, 1):
        panel = figure.add_subplot(down, across, place)
        of_panel = points[(points["data_set"] == column) & (points["metric"] == metric)]
        for method, of_line in of_panel.groupby("method", sort=False):
            x, mean, std = of_line[["at", "mean", "std"]].fillna(0.0).to_numpy().T
            panel.fill_between(x, mean - std, mean + std, color=looks[method]["color"], alpha=0.15, linewidth=0)
            [lines[method]] = panel.plot(x, mean, **looks[method], markersize=4.5, linewidth=1.4)
        if labels.index.min() > 0 and labels.index.max() >= LOGARITHMIC_FROM * labels.index.min():
            panel.set_xscale("log")
        panel.set_xticks(labels.index, labels.str.replace("%", "").str.strip())
        panel.minorticks_off()
        panel.grid(alpha=0.25)
        panel.set_title(column, fontsize="medium")
        panel.set_xlabel(f"{axis} (%)" if labels.str.contains("%").all() else axis)
        panel.set_ylabel(f"{HEADS[metric]} (%)")
    figure.suptitle(f"{title}: mean over seeds, band: ± one standard deviation", fontsize="medium")
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=min(len(lines), 6), frameon=False)
    return figure


def plot_forest(title: str, points: pd.DataFrame, head: str, against: str | None) -> Figure:
    """One metric of a block: differences to `against` with both intervals or, where there is none, scores."""
    looks = _looks(points)
    at, number, widths = "difference", "difference_n", {"difference": 1.3, "difference_bootstrap": 5.0}
    label = f"{head} less {against} (points), {LEVEL} % intervals\nthin: other seeds and questions"
    label += "\nthick: these models, other questions"
    if points["difference"].isna().all():
        at, number, widths = "mean", "runs", {"deviation": 1.3}
        low, high = points["mean"] - points["std"], points["mean"] + points["std"]
        points = points.assign(deviation_low=low, deviation_high=high)
        label = f"{head} (%), ± one standard deviation over seeds"
    points = points.dropna(subset=at)
    data_sets = list(points["data_set"].unique())
    methods = points["method"].unique()
    figure = Figure(layout="constrained", figsize=(6.4, 2.0 + 0.22 * len(data_sets) * len(methods)))
    panel = figure.subplots()
    lines = {}
    for offset, method in zip(np.linspace(-0.4, 0.4, 2 * len(methods) + 1)[1::2], methods, strict=True):
        of_row = points[points["method"] == method]
        y = of_row["data_set"].map(data_sets.index) + offset
        for name, width in widths.items():
            ends = of_row[f"{name}_low"], of_row[f"{name}_high"]
            panel.hlines(y, *ends, looks[method]["color"], linewidth=width, alpha=1.3 / width)
        [lines[f"{method} (n = {of_row[number].iloc[0]:.0f})"]] = panel.plot(of_row[at], y, ls="", **looks[method])
    if at == "difference":
        panel.axvline(0, color="black", linewidth=0.8, linestyle="--", zorder=0)
    panel.set(xlabel=label, yticks=range(len(data_sets)), yticklabels=data_sets, ylim=(len(data_sets) - 0.5, -0.5))
    panel.set_title(title, fontsize="medium")
    panel.grid(axis="x", alpha=0.25)
    figure.legend(lines.values(), lines, loc="outside lower center", frameon=False)  # a line each: names may be long
    return figure


def _looks(cells: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Colour and mark of each row."""
    looks = zip(cells["method"].unique(), cycle(COLOURS), cycle(MARKS), strict=False)
    return {method: {"color": colour, "marker": mark} for method, colour, mark in looks}


def plot_line(cells: pd.DataFrame, line: Line) -> Figure:
    """A panel per shifted set. A point is the mean of a row's runs in a block of the table."""
    looks = _looks(cells)
    f1 = cells[cells["metric"] == "f1"].pivot(index=["block", "method"], columns="data_set", values="mean")
    above = cells[(cells["metric"] == ABOVE) & (cells["data_set"] != OUT_OF_DOMAIN)]
    names = above["data_set"].unique()
    figure = Figure(layout="constrained", figsize=(3.4 * len(names), 3.7))
    points = {}
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False).flat, names, strict=True):
        x = []
        for block, method in above.loc[above["data_set"] == name, ["block", "method"]].to_numpy():
            scores = f1.loc[block, method].dropna()
            x.append(scores[line.in_domain_of(list(scores.index))])
            [points[method]] = axes.plot(x[-1], scores[name], ls="", **looks[method], markersize=5)
        ends = np.array([min(x) - 1, max(x) + 1])
        axes.plot(ends, line.of(name).predict(ends), color="black", linewidth=1, linestyle="--")
        axes.set(title=name, xlabel=f"F1 on {line.in_domain} (%)", ylabel="F1 (%)")
        axes.grid(alpha=0.25)
    figure.legend(points.values(), points, loc="outside lower center", ncols=min(len(points), 6), frameon=False)
    return figure
