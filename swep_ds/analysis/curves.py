"""Curves over an axis whose labels are numbers: scores against the share of training questions, or of synthetic pairs.

A figure per metric, a panel per data set, a line per method, and around it a band of one deviation over seeds.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from swep_ds.analysis import plotting
from swep_ds.analysis.formats import HEADS
from swep_ds.analysis.plotting import COLOURS, MARKS
from swep_ds.analysis.table import Table
from swep_ds.errors import InputError
from swep_ds.files import LONGEST_NAME

PANEL = (3.1, 2.5)  # inches
PANELS_IN_A_ROW = 4  # at most
TIMES = {"": 1, "%": 1, "k": 1e3, "M": 1e6}
LOGARITHMIC_FROM = 15  # times that the largest number is the smallest
Block = dict[str, Any]


def number(label: str) -> float | None:
    """Of a label like "10 %", "0.5", "20,000", "20k", "1M" or "1e-4"; None where it is another text."""
    found = re.fullmatch(r"(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*([%kM]?)", label.strip())
    return float(found[1].replace(",", "")) * TIMES[found[2]] if found else None


def left_out(table: Table) -> list[str]:
    """A line for each axis that has points without a number beside those that have one."""
    notes = []
    for axis in dict.fromkeys(axis for block in table["blocks"] for axis in block["labels"]):
        labels = dict.fromkeys(block["labels"][axis] for block in table["blocks"] if axis in block["labels"])
        others = [label for label in labels if number(label) is None]
        if 0 < len(others) < len(labels):
            notes.append(f"The curve over {axis} is without {', '.join(others)}: no number.")
    return notes


def draw(table: Table, folder: Path) -> list[Path]:
    """Writes each curve that the table (`table.make`) holds as PNG and SVG; returns the files.

    Raises:
        InputError: the folder cannot be written to.
    """
    files = []
    groups = list(_groups(table["blocks"]))
    for axis, title, blocks in groups:
        several = sum(one == axis for one, _, _ in groups) > 1
        name = "-".join(_slug(part) for part in ("curve", axis, *([title] if several else [])))[:LONGEST_NAME]
        for metric, head in HEADS.items():
            figure = _figure(axis, title, blocks, metric)
            for suffix in ("png", "svg"):
                files.append(folder / f"{name}-{head.lower()}.{suffix}")
                try:
                    figure.savefig(files[-1], dpi=160)
                except OSError as error:
                    raise InputError(f"{files[-1]}: cannot be written ({error.strerror})") from None
    return files


def _groups(blocks: Sequence[Block]) -> Iterator[tuple[str, str, list[Block]]]:
    """(axis, title, its blocks with scores in order) of each axis of numbers, for each model and other axes' point."""
    for axis in dict.fromkeys(axis for block in blocks for axis in block["labels"]):
        along = [one for one in blocks if one["columns"] and number(one["labels"].get(axis, "")) is not None]
        by_title: dict[str, list[Block]] = {}
        for block in along:
            others = [f"{other} {label}" for other, label in block["labels"].items() if other != axis]
            by_title.setdefault(", ".join([block["model"], *others]), []).append(block)
        for title, own in by_title.items():
            if len(own) > 1:
                yield axis, title, sorted(own, key=lambda block: number(block["labels"][axis]))


def _figure(axis: str, title: str, blocks: Sequence[Block], metric: str):
    columns = list(dict.fromkeys(column for block in blocks for column in block["columns"]))
    methods = list(dict.fromkeys(row["name"] for block in blocks for row in block["rows"]))
    down = -(-len(columns) // PANELS_IN_A_ROW)
    across = -(-len(columns) // down)
    figure = plotting.figure(layout="constrained", figsize=(PANEL[0] * across, PANEL[1] * down + 0.8))
    panels = figure.subplots(down, across, squeeze=False)
    lines = {}
    for panel, column in zip(panels.flat, columns, strict=False):
        for method, colour, mark in zip(methods, cycle(COLOURS), cycle(MARKS), strict=False):
            if points := list(_points(axis, blocks, method, column, metric)):
                lines[method] = _line(panel, points, colour, mark)
        _scale(panel, axis, [block["labels"][axis] for block in blocks])
        panel.set_title(column, fontsize="medium")
        panel.set_ylabel(f"{HEADS[metric]} (%)")
    for panel in panels.flat[len(columns) :]:
        panel.remove()
    figure.suptitle(f"{title}: mean over seeds, band: ± one standard deviation", fontsize="medium")
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=min(len(lines), 6), frameon=False)
    return figure


def _points(
    axis: str, blocks: Sequence[Block], method: str, column: str, metric: str
) -> Iterator[tuple[float, float, float]]:
    """(number, mean, deviation, 0 of a single run) of each block that has such a score."""
    for block in blocks:
        for row in block["rows"]:
            if row["name"] == method and column in row["scores"]:
                cell = row["scores"][column][metric]
                yield number(block["labels"][axis]), cell["mean"], cell["std"] or 0.0


def _line(panel, points: Sequence[tuple[float, float, float]], colour: str, mark: str):
    x, mean, deviation = zip(*points, strict=True)
    low, high = ([m + side * d for m, d in zip(mean, deviation, strict=True)] for side in (-1, 1))
    panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    [line] = panel.plot(x, mean, color=colour, marker=mark, markersize=4.5, linewidth=1.4)
    return line


def _scale(panel, axis: str, labels: Sequence[str]) -> None:
    numbers = [number(label) for label in labels]
    if min(numbers) > 0 and max(numbers) >= LOGARITHMIC_FROM * min(numbers):
        panel.set_xscale("log")
    panel.set_xticks(numbers, [label.replace("%", "").strip() for label in labels])
    panel.minorticks_off()
    panel.grid(alpha=0.25)
    panel.set_xlabel(f"{axis} (%)" if all("%" in label for label in labels) else axis)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
