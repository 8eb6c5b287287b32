"""One table of many runs in the paper's layout: a block per model, a row per variant, a column per data set.

A cell is the mean and the deviation over seeds; beside it stand the difference to the base row and the paper's number.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from swep_ds.analysis import significance
from swep_ds.analysis.paper import PaperModel, paper_model, trained_on, was_trained_on
from swep_ds.analysis.runs import Missing, Place, Run, log_line, read, settings_notes, version_note
from swep_ds.errors import InputError
from swep_ds.evaluation.results import Scores, out_of_domain_mean

OUT_OF_DOMAIN = "out-of-domain mean"
METRICS = ("exact_match", "f1")
BASE = "MLE"
Table = dict[str, Any]


def make(places: Sequence[Place], against: str | None = None) -> Table:
    """The table of the runs that are done and can be compared (`runs.read`); it says why others are missing.

    Args:
        against: the row that the others are compared with; None = MLE where there is one.

    Returns:
        {"against", "blocks": [{"title", "model", "labels": {axis: label}, "columns": the data sets, then the
        out-of-domain mean where there are shifted ones, "rows": [{"name", "seeds": of the runs that are done, "scores",
        "differences"}]}], "missing": [{"name", "labels", "seed", "reason"}], "notes": [a line each]}. "scores" are, by
        column and then "exact_match" and "f1", {"mean", "std" or None (one run), "best": whether in its column,
        "paper" or None}, in percent; "differences" {"mean", "low" and "high" (None where predictions or data cannot
        be read), "seeds": {"mean", "std" or None, "n"}} to the base row, in percentage points.

    Raises:
        InputError: no row is called `against`, or several are.
    """
    runs, missing = read(places)
    base = _base(list(dict.fromkeys(place.variant for place in places)), against)
    scores = significance.QuestionScores()
    blocks, notes = [], []
    for model, labels in _unique(place.block for place in places):
        own = [run for run in runs if run.place.block == (model, labels)]
        names = dict.fromkeys(place.variant for place in places if place.block == (model, labels))
        rows = {name: [run for run in own if run.place.variant == name] for name in names}
        blocks.append(_block(model, labels, rows, base, scores))
        notes += [*settings_notes(rows), *_paper_notes(blocks[-1], own)]
    if base is None:
        notes.append(f"No differences: there is no row {BASE}; --against names another one.")
    elif any(row["differences"] for block in blocks for row in block["rows"]):
        notes.append(
            f"Differences are to {base}, in points; in brackets the {significance.LEVEL} % interval of a paired "
            f"bootstrap over questions ({significance.RESAMPLES:,} resamples), in bold where it leaves out 0; then the "
            "deviation of the difference seed by seed (n seeds in common), after its mean where that is another one."
        )
    return {
        "against": base,
        "blocks": blocks,
        "missing": [_lack(one) for one in missing],
        "notes": [*dict.fromkeys(notes), *scores.notes, *version_note(runs)],
    }


def _base(rows: Sequence[str], against: str | None) -> str | None:
    """The row that is called so, else the one that differs in case and separators alone; no MLE is no fault."""
    wanted = against or BASE
    alike = [wanted] if wanted in rows else [name for name in rows if _folded(name) == _folded(wanted)]
    if against and len(alike) != 1:
        fits = f"{len(alike)} rows are called so" if alike else "no row of that name"
        raise InputError(f"--against {against}: {fits}; there are {', '.join(rows)}")
    return alike[0] if len(alike) == 1 else None


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.casefold())


def _unique(blocks: Iterable[tuple[str, dict[str, str]]]) -> list[tuple[str, dict[str, str]]]:
    found = []
    for block in blocks:
        if block not in found:
            found.append(block)
    return found


def _lack(missing: Missing) -> dict[str, Any]:
    place = missing.place
    return {
        "name": place.variant,
        "labels": place.labels,
        "seed": place.seed,
        "reason": missing.reason,
        "line": log_line(missing),
    }


def _block(
    model: str,
    labels: dict[str, str],
    runs: Mapping[str, Sequence[Run]],
    base: str | None,
    questions: significance.QuestionScores,
) -> dict[str, Any]:
    scores = {name: [_plain_scores(run) for run in several] for name, several in runs.items()}
    block = {
        "title": ", ".join([model, *(f"{axis} {label}" for axis, label in labels.items())]),
        "model": model,
        "labels": labels,
        **aggregate(scores),
    }
    for row, several in zip(block["rows"], runs.values(), strict=True):
        row["seeds"] = [run.place.seed for run in several]
        row["differences"] = {}
    _add_paper(block, [run for several in runs.values() for run in several])
    if runs.get(base):
        _add_differences(block, runs, base, questions)
    return block


def _plain_scores(run: Run) -> Scores:
    return {name: {metric: getattr(score, metric) for metric in METRICS} for name, score in run.results.eval.items()}


def aggregate(runs: Mapping[str, Sequence[Scores]]) -> Table:
    """Means over runs, and sample standard deviations (n - 1) where there are at least two.

    Args:
        runs: by row, the scores of its runs (one per seed), in percent; all of the same data sets, the source domain
            first. A row may have none.

    Returns:
        {"columns": the data sets, then the out-of-domain mean where there are shifted ones, each run's own first,
        "rows": [{"name", "scores": {column: {"exact_match" and "f1": {"mean", "std" or None, "best"}}}}]}, a row
        without runs having no scores. The best are those of a column as printed, where there are rows to compare.
    """
    rows = []
    for name, several in runs.items():
        full = [_with_mean(scores) for scores in several]
        columns = full[0] if full else []
        scores = {column: {key: _summary([one[column][key] for one in full]) for key in METRICS} for column in columns}
        rows.append({"name": name, "scores": scores})
    done = [row["scores"] for row in rows if row["scores"]]
    columns = list(done[0]) if done else []
    for column in columns:
        for metric in METRICS:
            best = f"{max(scores[column][metric]['mean'] for scores in done):.2f}"
            for scores in done:
                scores[column][metric]["best"] = len(done) > 1 and f"{scores[column][metric]['mean']:.2f}" == best
    return {"columns": columns, "rows": rows}


def _with_mean(scores: Scores) -> dict[str, dict[str, float]]:
    mean = out_of_domain_mean(scores)
    return scores | ({OUT_OF_DOMAIN: mean} if mean else {})


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def _add_differences(
    block: dict[str, Any], runs: Mapping[str, Sequence[Run]], base: str, questions: significance.QuestionScores
) -> None:
    data_sets = [column for column in block["columns"] if column != OUT_OF_DOMAIN]
    found = significance.intervals(runs, base, data_sets, questions)
    by_seed = {
        name: {run.place.seed: _with_mean(_plain_scores(run)) for run in several} for name, several in runs.items()
    }
    means = {row["name"]: row["scores"] for row in block["rows"]}
    for row in block["rows"]:
        name = row["name"]
        if name == base or not row["scores"]:
            continue
        seeds = [seed for seed in by_seed[name] if seed in by_seed[base]]
        for column in block["columns"]:
            bounds = found[name].get(None if column == OUT_OF_DOMAIN else column)
            row["differences"][column] = {}
            for number, metric in enumerate(METRICS):
                each = [by_seed[name][seed][column][metric] - by_seed[base][seed][column][metric] for seed in seeds]
                low, high = (None, None) if bounds is None else map(float, bounds[:, number])
                row["differences"][column][metric] = {
                    "mean": means[name][column][metric]["mean"] - means[base][column][metric]["mean"],
                    "low": low,
                    "high": high,
                    "seeds": {**(_summary(each) if each else {"mean": None, "std": None}), "n": len(each)},
                }


def _add_paper(block: dict[str, Any], runs: Sequence[Run]) -> None:
    """The paper's number in each cell, None where it has none or where these runs saw a part of their data alone."""
    known = paper_model(block["model"]) or (paper_model(runs[0].results.model) if runs else None)
    if known is None or not all(map(_whole, runs)):
        known = None
    shifted = [column for column in block["columns"][1:] if column != OUT_OF_DOMAIN]
    for row in block["rows"]:
        for column, cell in row["scores"].items():
            both = _of_paper(known, row["name"], shifted if column == OUT_OF_DOMAIN else [column])
            for metric, value in zip(METRICS, both or (None, None), strict=True):
                cell[metric]["paper"] = value


def _of_paper(known: PaperModel | None, method: str, columns: Sequence[str]) -> tuple[float, float] | None:
    """EM and F1, the mean over the columns."""
    each = [known.score(method, column) for column in columns] if known else [None]
    return None if None in each else tuple(float(value) for value in np.mean(each, axis=0))


def _whole(run: Run) -> bool:
    """Whether it was trained and tested as the paper's were: on all questions, and on no others."""
    data, recipe = run.recipe.data, run.recipe
    limits = (data.max_train_examples, data.max_eval_examples, recipe.train.max_updates, recipe.eval.select_on)
    more = recipe.pretrain or (data.augmented and recipe.method.name != "ssmba")
    return data.train_fraction == 1 and not data.holdout_fraction and not more and limits == (None,) * 4


def _paper_notes(block: dict[str, Any], runs: Sequence[Run]) -> list[str]:
    """What the paper has no number for."""
    if not runs:
        return []
    known = paper_model(block["model"]) or paper_model(runs[0].results.model)
    if known is None:
        return [f"The paper has no numbers for {block['model']}."]
    if not all(map(_whole, runs)):
        return [
            f"{block['title']}: the paper's numbers are left out: they are of training on all of {trained_on()} alone, "
            "and of whole test sets."
        ]
    sets = [one for one in block["columns"] if one != OUT_OF_DOMAIN and not known.knows_data_set(one)]
    methods = [row["name"] for row in block["rows"] if not known.knows_method(row["name"])]
    said = [f"the data sets {', '.join(sets)}"] if sets else []
    said += [f"the methods {', '.join(methods)}"] if methods else []
    cells = [cell[METRICS[0]]["paper"] for row in block["rows"] for cell in row["scores"].values()]
    notes = [f"In round brackets the paper's number, of models trained on {trained_on()}."]
    for source in dict.fromkeys(run.recipe.data.train for run in runs):
        if not was_trained_on(source):
            notes.append(f"Not known to be {trained_on()}: data.train {source}, on which these models were trained.")
    if any(value is None for value in cells):
        named = f"for {' and '.join(said)}" if said else "for every method on every data set"
        notes.append(f"A dash in brackets: the paper has no number {named} with {known.label}.")
    return notes
