"""A table (`table.make`) as Markdown, CSV, LaTeX, JSON and on the terminal: the same numbers in each."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table as RichTable
from rich.text import Text

from swep_ds.analysis.table import METRICS, Block, Table
from swep_ds.console import Console
from swep_ds.errors import InputError, printable
from swep_ds.files import write_atomically

SUFFIXES = ("md", "csv", "tex", "json")
WIDTH = 140  # characters of the printed table if there is no terminal
HEADS = {"exact_match": "EM", "f1": "F1"}
DASH = "-"
FORMULA = ("=", "+", "-", "@", "\\t", "\\r", "＝", "＋", "－", "＠")  # `printable` writes tab and return as \t and \r
MINUS = re.compile(r"(?<![\w.])-(?=\d)")
LATEX_MARKS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
LATEX_MARKS |= {mark: f"\\{mark}" for mark in "&%$#_{}"}
LATEX_BREAK = r"\\{}"  # without the braces, a following bracket would be an optional length
FITTED = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"  # graphicx: at most as wide as the page


@dataclass(frozen=True)
class Style:
    """How a format writes the parts of a cell."""

    escape: Callable[[str], str]
    bold: Callable[[str], str]
    lines: Callable[[Sequence[str]], str]  # several lines in one cell


def _latex_escape(text: str) -> str:
    return MINUS.sub("$-$", "".join(LATEX_MARKS.get(mark, mark) for mark in printable(text)))


def _shortstack(lines: Sequence[str]) -> str:
    return rf"\shortstack[r]{{{LATEX_BREAK.join(lines)}}}" if len(lines) > 1 else lines[0]


# Names come from folders and files: `printable` keeps them on one line and from moving the cursor. It comes first, as
# Markdown's backslashes would hide what follows them.
TERMINAL = Style(printable, "\0{}".format, "\n".join)  # \0 marks a bold line
MARKDOWN = Style(lambda text: re.sub(r"([|*_<`\[\]\\])", r"\\\1", printable(text)), "**{}**".format, " ".join)
LATEX = Style(_latex_escape, r"\textbf{{{}}}".format, _shortstack)


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


def score_rows(block: Block, style: Style) -> tuple[list[str], dict[str, list[list[str]]]]:
    """(columns, by variant the texts of each column): EM and F1, or one dash; the number of runs comes last."""
    with_paper = any(
        figures["paper"] is not None
        for row in block["rows"]
        for cell in row["scores"].values()
        for figures in cell.values()
    )

    def text(figures: dict[str, Any]) -> str:
        std = f" ± {figures['std']:.2f}" if figures["std"] is not None else ""
        mean = style.escape(f"{figures['mean']:.2f}{std}")
        paper = DASH if figures["paper"] is None else f"{figures['paper']:.2f}"
        return style.lines([style.bold(mean) if figures["best"] else mean, *([f"({paper})"] if with_paper else [])])

    rows = {}
    for row in block["rows"]:
        scores = row["scores"]
        cells = [
            [text(scores[column][metric]) for metric in METRICS] if scores else [DASH] for column in block["columns"]
        ]
        rows[style.escape(row["name"])] = [*cells, [str(len(row["seeds"]))]]
    return [*map(style.escape, block["columns"]), "runs"], rows


def differences_frame(block: Block, style: Style) -> pd.DataFrame | None:
    """Rows (variant, EM or F1), a column per data set, or None if nothing is compared; bold if 0 is excluded."""

    def text(difference: dict[str, Any]) -> str:
        low, high, seeds = difference["low"], difference["high"], difference["seeds"]
        parts = [style.escape(f"{difference['mean']:+.2f}")]
        if low is not None:
            if round(low, 2) * round(high, 2) > 0:
                parts[0] = style.bold(parts[0])
            parts.append(style.escape(f"[{low:+.2f}, {high:+.2f}]"))
        if seeds["n"]:
            # the means differ if one of the two rows lacks a seed of the other
            mean = "" if abs(seeds["mean"] - difference["mean"]) < 0.005 else f"{seeds['mean']:+.2f} "
            spread = "" if seeds["std"] is None else f"± {seeds['std']:.2f}, "
            parts.append(style.escape(f"{mean}{spread}n = {seeds['n']}"))
        return style.lines(parts)

    rows = {
        (style.escape(row["name"]), HEADS[metric]): {
            style.escape(column): text(row["differences"][column][metric]) for column in block["columns"]
        }
        for row in block["rows"]
        for metric in METRICS
        if row["differences"]
    }
    return pd.DataFrame.from_dict(rows, orient="index") if rows else None


def _remarks(table: Table) -> tuple[list[str], list[str]]:
    """The notes and the missing runs, a line each."""
    return list(map(printable, table["notes"])), [printable(run["line"]) for run in table["missing"]]


# Formats


def markdown(table: Table) -> str:
    """EM / F1 in each cell, the best of each column in bold, a dash if no run is finished."""
    parts = []
    for block in table["blocks"]:
        columns, rows = score_rows(block, MARKDOWN)
        lines = [[name, *map(" / ".join, cells)] for name, cells in rows.items()]
        parts.append(f"**{MARKDOWN.escape(block['title'])}**\n\n" + _pipes(["EM / F1", *columns], lines))
        if (differences := differences_frame(block, MARKDOWN)) is not None:
            lines = [[" ".join(row.name), *row] for _, row in differences.iterrows()]
            parts.append(_pipes([f"less {MARKDOWN.escape(table['against'])}", *differences.columns], lines))
    notes, missing = _remarks(table)
    parts += ["".join(f"- {MARKDOWN.escape(note)}\n" for note in notes)] if notes else []
    parts += ["Missing:\n\n" + "".join(f"- {MARKDOWN.escape(line)}\n" for line in missing)] if missing else []
    return "\n".join(parts)


def _pipes(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *rows))


def csv(table: Table) -> str:
    """A line per block, variant, data set and metric, with every number of the table unrounded."""
    lines = []
    for block in table["blocks"]:
        for row in block["rows"]:
            for column, metric in ((column, metric) for column in row["scores"] for metric in METRICS):
                cell = row["scores"][column][metric]
                difference = row["differences"].get(column, {}).get(metric, {})
                lines.append(
                    {
                        "model": _no_formula(block["model"]),
                        **{_no_formula(axis): _no_formula(label) for axis, label in block["labels"].items()},
                        "method": _no_formula(row["name"]),
                        "data_set": _no_formula(column),
                        "metric": metric,
                        "runs": len(row["seeds"]),
                        **{key: cell[key] for key in ("mean", "std", "paper")},
                        "against": _no_formula(table["against"]) if difference else None,
                        "difference": difference.get("mean"),
                        **{key: difference.get(key) for key in ("low", "high")},
                        **{f"seeds_{key}": difference.get("seeds", {}).get(key) for key in ("mean", "std", "n")},
                    }
                )
    return pd.DataFrame(lines).to_csv(index=False)


def _no_formula(text: str) -> str:
    """A name that a spreadsheet shows: one that it would compute gets a quote in front."""
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) else text


def latex(table: Table) -> str:
    r"""A `table` environment for each block, another for its differences, then notes and missing runs as paragraphs.

    Needs \usepackage{booktabs, graphicx}. EM is above F1; a table wider than the text is scaled down to it.
    """
    parts = []
    for block in table["blocks"]:
        title = _latex_escape(block["title"])
        columns, rows = score_rows(block, replace(LATEX, lines=" ".join))
        cells = pd.DataFrame([list(map(_shortstack, row)) for row in rows.values()], list(rows), columns)
        frames = [(cells, f"{title}: EM above F1, in percent.")]
        if (differences := differences_frame(block, LATEX)) is not None:
            frames.append((differences, f"{title}: difference to {_latex_escape(table['against'])} in points."))
        for frame, caption in frames:
            layout = "l" * frame.index.nlevels + "r" * len(frame.columns)
            body = frame.to_latex(escape=False, multirow=False, column_format=layout)
            head = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", FITTED]
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
        console.print(scores_for_terminal(block))
        if (differences := differences_frame(block, TERMINAL)) is not None:
            rows = [[*row.name, *row] for _, row in differences.iterrows()]
            title = f"less {printable(table['against'])}"
            console.print(_rich_table(title, ["", "", *differences.columns], rows))
    notes, missing = _remarks(table)
    lines = Console()
    for line in (*notes, *(f"missing: {line}" for line in missing)):
        lines.print(line)


def scores_for_terminal(block: Block) -> RichTable:
    """The scores, F1 below EM, and the paper's number below each."""
    columns, rows = score_rows(block, TERMINAL)
    lines = [[name, *map("\n".join, cells)] for name, cells in rows.items()]
    return _rich_table(printable(block["title"]), ["EM\nF1", *columns], lines)


def _rich_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> RichTable:
    table = RichTable(title=Text(title), title_justify="left", show_lines=True)
    for number, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if number and head else "left")
    for row in rows:
        table.add_row(*map(_marked, row))
    return table


def _marked(text: str) -> Text:
    lines = text.split("\n")
    return Text("\n").join(Text(line.lstrip("\0"), "bold" if line.startswith("\0") else "") for line in lines)
