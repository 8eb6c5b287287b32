"""Curves over an axis whose labels are numbers: scores against the share of training questions, or of synthetic pairs.

There is a figure per metric, a panel per data set and a line per method, in a band of one deviation over seeds.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from swep_ds.analysis.formats import HEADS
from swep_ds.analysis.plotting import COLOURS, MARKS, new_figure, save
from swep_ds.analysis.table import Block, Table
from swep_ds.sweeps.sweep import slug

MAX_NAME = 240  # bytes of a figure's name; a file system takes 255
PANEL = (3.1, 2.5)  # inches
PANELS_IN_A_ROW = 4  # at most
FACTORS = {"": 1, "%": 1, "k": 1e3, "M": 1e6}
LOGARITHMIC_FROM = 15  # the ratio of the largest number to the smallest


def number(label: str) -> float | None:
    """The value of a label like "10 %", "0.5", "20,000", "20k", "1M" or "1e-4"; None for other texts."""
    whole = r"-?(?:\d{1,3}(?:,\d{3})+|\d+)"  # a decimal comma would be taken for one of thousands
    match = re.fullmatch(rf"({whole}(?:\.\d+)?(?:e[+-]?\d+)?)\s*([%kM]?)", label.strip())
    value = float(match[1].replace(",", "")) * FACTORS[match[2]] if match else math.nan
    return value if math.isfinite(value) else None


def notes(table: Table) -> list[str]:
    """A line for each axis on which some labels are numbers and others are not."""
    lines = []
    for axis in dict.fromkeys(axis for block in table["blocks"] for axis in block["labels"]):
        labels = dict.fromkeys(block["labels"][axis] for block in table["blocks"] if axis in block["labels"])
        others = [label for label in labels if number(label) is None]
        if 0 < len(others) < len(labels):
            lines.append(f"The curve over {axis} is without {', '.join(others)}: not a number.")
    return lines


def draw(table: Table, folder: Path) -> list[Path]:
    """Writes each curve of a table (`table.make`) as PNG and SVG; returns the files.

    Raises:
        InputError: the folder cannot be written to.
    """
    files = []
    groups = list(_groups(table["blocks"]))
    for axis, title, blocks in groups:
        is_only = sum(axis == other for other, _, _ in groups) == 1
        name = "-".join(slug(part) for part in ("curve", axis, *([] if is_only else [title])))[:MAX_NAME]
        for metric, head in HEADS.items():
            files += save(plot(axis, title, blocks, metric), folder, f"{name}-{head.lower()}")
    return files


def _groups(blocks: Sequence[Block]) -> Iterator[tuple[str, str, list[Block]]]:
    """(axis, title, blocks sorted by number) for each axis of numbers, each model and each point of the other axes."""
    for axis in dict.fromkeys(axis for block in blocks for axis in block["labels"]):
        by_title: dict[str, list[Block]] = {}
        for block in blocks:
            if block["columns"] and number(block["labels"].get(axis, "")) is not None:
                others = [f"{other} {label}" for other, label in block["labels"].items() if other != axis]
                by_title.setdefault(", ".join([block["model"], *others]), []).append(block)
        for title, group in by_title.items():
            if len(group) > 1:
                yield axis, title, sorted(group, key=lambda block: number(block["labels"][axis]))


def plot(axis: str, title: str, blocks: Sequence[Block], metric: str):
    """The matplotlib figure of one metric."""
    columns = list(dict.fromkeys(column for block in blocks for column in block["columns"]))
    methods = list(dict.fromkeys(row["name"] for block in blocks for row in block["rows"]))
    down = -(-len(columns) // PANELS_IN_A_ROW)
    across = -(-len(columns) // down)
    figure = new_figure(layout="constrained", figsize=(PANEL[0] * across, PANEL[1] * down + 0.8))
    panels = figure.subplots(down, across, squeeze=False)
    lines = {}
    for panel, column in zip(panels.flat, columns, strict=False):
        for method, colour, mark in zip(methods, cycle(COLOURS), cycle(MARKS), strict=False):
            points = [
                (number(block["labels"][axis]), cell["mean"], cell["std"] or 0.0)
                for block in blocks
                for row in block["rows"]
                if row["name"] == method and (cell := row["scores"].get(column, {}).get(metric))
            ]
            if points:
                x, mean, std = zip(*points, strict=True)
                low, high = ([m + side * s for m, s in zip(mean, std, strict=True)] for side in (-1, 1))
                panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
                [lines[method]] = panel.plot(x, mean, color=colour, marker=mark, markersize=4.5, linewidth=1.4)
        _set_axis(panel, axis, [block["labels"][axis] for block in blocks])
        panel.set_title(column, fontsize="medium")
        panel.set_ylabel(f"{HEADS[metric]} (%)")
    for panel in panels.flat[len(columns) :]:
        panel.remove()
    figure.suptitle(f"{title}: mean over seeds, band: ± one standard deviation", fontsize="medium")
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=min(len(lines), 6), frameon=False)
    return figure


def _set_axis(panel, axis: str, labels: Sequence[str]) -> None:
    numbers = [number(label) for label in labels]
    if min(numbers) > 0 and max(numbers) >= LOGARITHMIC_FROM * min(numbers):
        panel.set_xscale("log")
    panel.set_xticks(numbers, [label.replace("%", "").strip() for label in labels])
    panel.minorticks_off()
    panel.grid(alpha=0.25)
    panel.set_xlabel(f"{axis} (%)" if all("%" in label for label in labels) else axis)
