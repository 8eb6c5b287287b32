"""A table (`table.make`) as Markdown, CSV, LaTeX, JSON and on the terminal: the same numbers in each."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table as RichTable
from rich.text import Text

from swep_ds.analysis import table
from swep_ds.analysis.crossed import LEVEL
from swep_ds.analysis.robustness import ABOVE, Line
from swep_ds.analysis.runs import Run
from swep_ds.analysis.table import BETWEEN, COST, HEADS, Table
from swep_ds.common.console import Console
from swep_ds.common.errors import printable
from swep_ds.common.files import write_atomically
from swep_ds.common.pages import template
from swep_ds.evaluation.calibration import CALIBRATED, CALIBRATION
from swep_ds.evaluation.results import METRICS

WIDTH = 140  # characters of the printed table if there is no terminal
# scores in one cell, by the head of their grid
SCORE_GRIDS = {
    "EM / F1": METRICS,
    "ECE / AURC / coverage": CALIBRATION,
    "the same, calibrated": CALIBRATED,
    "F1 above the line": (ABOVE,),
}
COSTS = {"updates": "updates", "cpu_seconds": "CPU s per run", "device_seconds": "device s per run"}
DASH, NOT_AVAILABLE = "-", "n/a"
MARKDOWN_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "|*_<`[]\\"})
LATEX_MARKS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
LATEX_MARKS |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other marks in LaTeX's default font
LATEX_MARKS = str.maketrans(LATEX_MARKS | {mark: f"\\{mark}" for mark in "&%$#_{}"})
Blocks = Callable[[Any, Callable[[str], str]], Iterator[tuple[str, list[pd.DataFrame]]]]  # as `grids`
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def publish(runs: Sequence[Run], folder: Path | None, against: str | None = None, line: Line | None = None) -> Table:
    """Prints the table (`table.make`) and, if a run is finished and `folder` is given, writes it and its figures there.

    Raises InputError: no row is called `against`.
    """
    result = table.make(runs, against, line)
    show(result)
    if folder and result.cells["runs"].any():
        from swep_ds.analysis import figures  # imports matplotlib, for a second

        folder.mkdir(parents=True, exist_ok=True)
        texts = {"table.md": markdown(result), "table.csv": csv(result), "table.json": as_json(result)} | latex(result)
        for name, text in texts.items():
            write_atomically(folder / name, text)
        files = [*texts, *(file.name for file in figures.draw(result, folder))]
        Console().print(f"in {folder}: {', '.join(files)}")
    return result


def grids(table: Table, text: Callable[[str], str]) -> Iterator[tuple[str, list[pd.DataFrame]]]:
    """(title of the block, its grids, all made with `text`): its scores, then what else is known: calibration, points
    above the line, differences. The first column has the rows' names under the grid's title."""
    for title, cells in table.cells.groupby("block", sort=False):
        of_block = []
        for head, metrics in SCORE_GRIDS.items():
            part = cells[cells["metric"].isin(metrics)]
            if metrics == METRICS or len(part):
                of_block.append(_scores(head, part, cells))
        place = {data_set: number for number, data_set in enumerate(cells["data_set"].dropna().unique())}
        for metric, head in HEADS.items():
            part = cells[(cells["metric"] == metric) & cells["difference"].notna()]
            part = part.sort_values("data_set", key=lambda names: names.map(place), kind="stable")
            if len(part):
                of_block.append(_differences(f"{head} less {table.against}", part))
        for head, contrasts, p in (("primary", table.primary, "p"), ("secondary", table.secondary, "p (Holm)")):
            part = contrasts[contrasts["block"] == title]
            if len(part):
                names = part["method"] + " less " + part["against"] + ", " + part["metric"].map(HEADS)
                grid = _differences(f"{head} comparison", part.assign(method=names))
                of_block.append(grid.rename(columns={"p (Holm)": p}))
        yield text(title), [grid.map(text).rename(columns=text) for grid in of_block]


def _scores(title: str, part: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """A row per variant; the number of runs comes last."""
    with_paper = part["paper"].notna().any()

    def text(score: dict[str, Any]) -> str:
        shown = mean_and_deviation(score["mean"], score["std"], {ABOVE: "+"}.get(score["metric"], ""))
        if with_paper:
            shown += f" ({_or(DASH, score['paper'], '.2f')})"
        return shown

    rows = cells.groupby("method", sort=False)[["runs", *COST]].first()
    texts = part.assign(text=[text(score) for score in part.to_dict("records")])
    grid = texts.pivot_table("text", "method", "data_set", BETWEEN.join, sort=False)
    grid = grid.reindex(rows.index).fillna(DASH).assign(runs=rows["runs"].astype(str))
    if "f1" in part["metric"].unique():
        grid = grid.join(costs(rows))
    return grid.rename_axis(index=title, columns=None).reset_index()


def costs(entries: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Columns of text under their heads: the costs with these names, and the seconds that any entry has."""
    seconds = [name for name in ("cpu_seconds", "device_seconds") if entries[name].notna().any()] or ["cpu_seconds"]
    shown = {COSTS[name]: entries[name].map(lambda cost: _or(DASH, cost, ",.0f")) for name in (*names, *seconds)}
    return pd.DataFrame(shown)


def _differences(title: str, entries: pd.DataFrame) -> pd.DataFrame:
    lines = []
    for entry in entries.to_dict("records"):
        p = _or(NOT_AVAILABLE, entry["difference_holm"], ".3f")
        if entry["difference_holm"] < 0.001:
            p = "< 0.001"
        difference = f"{entry['difference']:+.2f}"
        if entry["difference_significant"]:
            difference += "*"
        line = {
            title: entry["method"],
            "data set": entry["data_set"],
            "difference": difference,
            f"{LEVEL} %: other seeds and questions": bounds(entry, "difference"),
            "p (Holm)": p,
            "no difference": {True: "yes", False: ""}.get(entry["difference_no_difference"], NOT_AVAILABLE),
            "SD over seeds": _or(NOT_AVAILABLE, entry["difference_std"], ".2f"),
            "n": f"{entry['difference_n']:.0f}",
            f"{LEVEL} %: these models, other questions": bounds(entry, "difference_bootstrap"),
        }
        if entries["difference_paper"].notna().any():
            line["paper's effect inside our interval?"] = _or(DASH, entry["difference_paper"], "")
        lines.append(line)
    return pd.DataFrame(lines)


def mean_and_deviation(mean: float, std: float, sign: str = "") -> str:
    if pd.isna(std):
        return f"{mean:{sign}.2f}"
    return f"{mean:{sign}.2f} ± {std:.2f}"


def bounds(entry: dict[str, Any], name: str) -> str:
    low, high = entry[f"{name}_low"], entry[f"{name}_high"]
    return NOT_AVAILABLE if pd.isna(low) else f"[{low:+.2f}, {high:+.2f}]"


def _or(absent: str, value: Any, form: str) -> str:
    return absent if pd.isna(value) else format(value, form)


def markdown(table: Table, blocks: Blocks = grids) -> str:
    def text(value: str) -> str:
        return printable(value).translate(MARKDOWN_MARKS)

    page = template("analysis/table.md.jinja", text=text).render(blocks=blocks(table, text), table=table)
    return page.rstrip() + "\n"


def latex(table: Table) -> dict[str, str]:
    """By file name: the notes and missing runs as paragraphs, and for each block a `table` environment for each of its
    grids. EM is above F1; a table wider than the text is scaled down to it."""

    def text(value: str) -> str:
        return re.sub(r"(?<![\w.])-(?=\d)", "$-$", printable(value).translate(LATEX_MARKS))  # a minus sign

    pages = {"notes.tex": template("analysis/notes.tex.jinja", text=text).render(table=table)}
    for name, (title, of_block) in zip(table.names.values(), grids(table, text), strict=True):
        pages[f"table-{name}.tex"] = template("analysis/table.tex.jinja").render(name=name, title=title, grids=of_block)
    return pages


def csv(table: Table) -> str:
    """A line per block, variant, data set and score, with every number of the table unrounded."""
    cells = table.cells[table.cells["data_set"].notna()].reset_index(drop=True)
    labels = pd.DataFrame(cells["labels"].tolist())
    cells = cells.drop(columns=["block", "labels", "difference_significant"])
    labels = labels.rename(columns=lambda axis: f"axis_{axis}" if axis in cells else axis)
    return to_csv(pd.concat([cells[["model"]], labels, cells.drop(columns="model")], axis=1))


def to_csv(frame: pd.DataFrame) -> str:
    """CSV without the index. Names of runs and ids of questions come from others: a text that a spreadsheet would take
    for a formula gets a quote in front."""

    def shown(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = printable(value)
        return f"'{text}" if text.startswith(FORMULA) else text

    return frame.map(shown).rename(columns=shown).to_csv(index=False)


def as_json(table: Table) -> str:
    """Every number of the table unrounded; null where there is none."""
    tree = {"against": table.against, "line": table.line and table.line.model_dump()}
    for name, frame in (("cells", table.cells), ("primary", table.primary), ("secondary", table.secondary)):
        tree[name] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    tree["missing"] = []
    for run in table.missing:
        place = {"name": run.variant, "labels": run.labels, "seed": run.seed}
        tree["missing"].append(place | {"reason": run.reason, "line": run.line})
    return json.dumps(tree | {"notes": table.notes}, indent=2) + "\n"


def show(table: Table, blocks: Blocks = grids) -> None:
    """Prints the blocks, the notes, and what is missing; F1 is below EM."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for title, of_block in blocks(table, printable):
        console.print(Text(title, "bold"))
        for grid in of_block:
            shown = RichTable(show_lines=True)
            for head in grid.columns:
                shown.add_column(Text(head), justify="left" if head == grid.columns[0] else "right")
            for cells in grid.to_numpy():
                shown.add_row(*(Text(cell.replace(BETWEEN, "\n")) for cell in cells))
            console.print(shown)
    for line in (*table.notes, *(f"missing: {run.line}" for run in table.missing)):
        Console().print(printable(line))
