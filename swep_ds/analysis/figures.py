"""The figures of a table: a curve over each axis of numbers, and F1 on shifted sets against that in domain.

A curve has a figure per metric, a panel per data set and a line per method, in a band of one deviation over seeds.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from swep_ds.analysis.robustness import ABOVE, Line
from swep_ds.analysis.table import HEADS, Block, Table
from swep_ds.sweeps.sweep import slug

# The palette of Okabe and Ito, which readers with any colour vision can tell apart, without its yellow, which is pale
# on white; the marks tell lines apart in black and white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^vPX*"
CURVE_PANEL, LINE_PANEL = (3.1, 2.5), (3.4, 3.1)  # inches
PANELS_IN_A_ROW = 4  # at most
LOGARITHMIC_FROM = 15  # the ratio of the largest number to the smallest


def new_figure(**options):
    """A `matplotlib.figure.Figure` outside pyplot. The import is lazy because it takes a third of a second."""
    from matplotlib.figure import Figure

    return Figure(layout="constrained", **options)


def save(figure, folder: Path, name: str, dpi: int | str = 160) -> list[Path]:
    """Writes a figure as PNG and SVG; returns the files."""
    files = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=dpi)
    return files


def draw(table: Table, folder: Path) -> list[Path]:
    """Writes the figures of a table (`table.make`); returns the files."""
    files = []
    for axis in dict.fromkeys(axis for block in table["blocks"] for axis in block["labels"]):
        curves = _curves(table["blocks"], axis)
        for title, blocks in curves.items():
            name = f"curve-{slug(axis)}"
            if len(curves) > 1:
                name += f"-{slug(title)}"
            for metric, head in HEADS.items():
                files += save(plot_curve(axis, title, blocks, metric), folder, f"{name}-{head.lower()}")
    if table["line"]:
        figure = plot_line(table["blocks"], Line(**table["line"]))
        if figure:
            files += save(figure, folder, "robustness")
    return files


# Curves


def number(label: str) -> float | None:
    """The value of a label like "10 %", "0.5" or "1e-4"; None for other texts."""
    try:
        value = float(label.removesuffix("%"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _curves(blocks: Sequence[Block], axis: str) -> dict[str, list[Block]]:
    """The blocks of an axis of numbers, sorted by number, by the title of each model and point of the other axes."""
    by_title: dict[str, list[Block]] = {}
    for block in blocks:
        if block["columns"] and number(block["labels"].get(axis, "")) is not None:
            others = [f"{other} {label}" for other, label in block["labels"].items() if other != axis]
            by_title.setdefault(", ".join([block["model"], *others]), []).append(block)
    return {
        title: sorted(group, key=lambda block: number(block["labels"][axis]))
        for title, group in by_title.items()
        if len(group) > 1
    }


def plot_curve(axis: str, title: str, blocks: Sequence[Block], metric: str):
    """The matplotlib figure of one metric."""
    columns = list(dict.fromkeys(column for block in blocks for column in block["columns"]))
    down = -(-len(columns) // PANELS_IN_A_ROW)
    across = -(-len(columns) // down)
    figure = new_figure(figsize=(CURVE_PANEL[0] * across, CURVE_PANEL[1] * down + 0.8))
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    labels = [block["labels"][axis] for block in blocks]
    numbers = [number(label) for label in labels]
    lines = {}
    for panel, column in zip(panels, columns, strict=False):
        for method, (colour, mark) in _looks(blocks).items():
            points = []
            for at, block in zip(numbers, blocks, strict=True):
                for row in block["rows"]:
                    cell = row["scores"].get(column, {}).get(metric)
                    if row["name"] == method and cell:
                        points.append((at, cell["mean"], cell["std"] or 0.0))
            if points:
                x, mean, std = np.array(points).T
                panel.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
                [lines[method]] = panel.plot(x, mean, color=colour, marker=mark, markersize=4.5, linewidth=1.4)
        if min(numbers) > 0 and max(numbers) >= LOGARITHMIC_FROM * min(numbers):
            panel.set_xscale("log")
        panel.set_xticks(numbers, [label.replace("%", "").strip() for label in labels])
        panel.minorticks_off()
        panel.grid(alpha=0.25)
        panel.set_title(column, fontsize="medium")
        panel.set_xlabel(f"{axis} (%)" if all("%" in label for label in labels) else axis)
        panel.set_ylabel(f"{HEADS[metric]} (%)")
    for panel in panels[len(columns) :]:
        panel.remove()
    figure.suptitle(f"{title}: mean over seeds, band: ± one standard deviation", fontsize="medium")
    _legend(figure, lines)
    return figure


def _looks(blocks: Sequence[Block]) -> Mapping[str, tuple[str, str]]:
    """Colour and mark of each row."""
    rows = dict.fromkeys(row["name"] for block in blocks for row in block["rows"])
    return dict(zip(rows, zip(cycle(COLOURS), cycle(MARKS), strict=False), strict=False))


def _legend(figure, lines: Mapping) -> None:
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=min(len(lines), 6), frameon=False)


# F1 on shifted sets against F1 in domain


def plot_line(blocks: Sequence[Block], line: Line):
    """A matplotlib figure with a panel per shifted set, F1 against F1 in domain with the line; None without a panel.

    A point is the mean of a row's runs in a block of the table (`table.make`).
    """
    panels: dict[str, list[tuple[float, float, str]]] = {}
    for block in blocks:
        in_domain = line.in_domain_of(block["columns"])
        for row in block["rows"]:
            for name, cell in row["scores"].items():
                if ABOVE in cell and line.of(name):
                    x = row["scores"][in_domain]["f1"]["mean"]
                    panels.setdefault(name, []).append((x, cell["f1"]["mean"], row["name"]))
    if not panels:
        return None
    looks = _looks(blocks)
    figure = new_figure(figsize=(LINE_PANEL[0] * len(panels), LINE_PANEL[1] + 0.6))
    points = {}
    for axes, (name, places) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        for x, y, method in places:
            colour, mark = looks[method]
            [points[method]] = axes.plot([x], [y], mark, color=colour, markersize=5)
        ends = np.array([min(x for x, _, _ in places) - 1, max(x for x, _, _ in places) + 1])
        axes.plot(ends, line.of(name).predict(ends), color="black", linewidth=1, linestyle="--")
        axes.set(title=name, xlabel=f"F1 on {line.in_domain} (%)", ylabel="F1 (%)")
        axes.grid(alpha=0.25)
    _legend(figure, points)
    return figure
