"""A leaderboard: methods x sources, F1 on shifted text with crossed intervals, and what a training cost.

A source is what runs trained on. Runs are compared within a model, a source and a point of the axes.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from swep_ds.analysis import formats
from swep_ds.analysis.crossed import LEVEL, MIN_SEEDS, MIN_TEXTS
from swep_ds.analysis.paper import source_name
from swep_ds.analysis.runs import MODEL, Run, read_runs
from swep_ds.analysis.significance import QuestionScores, compare
from swep_ds.analysis.table import BETWEEN, base_row, score_cells
from swep_ds.common.files import public_names, write_atomically
from swep_ds.evaluation.results import RESULTS, Results
from swep_ds.sweeps.sweep import saved_recipe

COST = ["updates", "GPU-seconds", "core-seconds", "process-seconds"]
ENTRY = ["model", "source", "method", "runs", "mean", "std", "difference", "difference_low", "difference_high", *COST]
NOTES = (
    "F1: in percent, the mean over the data sets but the first, ± the standard deviation over seeds. Brackets: "
    f"{LEVEL} % intervals for other seeds and other questions; n/a under {MIN_SEEDS} seeds or {MIN_TEXTS} texts.",
    "Cost: means over runs; seconds of training, summed over GPUs or cores, or over processes of unknown numbers of "
    "cores, left out if these are mixed in a row. They depend on the machine and on what else it did.",
)


class Leaderboard(NamedTuple):
    entries: pd.DataFrame  # `ENTRY`, a line per model, source and method: the best F1 first
    against: str | None
    missing: list[Run]
    notes: list[str]


def make(found: Sequence[Run], against: str | None = None) -> Leaderboard:
    """The leaderboard of the finished runs; those that are not comparable with others of their model and source are
    missing. `against`: the row that the others are compared with; None = MLE if there is one.

    Raises InputError: no row is called `against`; a finished run has no readable recipe.
    """
    base = base_row(list(dict.fromkeys(run.variant for run in found)), against)
    titles = public_names(run.model for run in found if MODEL not in run.labels)
    places: dict[tuple[str, str], list[Run]] = {}
    for run in found:
        if (run.folder / RESULTS).is_file():
            model, *labels = run.block
            sources = map(source_name, saved_recipe(run.folder).data.sources.values())
            title = ", ".join([" + ".join(sources), *(f"{axis} {label}" for axis, label in labels)])
            places.setdefault((titles.get(model, model), title), []).append(run)
    entries, missing, machines, questions = [], [], {}, QuestionScores()
    for (model, source), of_place in places.items():
        runs, left_out = read_runs(of_place)
        missing += left_out
        rows: dict[str, list[Run]] = {}
        for run in runs:
            rows.setdefault(run.variant, []).append(run)
            machines[run.results.provenance.get("machine", "not known")] = None
        differences = compare(rows, base, questions)
        cells = pd.DataFrame(score_cells(rows, None), columns=["method", "data_set", "metric", "runs", "mean", "std"])
        shifted = cells["data_set"].unique()[1:][-1:]  # the mean, which is last, or the only shifted set
        cells = cells[(cells["metric"] == "f1") & cells["data_set"].isin(shifted)]
        for cell in cells.sort_values("mean", ascending=False).to_dict("records"):
            difference = differences.get((cell["method"], cell["data_set"], "f1"), {})
            costs = pd.DataFrame([_cost(run.results) for run in rows[cell["method"]]]).mean(skipna=False)
            entries.append({"model": model, "source": source} | cell | difference | costs.to_dict())
    notes = [*NOTES, f"Machines: {'; '.join(machines)}.", *questions.notes]
    return Leaderboard(pd.DataFrame(entries, columns=ENTRY), base, missing, notes)


def _cost(results: Results) -> dict[str, float]:
    """Updates and seconds, under their unit, of a training and its first stage."""
    stages = (results.train, results.pretraining or {})
    updates, seconds = (sum(stage.get(name, 0) for stage in stages) for name in ("updates", "seconds"))
    seconds *= results.world_size
    unit = "GPU-seconds"
    if results.provenance.get("machine", "CPU").startswith("CPU"):
        unit = "core-seconds" if results.threads else "process-seconds"
        seconds *= results.threads or 1
    return {"updates": updates, unit: seconds}


def grids(board: Leaderboard, text: Callable[[str], str]) -> Iterator[tuple[str, list[pd.DataFrame]]]:
    """(model, its grids, all made with `text`): scores and costs, a row per method and a column per source."""
    heads = ("F1 on shifted text", "cost of a run")
    if board.against:
        heads = (f"F1 on shifted text{BETWEEN}less {board.against}", "cost of a run")
    for model, entries in board.entries.groupby("model", sort=False):
        texts = [_texts(entry) for entry in entries.to_dict("records")]
        of_model = []
        for number, title in enumerate(heads):
            grid = entries.assign(text=[of_entry[number] for of_entry in texts])
            grid = grid.pivot_table("text", "method", "source", "first", sort=False).fillna(formats.DASH)
            grid = grid.rename_axis(index=title, columns=None).reset_index()
            of_model.append(grid.map(text).rename(columns=text))
        yield text(model), of_model


def _texts(entry: dict[str, float]) -> tuple[str, str]:
    """Score and cost."""
    score = formats.mean_and_deviation(entry["mean"], entry["std"])
    if pd.notna(entry["difference"]):
        score += f"{BETWEEN}{entry['difference']:+.2f} {formats.bounds(entry, 'difference')}"
    cost = [f"{entry[name]:,.0f} {name}" for name in COST if pd.notna(entry[name])]
    return score, BETWEEN.join([*cost, f"{entry['runs']} run{'s' if entry['runs'] > 1 else ''}"])


def publish(found: Sequence[Run], folder: Path | None, against: str | None = None) -> Leaderboard:
    """Prints the leaderboard (`make`) and, if `folder` is given, writes it there as leaderboard.md and .csv."""
    board = make(found, against)
    formats.show(board, grids)
    if folder and len(board.entries):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "leaderboard.md", formats.markdown(board, grids))
        write_atomically(folder / "leaderboard.csv", formats.to_csv(board.entries))
    return board
