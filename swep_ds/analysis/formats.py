"""A table (`table.make`) as Markdown, CSV, LaTeX, HTML, JSON and on the terminal: the same figures."""

import html
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

from swep_ds.analysis.table import METRICS, Table
from swep_ds.console import Console
from swep_ds.errors import InputError, printable
from swep_ds.files import write_atomically

SUFFIXES = ("md", "csv", "tex", "html", "json")
WIDTH = 140  # of the printed table where there is no terminal
HEADS = {"exact_match": "EM", "f1": "F1"}
DASH = "-"
FORMULA = ("=", "+", "-", "@", "\\t", "\\r", "＝", "＋", "－", "＠")  # as `printable` writes tab and return
Block = dict[str, Any]


@dataclass(frozen=True)
class Style:
    """How a format writes what stands in a cell."""

    escape: Callable[[str], str]
    bold: Callable[[str], str]
    lines: Callable[[Sequence[str]], str]  # several below each other


MINUS = re.compile(r"(?<![\w.])-(?=\d)")
# graphicx: as wide as the page at most
FITTED = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"
LATEX_MARKS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
LATEX_BREAK = r"\\{}"  # with the braces, a bracket behind it is no length
LATEX_MARKS |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


def _latex_escape(text: str) -> str:
    return MINUS.sub("$-$", "".join(LATEX_MARKS.get(mark, mark) for mark in printable(text)))


def _shortstack(lines: Sequence[str]) -> str:
    return rf"\shortstack[r]{{{LATEX_BREAK.join(lines)}}}" if len(lines) > 1 else lines[0]


# Names come from folders and files: none breaks a line or moves the cursor. Escaped first, as Markdown's own backslash
# would hide what follows.
TERMINAL = Style(printable, "\0{}".format, "\n".join)  # the mark is the first of a bold line
MARKDOWN = Style(lambda text: re.sub(r"([|*_<`\[\]\\])", r"\\\1", printable(text)), "**{}**".format, " ".join)
LATEX = Style(_latex_escape, r"\textbf{{{}}}".format, _shortstack)
HTML = Style(lambda text: html.escape(printable(text)), "<b>{}</b>".format, "<br>".join)


def write(table: Table, folder: Path) -> None:
    """`table.md`, `table.csv`, `table.tex`, `table.html` and `table.json`, with every figure in full.

    Raises:
        InputError: the folder cannot be written to.
    """
    as_json = json.dumps(table, indent=2) + "\n"
    texts = [markdown(table), csv(table), latex(table), webpage(table), as_json]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in zip(SUFFIXES, texts, strict=True):
            write_atomically(folder / f"table.{suffix}", text)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({error.strerror})") from None


# Cells


def scores_frame(block: Block, style: Style) -> pd.DataFrame:
    """A row per variant; columns (data set, EM or F1), then the number of runs."""
    by_paper = any(
        cell[key]["paper"] is not None for row in block["rows"] for cell in row["scores"].values() for key in cell
    )

    def cell(figures: dict[str, Any]) -> str:
        text = style.escape(_figure(figures["mean"], figures["std"]))
        paper = DASH if figures["paper"] is None else f"{figures['paper']:.2f}"
        return style.lines([style.bold(text) if figures["best"] else text, *([f"({paper})"] if by_paper else [])])

    rows = {}
    for row in block["rows"]:
        own = {
            (style.escape(column), HEADS[metric]): cell(row["scores"][column][metric]) if row["scores"] else DASH
            for column in block["columns"]
            for metric in METRICS
        }
        rows[style.escape(row["name"])] = own | {("runs", ""): str(len(row["seeds"]))}
    return pd.DataFrame.from_dict(rows, orient="index")


def differences_frame(block: Block, style: Style) -> pd.DataFrame | None:
    """Rows (variant, EM or F1); a column per data set. None where nothing is compared.

    In bold where the interval leaves out 0.
    """

    def cell(one: dict[str, Any]) -> str:
        text = style.escape(f"{one['mean']:+.2f}")
        beyond = one["low"] is not None and round(one["low"], 2) * round(one["high"], 2) > 0
        parts = [style.bold(text) if beyond else text]
        if one["low"] is not None:
            parts.append(style.escape(f"[{one['low']:+.2f}, {one['high']:+.2f}]"))
        seeds = one["seeds"]
        if seeds["n"]:
            # of other seeds than the difference, where one of the two lacks some
            mean = "" if abs(seeds["mean"] - one["mean"]) < 0.005 else f"{seeds['mean']:+.2f} "
            spread = "" if seeds["std"] is None else f"± {seeds['std']:.2f}, "
            parts.append(style.escape(f"{mean}{spread}n = {seeds['n']}"))
        return style.lines(parts)

    rows = {
        (style.escape(row["name"]), HEADS[metric]): {
            style.escape(column): cell(row["differences"][column][metric]) for column in block["columns"]
        }
        for row in block["rows"]
        for metric in METRICS
        if row["differences"]
    }
    return pd.DataFrame.from_dict(rows, orient="index") if rows else None


def _together(frame: pd.DataFrame) -> tuple[list[str], list[tuple[str, list[list[str]]]]]:
    """(columns, rows of (name, texts by column)) of a frame of scores: EM and F1, or one dash."""
    columns = list(dict.fromkeys(column for column, _ in frame.columns))
    rows = [(name, [list(row[column]) for column in columns]) for name, row in frame.iterrows()]
    return columns, [(name, [[DASH] if set(one) == {DASH} else one for one in cells]) for name, cells in rows]


def _figure(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "")


def _remarks(table: Table) -> tuple[list[str], list[str]]:
    return list(map(printable, table["notes"])), [printable(one["line"]) for one in table["missing"]]


# Formats


def markdown(table: Table) -> str:
    """EM / F1 in each cell, the best of each column in bold, a dash where no run is done."""
    parts = []
    for block in table["blocks"]:
        scores = scores_frame(block, MARKDOWN)
        columns, rows = _together(scores)
        joined = [[name, *map(" / ".join, cells)] for name, cells in rows]
        parts.append(f"**{MARKDOWN.escape(block['title'])}**\n\n" + _pipes(["EM / F1", *columns], joined))
        if (differences := differences_frame(block, MARKDOWN)) is not None:
            lines = [
                [f"{name} {metric}", *row]
                for (name, metric), row in zip(differences.index, differences.values, strict=True)
            ]
            parts.append(_pipes([f"less {MARKDOWN.escape(table['against'])}", *differences.columns], lines))
    notes, lacks = _remarks(table)
    parts += ["".join(f"- {MARKDOWN.escape(one)}\n" for one in notes)] if notes else []
    parts += ["Missing:\n\n" + "".join(f"- {MARKDOWN.escape(one)}\n" for one in lacks)] if lacks else []
    return "\n".join(parts)


def _pipes(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *rows))


def csv(table: Table) -> str:
    """A line per block, variant, data set and metric, with every figure of the table unrounded."""
    lines = []
    for block in table["blocks"]:
        for row in block["rows"]:
            for column, metric in ((column, metric) for column in row["scores"] for metric in METRICS):
                cell, other = row["scores"][column][metric], row["differences"].get(column, {}).get(metric, {})
                seeds = other.get("seeds", {})
                lines.append(
                    {
                        "model": _no_formula(block["model"]),
                        **{_no_formula(axis): _no_formula(label) for axis, label in block["labels"].items()},
                        "method": _no_formula(row["name"]),
                        "data_set": _no_formula(column),
                        "metric": metric,
                        "runs": len(row["seeds"]),
                        **{key: cell[key] for key in ("mean", "std", "paper")},
                        "against": _no_formula(table["against"]) if other else None,
                        "difference": other.get("mean"),
                        "low": other.get("low"),
                        "high": other.get("high"),
                        **{f"seeds_{key}": seeds.get(key) for key in ("mean", "std", "n")},
                    }
                )
    return pd.DataFrame(lines).to_csv(index=False)


def _no_formula(text: str) -> str:
    """A name as a spreadsheet shows it: with a quote in front, where it would be computed."""
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) else text


def latex(table: Table) -> str:
    r"""A `table` environment for each block, and one for its differences, then notes and missing runs as paragraphs.

    Needs \usepackage{booktabs, graphicx}. EM stands above F1; what is wider than the text is scaled down to it.
    """
    parts = []
    for block in table["blocks"]:
        title = _latex_escape(block["title"])
        columns, rows = _together(scores_frame(block, replace(LATEX, lines=" ".join)))
        cells = pd.DataFrame([list(map(_shortstack, row)) for _, row in rows], [name for name, _ in rows], columns)
        frames = [(cells, f"{title}: EM above F1, in percent.")]
        if (differences := differences_frame(block, LATEX)) is not None:
            frames.append((differences, f"{title}: difference to {_latex_escape(table['against'])} in points."))
        for frame, caption in frames:
            layout = "l" * frame.index.nlevels + "r" * len(frame.columns)
            body = frame.to_latex(escape=False, multirow=False, column_format=layout)
            head = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", FITTED]
            parts += [*head, f"{body}}}", r"\end{table}", ""]
    notes, lacks = _remarks(table)
    for line in [*notes, *(f"Missing: {lack}" for lack in lacks)]:
        parts.append(rf"{{\footnotesize\noindent {_latex_escape(line)}\par}}")
    return "\n".join(parts) + "\n"


CSS = """body{font:15px/1.45 system-ui,sans-serif;margin:2rem;color:#1a1a1a;background:#fff}
h2{font-size:1.1rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;margin:.5rem 0 1rem;font-variant-numeric:tabular-nums}div{overflow-x:auto}
th,td{padding:.3rem .5rem;text-align:right;white-space:nowrap;border-bottom:1px solid #ddd}thead th{text-align:center}
tbody th{text-align:left;font-weight:600}thead tr:last-child th{border-bottom:2px solid #333}"""


def webpage(table: Table) -> str:
    """One file that needs nothing else."""
    parts = ["<!doctype html>", '<html lang="en"><head><meta charset="utf-8"><title>Scores</title>']
    parts.append(f"<style>{CSS}</style></head><body><h1>Scores</h1>")
    for block in table["blocks"]:
        parts.append(f"<h2>{HTML.escape(block['title'])}</h2>")
        parts.append(f"<div>{scores_frame(block, HTML).to_html(escape=False, border=0)}</div>")
        if (differences := differences_frame(block, HTML)) is not None:
            parts.append(f"<h2>{HTML.escape(block['title'])}: difference to {HTML.escape(table['against'])}</h2>")
            parts.append(f"<div>{differences.to_html(escape=False, border=0)}</div>")
    for title, lines in zip(("Notes", "Missing"), _remarks(table), strict=True):
        if lines:
            items = "".join(f"<li>{HTML.escape(line)}</li>" for line in lines)
            parts.append(f"<h2>{title}</h2><ul>{items}</ul>")
    return "\n".join([*parts, "</body></html>", ""])


# Terminal


def show(table: Table) -> None:
    """Prints it, the notes, and what is missing."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for block in table["blocks"]:
        console.print(for_terminal(block))
        if (differences := differences_frame(block, TERMINAL)) is not None:
            made = RichTable(title=Text(f"less {printable(table['against'])}"), title_justify="left", show_lines=True)
            for head in ("", "", *differences.columns):
                made.add_column(head, justify="right" if head else "left")
            for index, row in zip(differences.index, differences.values, strict=True):
                made.add_row(*map(Text, index), *map(_marked, row))
            console.print(made)
    notes, lacks = _remarks(table)
    for line in (*notes, *(f"missing: {one}" for one in lacks)):
        console.print(line)


def for_terminal(block: Block) -> RichTable:
    """The scores, F1 below EM, and the paper's number below each."""
    frame = scores_frame(block, TERMINAL)
    made = RichTable(title=Text(printable(block["title"])), title_justify="left", show_lines=True)
    made.add_column("EM\nF1")
    columns, rows = _together(frame)
    for column in columns:
        made.add_column(Text(column), justify="right")
    for name, cells in rows:
        made.add_row(Text(name), *(_marked("\n".join(several)) for several in cells))
    return made


def _marked(text: str) -> Text:
    lines = text.split("\n")
    return Text("\n").join(Text(line.lstrip("\0"), "bold" if line.startswith("\0") else "") for line in lines)
