"""A table (`table.make`) as Markdown, CSV, LaTeX, JSON and on the terminal: the same numbers in each."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table as RichTable
from rich.text import Text

from swep_ds.analysis.crossed import LEVEL
from swep_ds.analysis.robustness import ABOVE
from swep_ds.analysis.spreadsheet import shown
from swep_ds.analysis.table import Block, Table
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError, printable
from swep_ds.common.files import write_atomically
from swep_ds.evaluation.calibration import CALIBRATED, CALIBRATION
from swep_ds.evaluation.results import METRICS

SUFFIXES = ("md", "csv", "tex", "json")
WIDTH = 140  # characters of the printed table if there is no terminal
HEADS = {"exact_match": "EM", "f1": "F1"}
# scores in one cell, by the head of their grid
SCORE_GRIDS = {"EM / F1": METRICS, "ECE / AURC / coverage": CALIBRATION, "the same, calibrated": CALIBRATED}
SCORE_GRIDS |= {"F1 above the line": (ABOVE,)}
DIFFERENCE_HEADS = ["data set", "difference", f"{LEVEL} %: other seeds and questions", "p (Holm)", "no difference"]
DIFFERENCE_HEADS += ["SD over seeds", "n", f"{LEVEL} %: these models, other questions"]
DIFFERENCE_FIGURES = ("std", "n", "low", "high", "p", "holm", "no_difference", "bootstrap_low", "bootstrap_high")
DASH, NOT_AVAILABLE = "-", "n/a"
# a CSV file's columns before those whose names begin with "difference"
COLUMNS = ("model", "method", "data_set", "metric", "runs", "mean", "std", "paper", "against")
MINUS = re.compile(r"(?<![\w.])-(?=\d)")
LATEX_MARKS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
LATEX_MARKS |= {mark: f"\\{mark}" for mark in "&%$#_{}"}
LATEX_PACKAGES = r"% \usepackage{booktabs,graphicx}"
LATEX_BREAK = r"\\{}"  # without the braces, a following bracket would be an optional length
FITTED = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"  # graphicx: at most as wide as the page


@dataclass(frozen=True)
class Style:
    """How a format writes the parts of a cell."""

    escape: Callable[[str], str]
    bold: Callable[[str], str]
    lines: Callable[[Sequence[str]], str]  # several lines in one text


def _latex_escape(text: str) -> str:
    return MINUS.sub("$-$", "".join(LATEX_MARKS.get(mark, mark) for mark in printable(text)))


def _shortstack(lines: Sequence[str]) -> str:
    return rf"\shortstack[r]{{{LATEX_BREAK.join(lines)}}}" if len(lines) > 1 else lines[0]


# Names come from folders and files: `printable` keeps them on one line and from moving the cursor. It comes first, as
# Markdown's backslashes would hide what follows them.
TERMINAL = Style(printable, "\0{}".format, "\n".join)  # \0 marks a bold text
MARKDOWN = Style(lambda text: re.sub(r"([|*_<`\[\]\\])", r"\\\1", printable(text)), "**{}**".format, " ".join)
LATEX = Style(_latex_escape, r"\textbf{{{}}}".format, " ".join)


def write(table: Table, folder: Path) -> None:
    """Writes `table.md`, `table.csv`, `table.tex` and `table.json`; CSV and JSON hold unrounded numbers.

    Raises:
        InputError: the folder cannot be written to.
    """
    texts = [markdown(table), csv(table), latex(table), json.dumps(table, indent=2) + "\n"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in zip(SUFFIXES, texts, strict=True):
            write_atomically(folder / f"table.{suffix}", text)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({error.strerror})") from None


# Cells


@dataclass(frozen=True)
class Grid:
    """A small table of a block; its texts are escaped."""

    title: str  # what the cells hold
    heads: list[str]  # all columns' but the first, which holds the rows' names
    rows: list[list[list[str]]]  # a cell is a list of texts, such as EM and F1


def grids(block: Block, against: str | None, style: Style) -> list[Grid]:
    """The block's scores, then what else is known: calibration, points above the line, differences."""
    result, heads = [], list(map(style.escape, DIFFERENCE_HEADS))
    for title, metrics in SCORE_GRIDS.items():
        if metrics == METRICS or any(metrics[0] in cell for row in block["rows"] for cell in row["scores"].values()):
            result.append(_score_grid(block, title, metrics, style))
    for metric, head in HEADS.items():
        if entries := _differences(block, metric):
            rows = [_difference_row(row, column, entry, style) for row, column, entry in entries]
            result.append(Grid(f"{head} less {style.escape(against)}", heads, rows))
    if block["primary"]:
        rows = [
            _difference_row(
                f"{entry['row']} less {entry['base']}, {HEADS[entry['metric']]}", entry["column"], entry, style
            )
            for entry in block["primary"]
        ]
        result.append(Grid("primary comparison", ["p" if head == "p (Holm)" else head for head in heads], rows))
    return result


def _score_grid(block: Block, title: str, metrics: Sequence[str], style: Style) -> Grid:
    """A row per variant, a column per data set with these scores; the number of runs comes last."""
    rows = block["rows"]
    columns = [
        column
        for column in block["columns"]
        if metrics == METRICS or any(metrics[0] in row["scores"].get(column, {}) for row in rows)
    ]
    cells = [cell for row in rows for cell in row["scores"].values()]
    with_paper = any(cell[metric].get("paper") is not None for cell in cells for metric in metrics if metric in cell)

    def text(figures: dict[str, Any] | None) -> str:
        if figures is None:
            return DASH
        std = f" ± {figures['std']:.2f}" if figures["std"] is not None else ""
        sign = "+" if metrics == (ABOVE,) else ""
        mean = style.escape(f"{figures['mean']:{sign}.2f}{std}")
        paper = DASH if figures.get("paper") is None else f"{figures['paper']:.2f}"
        return style.lines([mean, *([f"({paper})"] if with_paper else [])])

    lines = []
    for row in rows:
        scores = row["scores"]
        texts = [[text(scores[column].get(metric)) for metric in metrics] if scores else [DASH] for column in columns]
        lines.append([[style.escape(row["name"])], *texts, [str(len(row["seeds"]))]])
    return Grid(title, [*map(style.escape, columns), "runs"], lines)


def _differences(block: Block, metric: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(row, data set, difference), by data set."""
    return [
        (row["name"], column, row["differences"][column][metric])
        for column in block["columns"]
        for row in block["rows"]
        if row["differences"]
    ]


def _difference_row(row: str, column: str, entry: dict[str, Any], style: Style) -> list[list[str]]:
    def bounds(low: float | None, high: float | None) -> str:
        return NOT_AVAILABLE if low is None else style.escape(f"[{low:+.2f}, {high:+.2f}]")

    mean = style.escape(f"{entry['mean']:+.2f}")
    p = entry["holm"]
    texts = [
        style.escape(column),
        style.bold(mean) if entry["significant"] else mean,
        bounds(entry["low"], entry["high"]),
        NOT_AVAILABLE if p is None else style.escape("< 0.001" if p < 0.001 else f"{p:.3f}"),
        {True: "yes", False: "", None: NOT_AVAILABLE}[entry["no_difference"]],
        NOT_AVAILABLE if entry["std"] is None else f"{entry['std']:.2f}",
        str(entry["n"]),
        bounds(entry["bootstrap_low"], entry["bootstrap_high"]),
    ]
    return [[style.escape(row)], *([text] for text in texts)]


def _remarks(table: Table) -> tuple[list[str], list[str]]:
    """The notes and the missing runs, a line each."""
    return list(map(printable, table["notes"])), [printable(run["line"]) for run in table["missing"]]


# Formats


def markdown(table: Table) -> str:
    """EM / F1 in each cell, a dash if no run is finished; significant differences in bold."""
    parts = []
    for block in table["blocks"]:
        title = f"**{MARKDOWN.escape(block['title'])}**\n\n"
        for grid in grids(block, table["against"], MARKDOWN):
            rows = [list(map(" / ".join, row)) for row in grid.rows]
            parts.append(title + _pipes([grid.title, *grid.heads], rows))
            title = ""
    notes, missing = _remarks(table)
    parts += ["".join(f"- {MARKDOWN.escape(note)}\n" for note in notes)] if notes else []
    parts += ["Missing:\n\n" + "".join(f"- {MARKDOWN.escape(line)}\n" for line in missing)] if missing else []
    return "\n".join(parts)


def _pipes(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *rows))


def csv(table: Table) -> str:
    """A line per block, variant, data set and score, with every number of the table unrounded."""
    lines = []
    for block in table["blocks"]:
        for row in block["rows"]:
            for column, metric, cell in _score_cells(row):
                difference = row["differences"].get(column, {}).get(metric, {})
                lines.append(
                    {
                        "model": block["model"],
                        **{_column(axis): label for axis, label in block["labels"].items()},
                        "method": row["name"],
                        "data_set": column,
                        "metric": metric,
                        "runs": len(row["seeds"]),
                        **{key: cell.get(key) for key in ("mean", "std", "paper")},
                        "against": table["against"] if difference else None,
                        "difference": difference.get("mean"),
                        **{f"difference_{key}": difference.get(key) for key in DIFFERENCE_FIGURES},
                    }
                )
    return pd.DataFrame([{shown(name): shown(value) for name, value in line.items()} for line in lines]).to_csv(
        index=False
    )


def _column(axis: str) -> str:
    """The column of an axis, whose name may be that of another column."""
    return f"axis_{axis}" if axis in COLUMNS or axis.startswith("difference") else axis


def _score_cells(row: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(data set, score, figures)"""
    return [(column, metric, cell[metric]) for column, cell in row["scores"].items() for metric in cell]


def latex(table: Table) -> str:
    """A `table` environment for each grid of each block, then notes and missing runs as paragraphs.

    EM is above F1; a table wider than the text is scaled down to it.
    """
    parts = [LATEX_PACKAGES, ""]
    for block in table["blocks"]:
        for grid in grids(block, table["against"], LATEX):
            rows = [list(map(_shortstack, row)) for row in grid.rows]
            frame = pd.DataFrame([row[1:] for row in rows], [row[0] for row in rows], grid.heads)
            body = frame.to_latex(escape=False, multirow=False, column_format="l" + "r" * len(grid.heads))
            caption = f"{_latex_escape(block['title'])}: {grid.title}."
            head = [r"\begin{table}", r"\centering\footnotesize", rf"\caption{{{caption}}}", FITTED]
            parts += [*head, f"{body}}}", r"\end{table}", ""]
    notes, missing = _remarks(table)
    for line in [*notes, *(f"Missing: {line}" for line in missing)]:
        parts.append(rf"{{\footnotesize\noindent {_latex_escape(line)}\par}}")
    return "\n".join(parts) + "\n"


# Terminal


def show(table: Table) -> None:
    """Prints the blocks, the notes, and what is missing."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for block in table["blocks"]:
        console.print(Text(printable(block["title"]), "bold"))
        for grid in grids(block, table["against"], TERMINAL):
            console.print(_rich_table(grid))
    notes, missing = _remarks(table)
    lines = Console()
    for line in (*notes, *(f"missing: {line}" for line in missing)):
        lines.print(line)


def _rich_table(grid: Grid) -> RichTable:
    """The texts of a cell below each other, such as F1 below EM."""
    table = RichTable(show_lines=any(len(cell) > 1 for row in grid.rows for cell in row))
    for number, head in enumerate([grid.title.replace(" / ", "\n"), *grid.heads]):
        table.add_column(Text(head), justify="right" if number else "left")
    for row in grid.rows:
        table.add_row(*(_marked("\n".join(cell)) for cell in row))
    return table


def _marked(text: str) -> Text:
    return Text.assemble((text.lstrip("\0"), "bold" if text.startswith("\0") else ""))
