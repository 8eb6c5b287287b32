"""The figures of a table: a curve over each axis of numbers, and F1 on shifted sets against that in domain.

A curve has a figure per metric, a panel per data set and a line per method, in a band of one deviation over seeds.
"""

from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

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


def save(figure: Figure, folder: Path, name: str, dpi: int | str = 160) -> list[Path]:
    """Writes a figure as PNG and SVG; returns the files."""
    files = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=dpi)
    return files


def draw(table: Table, folder: Path) -> list[Path]:
    """Writes the figures of a table; returns the files."""
    files = []
    cells = table.cells[table.cells["data_set"].notna()]
    for axis in dict.fromkeys(axis for labels in cells["labels"] for axis in labels):
        curves = _curves(cells, axis)
        for title, points in curves.items():
            name = f"curve-{slug(axis)}"
            if len(curves) > 1:
                name += f"-{slug(title)}"
            for metric, head in HEADS.items():
                files += save(plot_curve(axis, title, points, metric), folder, f"{name}-{head.lower()}")
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
    """Of one metric; `points`: see `_curves`."""
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
