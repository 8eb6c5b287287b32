"""A table (`table.make`) as Markdown, CSV, LaTeX, JSON and on the terminal: the same numbers in each."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich import markup
from rich.table import Table as RichTable
from rich.text import Text

from swep_ds.analysis import figures, robustness, table
from swep_ds.analysis.crossed import LEVEL
from swep_ds.analysis.robustness import ABOVE
from swep_ds.analysis.runs import Run
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
MARKDOWN_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "|*_<`[]\\"})
LATEX_MARKS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
LATEX_MARKS = str.maketrans(LATEX_MARKS | {mark: f"\\{mark}" for mark in "&%$#_{}"})
LATEX_BREAK = r"\\{}"  # without the braces, a following bracket would be an optional length
FITTED = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"  # graphicx: at most as wide as the page
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def publish(
    runs: Sequence[Run], folder: Path | None, against: str | None = None, line: robustness.Line | None = None
) -> Table:
    """Prints the table (`table.make`) and, if a run is finished and `folder` is given, writes it and its figures there.

    Raises InputError: no row is called `against`.
    """
    result = table.make(runs, against, line)
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
        columns = block["columns"]
        if metrics != METRICS:
            columns = [c for c in columns if any(metrics[0] in row["scores"].get(c, {}) for row in block["rows"])]
        if columns or metrics == METRICS:
            result.append(Grid(_scores(block, title, metrics, columns)))
    titled = []
    for metric, head in HEADS.items():
        for column in block["columns"]:
            for row in block["rows"]:
                if row["differences"]:
                    titled.append((f"{head} less {against}", row["name"], column, row["differences"][column][metric]))
    for entry in block["primary"]:
        name = f"{entry['row']} less {entry['base']}, {HEADS[entry['metric']]}"
        titled.append(("primary comparison", name, entry["column"], entry))
    for title in dict.fromkeys(title for title, *_ in titled):
        entries = [difference for each, *difference in titled if each == title]
        frame = pd.DataFrame([_difference(title, *difference) for difference in entries])
        result.append(Grid(frame, [number for number, (*_, entry) in enumerate(entries) if entry["significant"]]))
    return result


def _scores(block: Block, title: str, metrics: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """A row per variant; the number of runs comes last."""
    cells = [cell for row in block["rows"] for cell in row["scores"].values()]
    with_paper = any(cell.get(metric, {}).get("paper") is not None for cell in cells for metric in metrics)
    form = ".2f"
    if metrics == (ABOVE,):
        form = "+.2f"

    def text(score: dict[str, Any] | None) -> str:
        if score is None:
            return DASH
        shown = format(score["mean"], form)
        if score["std"] is not None:
            shown += f" ± {score['std']:.2f}"
        if with_paper:
            shown += f" ({_or(DASH, score['paper'], '.2f')})"
        return shown

    lines = []
    for row in block["rows"]:
        line = {title: row["name"]}
        for column in columns:
            line[column] = DASH
            if column in row["scores"]:
                line[column] = BETWEEN.join(text(row["scores"][column].get(metric)) for metric in metrics)
        lines.append(line | {"runs": str(len(row["seeds"]))})
    return pd.DataFrame(lines)


def _difference(title: str, name: str, column: str, entry: dict[str, Any]) -> dict[str, str]:
    def bounds(low: float | None, high: float | None) -> str:
        return NOT_AVAILABLE if low is None else f"[{low:+.2f}, {high:+.2f}]"

    p = _or(NOT_AVAILABLE, entry["holm"], ".3f")
    if entry["holm"] is not None and entry["holm"] < 0.001:
        p = "< 0.001"
    return {
        title: name,
        "data set": column,
        "difference": f"{entry['mean']:+.2f}",
        f"{LEVEL} %: other seeds and questions": bounds(entry["low"], entry["high"]),
        "p" if title == "primary comparison" else "p (Holm)": p,
        "no difference": {True: "yes", False: "", None: NOT_AVAILABLE}[entry["no_difference"]],
        "SD over seeds": _or(NOT_AVAILABLE, entry["std"], ".2f"),
        "n": str(entry["n"]),
        f"{LEVEL} %: these models, other questions": bounds(entry["bootstrap_low"], entry["bootstrap_high"]),
    }


def _or(absent: str, value: float | None, form: str) -> str:
    return absent if value is None else format(value, form)


# Formats. Names come from folders and files: `printable` keeps them on one line. It comes first, as Markdown's
# backslashes would hide what follows them.


def _markdown_escape(text: str) -> str:
    return printable(text).translate(MARKDOWN_MARKS)


def markdown(table: Table) -> str:
    """EM / F1 in each cell, a dash if no run is finished; significant differences in bold."""
    parts = []
    for block in table["blocks"]:
        title = f"**{_markdown_escape(block['title'])}**\n\n"
        for grid in grids(block, table["against"]):
            frame = grid.written(_markdown_escape, "**{}**")
            parts.append(title + markdown_table(frame.columns, frame.to_numpy()))
            title = ""
    if table["notes"]:
        parts.append("".join(f"- {_markdown_escape(note)}\n" for note in table["notes"]))
    if table["missing"]:
        parts.append("Missing:\n\n" + "".join(f"- {_markdown_escape(run['line'])}\n" for run in table["missing"]))
    return "\n".join(parts)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """pandas needs a further package for this."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latex_escape(text: str) -> str:
    escaped = printable(text).translate(LATEX_MARKS)
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
                for metric, score in cell.items():
                    line = {"model": block["model"], **labels, "method": row["name"], "data_set": column}
                    line |= {"metric": metric, "runs": len(row["seeds"])}
                    line |= {name: score.get(name) for name in ("mean", "std", "paper")}
                    difference = row["differences"].get(column, {}).get(metric, {})
                    line["against"] = table["against"] if difference else None
                    line["difference"] = difference.get("mean")
                    lines.append(line | {f"difference_{name}": difference.get(name) for name in DIFFERENCE_FIGURES})
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
