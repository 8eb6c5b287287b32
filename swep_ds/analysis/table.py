"""One table of many runs in the paper's layout: a block per model, a row per variant, a column per data set.

A cell is the mean and the standard deviation over seeds, with the difference to a base row and the paper's number.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from swep_ds.analysis import crossed, significance
from swep_ds.analysis.noise_report import late_noise
from swep_ds.analysis.paper import PAPER, SQUAD, paper_effects, paper_score, paper_scores, was_trained_on
from swep_ds.analysis.robustness import ABOVE, Line, add_points, fitted, in_domain_f1
from swep_ds.analysis.runs import MODEL, Run, differing_settings, mixed_versions, read_runs
from swep_ds.analysis.significance import Difference, Rows
from swep_ds.common.errors import InputError, printable
from swep_ds.common.files import public_names, read_lines
from swep_ds.common.pages import template
from swep_ds.common.settings import flatten, without
from swep_ds.data import splits
from swep_ds.evaluation import calibration
from swep_ds.evaluation.calibration import CALIBRATED, CALIBRATION
from swep_ds.evaluation.results import METRICS, OUT_OF_DOMAIN, out_of_domain_mean
from swep_ds.methods.settings import dose
from swep_ds.pipeline.folder import METRICS_FILE
from swep_ds.sweeps.sweep import SHIFTED, slug, unaveraged

COST = ["updates", "cpu_seconds", "device_seconds"]
SCORES = (*METRICS, *CALIBRATION, *CALIBRATED, ABOVE)
HEADS = {"exact_match": "EM", "f1": "F1"}
BASE = "MLE"
FIGURES = ("std", "n", "low", "high", "p", "holm", "no_difference", "bootstrap_low", "bootstrap_high", "significant")
DIFFERENCE = ["difference", *(f"difference_{figure}" for figure in FIGURES), "difference_paper"]
NUMBERS = {"mean", "std", "paper", *DIFFERENCE, *COST}
NUMBERS -= {"difference_no_difference", "difference_significant", "difference_paper"}
BETWEEN = " / "  # two numbers of a cell
PLACE = ["block", "model", "labels"]  # a block's title, and what it is made of; labels by axis
CELL = ["method", "data_set", "metric", "runs", "mean", "std", "paper", "against", *DIFFERENCE, *COST]
CONTRAST = ["method", "against", "data_set", "metric", *DIFFERENCE]


@dataclass(frozen=True)
class Table:
    """Scores in percent and differences in points."""

    # a line per block, row, data set and score; a row without finished runs has one line, without a data set
    cells: pd.DataFrame  # `PLACE` and `CELL`
    primary: pd.DataFrame  # a line per primary comparison: `PLACE` and `CONTRAST`
    secondary: pd.DataFrame  # the same of secondary comparisons
    against: str | None  # the row that others are compared with
    line: Line | None
    missing: list[Run]
    remarks: list[str]  # those of the notes that are about runs
    notes: list[str]

    @property
    def names(self) -> dict[str, str]:
        """By block, a part of the names of its files."""
        return {block: slug(f"{number} {block}") for number, block in enumerate(self.cells["block"].unique(), 1)}


def make(listed: Sequence[Run], against: str | None = None, line: Line | None = None) -> Table:
    """The table of the runs that are finished and comparable (`read_runs`), with the reason why others are missing.
    `against`: the row that the others are compared with; None = MLE if there is one. `line`: F1 on shifted data as
    in-domain F1 predicts it; None = fitted to the runs of that row, if it can be.

    Raises InputError: no row is called `against`.
    """
    runs, missing = read_runs(listed)
    titles = public_names(run.model for run in listed if MODEL not in run.labels)
    base = base_row(list(dict.fromkeys(run.variant for run in listed)), against)
    no_line = ""
    if line is None and base is not None:
        line, no_line = fitted([run.results.scores for run in runs if run.variant == base], base)
    questions = significance.QuestionScores()
    cells, primary, secondary, blocks = [], [], [], []
    for place in dict.fromkeys(run.block for run in listed):
        of_block = [run for run in listed if run.block == place]
        rows: dict[str, list[Run]] = {run.variant: [] for run in of_block}
        for run in runs:
            if run.block == place:
                rows[run.variant].append(run)
        label, *labels = place
        model = titles.get(label, label)
        title = ", ".join([model, *(f"{axis} {label}" for axis, label in labels)])
        about = {"block": title, "model": model, "labels": dict(labels)}

        primaries = dict.fromkeys(run.primary for run in of_block if run.primary)
        contrasts = [*primaries, *dict.fromkeys(contrast for run in of_block for contrast in run.secondary)]
        pairs = [({row: rows.get(row, []) for row in (base, name)}, base) for name, base, *_ in contrasts]
        differences, *compared = significance.compare([(rows, base), *pairs], questions)
        registered = list(map(_registered, contrasts, compared))
        tested = [entry for entries in registered[: len(primaries)] for entry in entries]
        family = [entry for entries in registered[len(primaries) :] for entry in entries]
        _adjust(tested, family, list(differences.values()))
        scores = score_cells(rows, line)
        paper = _add_paper(scores, [*tested, *family, *differences.values()], model, rows)
        settings = differing_settings(rows)
        blocks.append(about | {"rows": rows, "settings": settings, "paper": paper, "doses": _doses(rows)})
        for cell in scores:
            place_of_cell = (cell["method"], cell.get("data_set"), cell.get("metric"))
            cells.append(about | cell | differences.get(place_of_cell, {}))
        primary += [about | entry for entry in tested]
        secondary += [about | entry for entry in family]

    table = frame_of(cells, CELL)
    context = {"blocks": blocks, "runs": runs, "cells": table, "base": base, "line": line, "no_line": no_line}
    context |= {"crossed": crossed, "significance": significance, "splits": splits, "calibration": calibration}
    context |= {"unaveraged": unaveraged, "registered": primary or secondary, "versions": mixed_versions(runs)}
    context["effects"] = any(entry.get("difference_paper") for entry in (*cells, *primary, *secondary))
    context["papers_models"] = ", ".join(PAPER["scores"])
    context["unread"] = [printable(note) for note in questions.notes]  # a library's message may have several lines
    context["in_domain_f1"] = line and in_domain_f1(line, [run.results.scores for run in runs])
    remarks = template("analysis/remarks.jinja").render(context).splitlines()
    notes = [*remarks, *template("analysis/notes.jinja").render(context).splitlines()]
    registered = frame_of(primary, CONTRAST), frame_of(secondary, CONTRAST)
    return Table(table, *registered, base, line, missing, remarks, list(dict.fromkeys(notes)))


def frame_of(lines: Sequence[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The lines with `PLACE` and these columns; a number that is missing is NaN."""
    frame = pd.DataFrame(lines, columns=[*PLACE, *columns])
    return frame.astype(dict.fromkeys(NUMBERS & set(columns), float))


def base_row(rows: Sequence[str], against: str | None) -> str | None:
    """The row called `against`, or else one that differs from it only in case; None = MLE if there is one."""
    wanted = against or BASE
    for row in sorted(rows, key=lambda row: row != wanted):
        if row.casefold() == wanted.casefold():
            return row
    if against:
        raise InputError(f"--against {against}: no row of that name; the rows are {', '.join(map(repr, rows))}")
    return None


def score_cells(rows: Rows, line: Line | None) -> list[dict[str, Any]]:
    """The cells of a block, without differences, of scores that all runs of a row have, and `COST`: of a training and
    its first stage, a mean over runs, NaN if one lacks it. "std" is the sample standard deviation (n - 1), None for a
    single run."""
    cells = []
    for name, runs in rows.items():
        about = {"method": name, "runs": len(runs)}
        if not runs:
            cells.append(about)
            continue
        stages = [[run.results.train, *filter(None, [run.results.pretraining])] for run in runs]
        costs = [{name: sum(stage.get(name, math.nan) for stage in of_run) for name in COST} for of_run in stages]
        about |= pd.DataFrame(costs).mean(skipna=False)
        all_scores = []
        for run in runs:
            scores = run.results.scores
            if line:
                scores = add_points(scores, line)
            if mean := out_of_domain_mean(scores):
                scores = scores | {OUT_OF_DOMAIN: mean}
            all_scores.append(scores)
        for data_set in all_scores[0]:
            for metric in SCORES:
                if not all(metric in scores[data_set] for scores in all_scores):
                    continue
                values = [scores[data_set][metric] for scores in all_scores]
                cell = about | {"data_set": data_set, "metric": metric, "mean": float(np.mean(values)), "std": None}
                if len(values) > 1:
                    cell["std"] = float(np.std(values, ddof=1))
                cells.append(cell)
    return cells


def _doses(rows: Rows) -> dict[str, str]:
    """In words by row with learned noise: means over its runs and the last tenth of their updates. Rows of last weights
    have none of their own: they are the same trainings."""
    doses = {}
    for name, runs in rows.items():
        means = pd.DataFrame([late_noise(read_lines(run.folder / METRICS_FILE)) for run in runs]).mean()
        if "kl_per_window" in means:
            doses[name] = dose(means.to_dict())
    return doses


def _registered(contrast: tuple, compared: Mapping[significance.Place, Difference]) -> list[Difference]:
    """The contrast that a sweep names, if both of its rows have runs with seeds in common."""
    name, _, metric, data_set = contrast
    tested = list(dict.fromkeys(entry["data_set"] for entry in compared.values()))
    if data_set == SHIFTED and len(tested) > 1:
        data_set = tested[-1]  # the mean if there is one, else the only shifted set
    return [entry for place, entry in compared.items() if place == (name, data_set, metric)]


def _adjust(primary: Sequence[Difference], secondary: Sequence[Difference], others: Sequence[Difference]) -> None:
    """Adds Holm's p and whether it is significant. The primary comparison is tested alone, the secondary ones are
    adjusted together, and so are all other differences of the block. A table of several sweeps may have several primary
    comparisons in a block: these are adjusted with the others."""

    def test_of(entry: Difference) -> Hashable:  # the same for both directions of a comparison
        return frozenset((entry["method"], entry["against"])), entry["data_set"], entry["metric"]

    every = [*primary, *secondary, *others]
    p_of = {test_of(entry): entry.get("difference_p") for entry in every}
    waiting = {test for test, p in p_of.items() if p is not None}
    alone = primary if len(primary) == 1 else []
    for family in (alone, secondary, every):
        together = [test for test in dict.fromkeys(map(test_of, family)) if test in waiting]
        p_of |= zip(together, crossed.holm([p_of[test] for test in together]), strict=True)
        waiting -= set(together)
    for entry in every:
        p = p_of[test_of(entry)]
        entry["difference_holm"] = p
        entry["difference_significant"] = p is not None and p < 1 - crossed.LEVEL / 100


def _add_paper(cells: Sequence[dict[str, Any]], differences: Sequence[Difference], model: str, rows: Rows) -> str:
    """Adds the paper's number to each cell that has one, if these runs trained and tested as the paper's models did;
    returns whether the numbers are "shown", "left out" or "unknown", or "" without runs. If the runs trained on SQuAD,
    all or a part, adds the paper's effects to the differences."""
    runs = [run for row in rows.values() for run in row]
    if not runs:
        return ""
    of_model = paper_scores(model) or paper_scores(runs[0].results.model)

    def data_sets(entry: dict[str, Any]) -> list[str]:
        means = {OUT_OF_DOMAIN: list(runs[0].results.scores)[1:]}
        return means.get(entry["data_set"], [entry["data_set"]])

    if all(not run.recipe.pretrain and was_trained_on(run.recipe.data.train, SQUAD) for run in runs):
        for entry in differences:
            effects = paper_effects(of_model, entry["method"], entry["against"], data_sets(entry)).values()
            inside = [_inside(entry, effect[METRICS.index(entry["metric"])]) for effect in effects]
            entry["difference_paper"] = BETWEEN.join(inside) or None
    if of_model is None:
        return "unknown"
    if not all(map(_as_in_paper, runs)):
        return "left out"
    for cell in cells:
        if cell.get("metric") in METRICS:
            known = [paper_score(of_model, cell["method"], data_set) for data_set in data_sets(cell)]
            if None not in known:
                cell["paper"] = float(np.mean(known, axis=0)[METRICS.index(cell["metric"])])
    return "shown"


def _inside(difference: Difference, effect: float) -> str:
    """Whether an effect of the paper's lies inside the crossed interval, and the effect."""
    if "difference_low" not in difference:
        return f"n/a: {effect:+.2f}"
    if difference["difference_low"] <= effect <= difference["difference_high"]:
        return f"yes: {effect:+.2f}"
    return f"no: {effect:+.2f}"


def _as_in_paper(run: Run) -> bool:
    """Whether the run trained as the paper's, on all questions and no others, and was tested on whole sets."""
    recipe = run.recipe
    if recipe.data.augmented and recipe.method.name != "ssmba":
        return False
    changed = flatten(recipe.model_dump(exclude_defaults=True))
    return was_trained_on(recipe.data.train) and without(changed, PAPER["at_defaults"]) == changed
