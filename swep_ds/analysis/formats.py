"""A table (`table.make`) as Markdown, CSV, LaTeX, JSON and on the terminal: the same numbers in each."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich import markup
from rich.table import Table as RichTable
from rich.text import Text

from swep_ds.analysis import figures, robustness, table
from swep_ds.analysis.crossed import LEVEL
from swep_ds.analysis.robustness import ABOVE
from swep_ds.analysis.runs import RunRef
from swep_ds.analysis.table import HEADS, Block, Table
from swep_ds.common.console import Console
from swep_ds.common.errors import printable
from swep_ds.common.files import write_atomically
from swep_ds.evaluation.calibration import CALIBRATED, CALIBRATION
from swep_ds.evaluation.results import METRICS

SUFFIXES = ("md", "csv", "tex", "json")
WIDTH = 140  # characters of the printed table if there is no terminal
# scores in one cell, by the head of their grid
SCORE_GRIDS = {
    "EM / F1": METRICS,
    "ECE / AURC / coverage": CALIBRATION,
    "the same, calibrated": CALIBRATED,
    "F1 above the line": (ABOVE,),
}
DIFFERENCE_FIGURES = ("std", "n", "low", "high", "p", "holm", "no_difference", "bootstrap_low", "bootstrap_high")
DASH, NOT_AVAILABLE = "-", "n/a"
BETWEEN = " / "  # two scores of a cell
# a CSV file's columns before those whose names begin with "difference"
COLUMNS = ("model", "method", "data_set", "metric", "runs", "mean", "std", "paper", "against")
LATEX_MARKS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
LATEX_MARKS |= {mark: f"\\{mark}" for mark in "&%$#_{}"}
LATEX_BREAK = r"\\{}"  # without the braces, a following bracket would be an optional length
FITTED = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"  # graphicx: at most as wide as the page
FORMULA = ("=", "+", "-", "@", "\\t", "\\r", "＝", "＋", "－", "＠")  # `printable` writes tab and return as \t and \r


def publish(
    refs: Sequence[RunRef], folder: Path | None, against: str | None = None, line: robustness.Line | None = None
) -> Table:
    """Prints the table (`table.make`) and, if a run is finished and `folder` is given, writes it and its figures there.

    Raises InputError: no row is called `against`.
    """
    result = table.make(refs, against, line)
    result["notes"] += figures.notes(result)
    show(result)
    if folder and any(row["scores"] for block in result["blocks"] for row in block["rows"]):
        write(result, folder)
        files = [f"table.{suffix}" for suffix in SUFFIXES] + [file.name for file in figures.draw(result, folder)]
        Console().print(f"in {folder}: {', '.join(files)}")
    return result


def write(table: Table, folder: Path) -> None:
    """Writes `table.md`, `table.csv`, `table.tex` and `table.json`; CSV and JSON hold unrounded numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [markdown(table), csv(table), latex(table), json.dumps(table, indent=2) + "\n"]
    for suffix, text in zip(SUFFIXES, texts, strict=True):
        write_atomically(folder / f"table.{suffix}", text)


class Grid(NamedTuple):
    """A small table of a block, not escaped. The first column has the rows' names under the grid's title."""

    frame: pd.DataFrame
    bold: Sequence[int] = ()  # numbers of the rows whose "difference" is significant

    def written(self, escape: Callable[[str], str], bold: str) -> pd.DataFrame:
        frame = self.frame.map(escape)
        for row in self.bold:
            frame.loc[row, "difference"] = bold.format(frame.loc[row, "difference"])
        return frame.rename(columns=escape)


def grids(block: Block, against: str | None) -> list[Grid]:
    """The block's scores, then what else is known: calibration, points above the line, differences."""
    result = []
    for title, metrics in SCORE_GRIDS.items():
        frame = _scores(block, title, metrics)
        if metrics == METRICS or len(frame.columns) > 2:
            result.append(Grid(frame))
    for metric, head in HEADS.items():
        entries = [
            {"row": row["name"], "column": column, **row["differences"][column][metric]}
            for column in block["columns"]
            for row in block["rows"]
            if row["differences"]
        ]
        result += _differences(f"{head} less {against}", entries)
    primary = [
        entry | {"row": f"{entry['row']} less {entry['base']}, {HEADS[entry['metric']]}"} for entry in block["primary"]
    ]
    return result + _differences("primary comparison", primary)


def _scores(block: Block, title: str, metrics: Sequence[str]) -> pd.DataFrame:
    """A row per variant, a column per data set with these scores; the number of runs comes last."""
    rows = block["rows"]
    figures = [cell.get(metric, {}) for row in rows for cell in row["scores"].values() for metric in metrics]
    with_paper = any(figure.get("paper") is not None for figure in figures)

    def text(figure: dict[str, Any] | None) -> str:
        if figure is None:
            return DASH
        shown = f"{figure['mean']:+.2f}" if metrics == (ABOVE,) else f"{figure['mean']:.2f}"
        if figure["std"] is not None:
            shown += f" ± {figure['std']:.2f}"
        if with_paper:
            paper = figure.get("paper")
            shown += f" ({DASH})" if paper is None else f" ({paper:.2f})"
        return shown

    lines = []
    for row in rows:
        line = {title: row["name"]}
        for column in block["columns"]:
            if metrics == METRICS or any(metrics[0] in other["scores"].get(column, {}) for other in rows):
                cell = row["scores"].get(column)
                line[column] = BETWEEN.join(text(cell.get(metric)) for metric in metrics) if cell else DASH
        lines.append(line | {"runs": str(len(row["seeds"]))})
    return pd.DataFrame(lines)


def _differences(title: str, entries: Sequence[dict[str, Any]]) -> list[Grid]:
    """A grid with a row per difference; none without differences."""

    def bounds(low: float | None, high: float | None) -> str:
        return NOT_AVAILABLE if low is None else f"[{low:+.2f}, {high:+.2f}]"

    lines = []
    for entry in entries:
        p = NOT_AVAILABLE
        if entry["holm"] is not None:
            p = "< 0.001" if entry["holm"] < 0.001 else f"{entry['holm']:.3f}"
        lines.append(
            {
                title: entry["row"],
                "data set": entry["column"],
                "difference": f"{entry['mean']:+.2f}",
                f"{LEVEL} %: other seeds and questions": bounds(entry["low"], entry["high"]),
                "p" if title == "primary comparison" else "p (Holm)": p,
                "no difference": {True: "yes", False: "", None: NOT_AVAILABLE}[entry["no_difference"]],
                "SD over seeds": NOT_AVAILABLE if entry["std"] is None else f"{entry['std']:.2f}",
                "n": str(entry["n"]),
                f"{LEVEL} %: these models, other questions": bounds(entry["bootstrap_low"], entry["bootstrap_high"]),
            }
        )
    bold = [number for number, entry in enumerate(entries) if entry["significant"]]
    return [Grid(pd.DataFrame(lines), bold)] if lines else []


# Formats. Names come from folders and files: `printable` keeps them on one line. It comes first, as Markdown's
# backslashes would hide what follows them.


def _markdown_escape(text: str) -> str:
    return re.sub(r"([|*_<`\[\]\\])", r"\\\1", printable(text))


def markdown(table: Table) -> str:
    """EM / F1 in each cell, a dash if no run is finished; significant differences in bold."""
    parts = []
    for block in table["blocks"]:
        title = f"**{_markdown_escape(block['title'])}**\n\n"
        for grid in grids(block, table["against"]):
            frame = grid.written(_markdown_escape, "**{}**")
            lines = [frame.columns, ["---"] * len(frame.columns), *frame.to_numpy()]
            parts.append(title + "".join(f"| {' | '.join(line)} |\n" for line in lines))
            title = ""
    if table["notes"]:
        parts.append("".join(f"- {_markdown_escape(note)}\n" for note in table["notes"]))
    if table["missing"]:
        parts.append("Missing:\n\n" + "".join(f"- {_markdown_escape(run['line'])}\n" for run in table["missing"]))
    return "\n".join(parts)


def _latex_escape(text: str) -> str:
    escaped = "".join(LATEX_MARKS.get(mark, mark) for mark in printable(text))
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)  # a minus sign


def latex(table: Table) -> str:
    """A `table` environment for each grid of each block, then notes and missing runs as paragraphs.

    EM is above F1; a table wider than the text is scaled down to it.
    """

    def stacked(text: str) -> str:
        return rf"\shortstack[r]{{{text.replace(BETWEEN, LATEX_BREAK)}}}" if BETWEEN in text else text

    parts = [r"% \usepackage{booktabs,graphicx}", ""]
    for block in table["blocks"]:
        for grid in grids(block, table["against"]):
            frame = grid.written(_latex_escape, r"\textbf{{{}}}")
            names = frame.columns[0]
            frame = frame.set_index(names).map(stacked).reset_index()
            layout = "l" + "r" * (len(frame.columns) - 1)
            parts += [r"\begin{table}", r"\centering\footnotesize"]
            parts += [rf"\caption{{{_latex_escape(block['title'])}: {names}.}}", FITTED]
            parts += [f"{frame.to_latex(index=False, escape=False, column_format=layout)}}}", r"\end{table}", ""]
    for line in [*table["notes"], *(f"Missing: {run['line']}" for run in table["missing"])]:
        parts.append(rf"{{\footnotesize\noindent {_latex_escape(line)}\par}}")
    return "\n".join(parts) + "\n"


def csv(table: Table) -> str:
    """A line per block, variant, data set and score, with every number of the table unrounded."""
    lines = []
    for block in table["blocks"]:
        labels = {}
        for axis, label in block["labels"].items():
            is_taken = axis in COLUMNS or axis.startswith("difference")
            labels[f"axis_{axis}" if is_taken else axis] = label
        for row in block["rows"]:
            for column, cell in row["scores"].items():
                for metric, figure in cell.items():
                    difference = row["differences"].get(column, {}).get(metric, {})
                    about = {"model": block["model"], **labels, "method": row["name"], "data_set": column}
                    about |= {"metric": metric, "runs": len(row["seeds"])}
                    about |= {key: figure.get(key) for key in ("mean", "std", "paper")}
                    about["against"] = table["against"] if difference else None
                    about["difference"] = difference.get("mean")
                    lines.append(about | {f"difference_{key}": difference.get(key) for key in DIFFERENCE_FIGURES})
    return to_csv(pd.DataFrame(lines))


def to_csv(frame: pd.DataFrame) -> str:
    """CSV for spreadsheets, without the index.

    Names of runs and ids of questions come from others: a text that a spreadsheet would take for a formula gets a quote
    in front.
    """

    def shown(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = printable(value)
        return f"'{text}" if text.startswith(FORMULA) else text

    return frame.map(shown).rename(columns=shown).to_csv(index=False)


def show(table: Table) -> None:
    """Prints the blocks, the notes, and what is missing; F1 is below EM."""

    def escape(text: str) -> str:
        return markup.escape(printable(text)).replace(BETWEEN, "\n")

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for block in table["blocks"]:
        console.print(Text(printable(block["title"]), "bold"))
        for grid in grids(block, table["against"]):
            frame = grid.written(escape, "[bold]{}[/bold]")
            rich_table = RichTable(show_lines=any("\n" in cell for cell in frame.to_numpy().ravel()))
            for number, head in enumerate(frame.columns):
                rich_table.add_column(Text.from_markup(head), justify="right" if number else "left")
            for row in frame.to_numpy():
                rich_table.add_row(*map(Text.from_markup, row))
            console.print(rich_table)
    for line in [*table["notes"], *(f"missing: {run['line']}" for run in table["missing"])]:
        Console().print(printable(line))
