"""A leaderboard: methods x sources, F1 on shifted text with crossed intervals, and what a training cost.

A source is what runs trained on. Runs are compared within a model, a source and a point of the axes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from swep_ds.analysis import formats, table
from swep_ds.analysis.crossed import LEVEL, MIN_SEEDS, MIN_TEXTS
from swep_ds.analysis.paper import source_name
from swep_ds.analysis.runs import MODEL, Run
from swep_ds.analysis.table import BETWEEN, COST, Table
from swep_ds.common.files import public_names, write_atomically
from swep_ds.evaluation.results import RESULTS
from swep_ds.sweeps.sweep import saved_recipe, slug

INTERVALS = [f"difference{kind}_{end}" for kind in ("", "_bootstrap") for end in ("low", "high")]
DIFFERENCE = ["difference", *INTERVALS, "difference_n", "seeds"]
ENTRY = ["model", "source", "method", "runs", "mean", "std", *DIFFERENCE, *COST]
NOTE = (
    "F1: in percent, the mean over the data sets but the first, ± the standard deviation over the n seeds. Brackets: "
    f"{LEVEL} % intervals for other seeds and other questions; n/a under {MIN_SEEDS} seeds or {MIN_TEXTS} texts. A "
    "difference is over the seeds that both rows have, of those that either has."
)


def make(archived: Sequence[Run], against: str | None = None) -> Table:
    """The leaderboard of the finished runs: a table (`table.make`) whose `cells` have `ENTRY`, a line per model, source
    and method, the best F1 first. Runs that are not comparable with others of their model and source are missing.

    Raises InputError: no row is called `against`; a finished run has no readable recipe.
    """
    titles = public_names(run.model for run in archived if MODEL not in run.labels)
    places: dict[str, tuple[str, str]] = {}
    runs = []
    for run in archived:
        if (run.folder / RESULTS).is_file():
            model, *labels = run.block
            sources = map(source_name, saved_recipe(run.folder).data.sources.values())
            source = ", ".join([" + ".join(sources), *(f"{axis} {label}" for axis, label in labels)])
            title = titles.get(model, model)
            block = f"{title}, {source}"
            places[block] = title, source
            runs.append(replace(run, labels={MODEL: block}))
    made = table.make(runs, against)
    entries = []
    for block, cells in made.cells[made.cells["metric"] == "f1"].groupby("block", sort=False):
        shifted = cells["data_set"].unique()[1:][-1:]  # the mean, which is last, or the only shifted set
        cells = cells[cells["data_set"].isin(shifted)].sort_values("mean", ascending=False)
        cells["model"], cells["source"] = places[block]
        of_base = cells.loc[cells["method"] == made.against, "runs"].sum()
        entries.append(cells.assign(seeds=cells["runs"] + of_base - cells["difference_n"]))
    entries = pd.concat(entries or [pd.DataFrame(columns=ENTRY)])
    return replace(made, cells=entries[ENTRY], notes=[NOTE, *made.remarks])


def grids(board: Table, text: Callable[[str], str]) -> Iterator[tuple[str, list[pd.DataFrame]]]:
    """(model, its grids, all made with `text`): scores and costs, a row per method and a column per source."""
    head = "F1 on shifted text"
    if board.against:
        head += f"{BETWEEN}less {board.against}"
    for model, entries in board.cells.groupby("model", sort=False):
        costs = formats.costs(entries, "updates")
        texts = {head: [_score(entry) for entry in entries.to_dict("records")]}
        texts[f"cost of a run: {BETWEEN.join(costs)}"] = costs.agg(BETWEEN.join, axis=1)
        of_model = []
        for title, of_entries in texts.items():
            grid = entries.assign(text=of_entries).pivot_table("text", "method", "source", "first", sort=False)
            grid = grid.fillna(formats.DASH).rename_axis(index=title, columns=None).reset_index()
            of_model.append(grid.map(text).rename(columns=text))
        yield text(model), of_model


def _score(entry: dict[str, float]) -> str:
    score = f"{formats.mean_and_deviation(entry['mean'], entry['std'])} (n = {entry['runs']})"
    if pd.notna(entry["difference"]):
        score += f"{BETWEEN}{entry['difference']:+.2f} {formats.bounds(entry, 'difference')}"
        score += f" ({entry['difference_n']:.0f} of {entry['seeds']:.0f} seeds)"
    return score


def publish(archived: Sequence[Run], folder: Path | None, against: str | None = None) -> Table:
    """Prints the leaderboard (`make`). Writes leaderboard.md and .csv, and a forest plot per model, to any `folder`."""
    board = make(archived, against)
    formats.show(board, grids)
    if folder and len(board.cells):
        from swep_ds.analysis import figures  # imports matplotlib, for a second

        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "leaderboard.md", formats.markdown(board, grids))
        write_atomically(folder / "leaderboard.csv", formats.to_csv(board.cells))
        for model, entries in board.cells.rename(columns={"source": "data_set"}).groupby("model", sort=False):
            forest = figures.plot_forest(model, entries, "F1 on shifted text", board.against)
            figures.save(forest, folder, f"leaderboard-{slug(model)}")
    return board
