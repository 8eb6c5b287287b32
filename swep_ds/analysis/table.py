"""One table of many runs: a row per variant, a column per data set, mean and deviation over seeds."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from swep_ds.evaluation.results import Scores, out_of_domain_mean
from swep_ds.recipe import differences
from swep_ds.sweep import Cell

OUT_OF_DOMAIN = "out-of-domain mean"
WIDTH = 140  # of the printed table where there is no terminal
METRICS = ("exact_match", "f1")
Table = dict[str, Any]


def aggregate(runs: Mapping[str, Sequence[Scores]]) -> Table:
    """Means over runs, and sample standard deviations (n - 1) where there are at least two.

    Args:
        runs: by row, the scores of its runs (one per seed), in percent; all of the same data sets, the source domain
            first. A row may have none.

    Returns:
        {"columns": the data sets, then the out-of-domain mean where there are shifted ones, each run's own first,
        "rows": [{"name", "runs": n, "scores": {column: {"exact_match" and "f1": {"mean", "std" or None}}}}]}, a row
        without runs having no scores.
    """
    rows = []
    for name, several in runs.items():
        full = [_with_mean(scores) for scores in several]
        columns = full[0] if full else []
        scores = {
            column: {metric: _summary([one[column][metric] for one in full]) for metric in METRICS}
            for column in columns
        }
        rows.append({"name": name, "runs": len(full), "scores": scores})
    columns = next((list(row["scores"]) for row in rows if row["scores"]), [])
    return {"columns": columns, "rows": rows}


def _with_mean(scores: Scores) -> dict[str, dict[str, float]]:
    mean = out_of_domain_mean(scores)
    return scores | ({OUT_OF_DOMAIN: mean} if mean else {})


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def of_sweep(cells: Sequence[Cell]) -> Table:
    """The table (`aggregate`) of a sweep's cells that are done, rows in their order; "missing" says why others are not.

    A table compares runs on one number of ranks under one ds_config, those of most runs (of the first, of equally
    many). Runs under others are missing, too. Each of "missing" is {"name", "seed", "reason", "log"}.

    Raises:
        InputError: a run's `ds_config.json` cannot be read.
    """
    runs: dict[str, list[Scores]] = {cell.variant: [] for cell in cells}
    done = [cell.results() for cell in cells]
    conditions = [cell.conditions(results) if results else None for cell, results in zip(cells, done, strict=True)]
    found = [one for one in conditions if one]
    usual = max(found, key=found.count, default=None)
    missing = []
    for cell, results, own in zip(cells, done, conditions, strict=True):
        if results and own == usual:
            runs[cell.variant].append(results["eval"])
            continue
        reason = f"trained otherwise than the others ({differences(own, usual)})" if results else cell.fault()
        missing.append({"name": cell.variant, "seed": cell.seed, "reason": reason, "log": str(cell.log)})
    return aggregate(runs) | {"missing": missing}


def write(table: Table, folder: Path) -> None:
    """`table.md` and `table.json`."""
    lacks = "".join(f"- {one['name']}, seed {one['seed']}: {one['reason']}\n" for one in table["missing"])
    (folder / "table.md").write_text(markdown(table) + (f"\nMissing:\n\n{lacks}" if lacks else ""))
    (folder / "table.json").write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n")


def show(table: Table) -> None:
    """Prints it, and what is missing."""
    Console(width=None if sys.stdout.isatty() else WIDTH).print(for_terminal(table))
    say = Console(highlight=False, markup=False, soft_wrap=True).print
    for one in table["missing"]:
        say(f"missing: {one['name']}, seed {one['seed']}: {one['reason']} ({one['log']})")


def markdown(table: Table) -> str:
    """EM / F1 in each cell, the best of each column in bold, a dash where no run is done."""
    heads = ["EM / F1", *table["columns"], "runs"]
    lines = [heads, ["---"] * len(heads)]
    for row, cells in zip(table["rows"], _cells(table), strict=True):
        figures = [" / ".join(f"**{text}**" if best else text for text, best in cell) or "-" for cell in cells]
        lines.append([row["name"].replace("|", "\\|"), *figures, str(row["runs"])])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def for_terminal(table: Table) -> RichTable:
    """The same with F1 below EM."""
    made = RichTable(show_lines=True)
    made.add_column("EM\nF1")
    for column in [*table["columns"], "runs"]:
        made.add_column(column, justify="right")
    for row, cells in zip(table["rows"], _cells(table), strict=True):
        lines = [[Text(text, "bold" if best else "") for text, best in cell] for cell in cells]
        made.add_row(Text(row["name"]), *(Text("\n").join(two) if two else "-" for two in lines), str(row["runs"]))
    return made


def _cells(table: Table) -> list[list[list[tuple[str, bool]]]]:
    """By row and column: EM and F1 as (text, whether it is the best of its column as printed); nothing for no runs."""
    rows = [row["scores"] for row in table["rows"]]
    done = [scores for scores in rows if scores]

    def best(column: str, metric: str, mean: float) -> bool:
        return len(done) > 1 and f"{mean:.2f}" == f"{max(scores[column][metric]['mean'] for scores in done):.2f}"

    def cell(scores: dict[str, Any], column: str) -> list[tuple[str, bool]]:
        figures = [(metric, scores[column][metric]) for metric in METRICS] if scores else []
        return [(_text(**figure), best(column, metric, figure["mean"])) for metric, figure in figures]

    return [[cell(scores, column) for column in table["columns"]] for scores in rows]


def _text(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "")
