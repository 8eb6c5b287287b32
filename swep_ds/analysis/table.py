"""One table of many runs in the paper's layout: a block per model, a row per variant, a column per data set.

A cell is the mean and the standard deviation over seeds, with the difference to a base row and the paper's number.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from swep_ds.analysis import significance
from swep_ds.analysis.paper import PaperModel, paper_model, trained_on, was_trained_on
from swep_ds.analysis.runs import MissingRun, Run, RunRef, read_runs, settings_notes, version_note
from swep_ds.errors import InputError
from swep_ds.evaluation.results import Scores, out_of_domain_mean

OUT_OF_DOMAIN = "out-of-domain mean"
METRICS = ("exact_match", "f1")
BASE = "MLE"
Table = dict[str, Any]
Block = dict[str, Any]


def make(refs: Sequence[RunRef], against: str | None = None) -> Table:
    """The table of the runs that are finished and comparable (`read_runs`), with the reason why others are missing.

    Args:
        against: the row that the others are compared with; None = MLE if there is one.

    Returns:
        {"against", "blocks": [{"title", "model", "labels": {axis: label}, "columns": the data sets, then the
        out-of-domain mean if there are shifted ones, "rows": [{"name", "seeds": those of its finished runs, "scores",
        "differences"}]}], "missing": [{"name", "labels", "seed", "reason", "line"}], "notes": [lines]}.
        "scores": by column, then "exact_match" and "f1": {"mean", "std" or None (one run), "best": in its column,
        "paper" or None}, in percent.
        "differences" to the base row, likewise: {"mean", "low" and "high" (None if predictions or data cannot be read),
        "seeds": {"mean", "std" or None, "n"}}, in percentage points.

    Raises:
        InputError: no row is called `against`, or several are.
    """
    runs, missing = read_runs(refs)
    base = _base_row(list(dict.fromkeys(ref.variant for ref in refs)), against)
    questions = significance.QuestionScores()
    blocks, notes, keys = [], [], []
    for ref in refs:
        if ref.block in keys:
            continue
        keys.append(ref.block)
        block_runs = [run for run in runs if run.ref.block == ref.block]
        names = dict.fromkeys(other.variant for other in refs if other.block == ref.block)
        rows = {name: [run for run in block_runs if run.ref.variant == name] for name in names}
        blocks.append(_block(*ref.block, rows, base, questions))
        notes += [*settings_notes(rows), *_paper_notes(blocks[-1], block_runs)]
    if base is None:
        notes.append(f"No differences: there is no row {BASE}; --against names another one.")
    elif any(row["differences"] for block in blocks for row in block["rows"]):
        notes.append(
            f"Differences are to {base}, in points; in brackets the {significance.LEVEL} % interval of a paired "
            f"bootstrap over questions ({significance.RESAMPLES:,} resamples), in bold if it excludes 0; then the "
            "standard deviation of the difference over the n seeds in common, after its mean if that differs."
        )
    return {
        "against": base,
        "blocks": blocks,
        "missing": [_missing_entry(run) for run in missing],
        "notes": [*dict.fromkeys(notes), *questions.notes, *version_note(runs)],
    }


def _base_row(rows: Sequence[str], against: str | None) -> str | None:
    """The row called `against`, or the only one that differs from it in case and separators alone.

    Without `against` the base is MLE, and None if there is no such row.
    """

    def folded(name: str) -> str:
        return re.sub(r"[\s_-]+", " ", name.casefold())

    wanted = against or BASE
    matches = [wanted] if wanted in rows else [name for name in rows if folded(name) == folded(wanted)]
    if against and len(matches) != 1:
        fault = f"{len(matches)} rows have that name" if matches else "no row has that name"
        raise InputError(f"--against {against}: {fault}; the rows are {', '.join(rows)}")
    return matches[0] if len(matches) == 1 else None


def _missing_entry(run: MissingRun) -> dict[str, Any]:
    ref = run.ref
    return {"name": ref.variant, "labels": ref.labels, "seed": ref.seed, "reason": run.reason, "line": run.line}


def _block(
    model: str,
    labels: dict[str, str],
    rows: Mapping[str, Sequence[Run]],
    base: str | None,
    questions: significance.QuestionScores,
) -> Block:
    title = ", ".join([model, *(f"{axis} {label}" for axis, label in labels.items())])
    scores = aggregate({name: [_scores(run) for run in runs] for name, runs in rows.items()})
    block = {"title": title, "model": model, "labels": labels, **scores}
    for row, runs in zip(block["rows"], rows.values(), strict=True):
        row |= {"seeds": [run.ref.seed for run in runs], "differences": {}}
    _add_paper(block, [run for runs in rows.values() for run in runs])
    if rows.get(base):
        _add_differences(block, rows, base, questions)
    return block


def _scores(run: Run) -> Scores:
    return {name: {metric: getattr(score, metric) for metric in METRICS} for name, score in run.results.eval.items()}


def aggregate(rows: Mapping[str, Sequence[Scores]]) -> Block:
    """Means over runs, and sample standard deviations (n - 1) if there are at least two.

    Args:
        rows: by row, the scores of its runs (one run per seed), in percent; all on the same data sets, the source
            domain first. A row may have no run.

    Returns:
        {"columns": the data sets, then the out-of-domain mean if there are shifted ones, taken run by run,
        "rows": [{"name", "scores": {column: {"exact_match" and "f1": {"mean", "std" or None, "best"}}}}]}; a row
        without runs has no scores. The best are those of a column as printed, if there are rows to compare.
    """
    entries = []
    for name, runs in rows.items():
        full = [_with_mean(scores) for scores in runs]
        columns = full[0] if full else []
        scores = {
            column: {metric: _summary([run[column][metric] for run in full]) for metric in METRICS}
            for column in columns
        }
        entries.append({"name": name, "scores": scores})
    done = [entry["scores"] for entry in entries if entry["scores"]]
    columns = list(done[0]) if done else []
    for column in columns:
        for metric in METRICS:
            cells = [scores[column][metric] for scores in done]
            best = f"{max(cell['mean'] for cell in cells):.2f}"
            for cell in cells:
                cell["best"] = len(done) > 1 and f"{cell['mean']:.2f}" == best
    return {"columns": columns, "rows": entries}


def _with_mean(scores: Scores) -> dict[str, dict[str, float]]:
    mean = out_of_domain_mean(scores)
    return scores | ({OUT_OF_DOMAIN: mean} if mean else {})


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def _add_differences(
    block: Block, rows: Mapping[str, Sequence[Run]], base: str, questions: significance.QuestionScores
) -> None:
    data_sets = [column for column in block["columns"] if column != OUT_OF_DOMAIN]
    intervals = significance.intervals(rows, base, data_sets, questions)
    by_seed = {name: {run.ref.seed: _with_mean(_scores(run)) for run in runs} for name, runs in rows.items()}
    means = {row["name"]: row["scores"] for row in block["rows"]}
    for row in block["rows"]:
        name = row["name"]
        if name == base or not row["scores"]:
            continue
        seeds = [seed for seed in by_seed[name] if seed in by_seed[base]]
        for column in block["columns"]:
            bounds = intervals[name].get(None if column == OUT_OF_DOMAIN else column)
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


def _paper_model(block: Block, runs: Sequence[Run]) -> PaperModel | None:
    return paper_model(block["model"]) or (paper_model(runs[0].results.model) if runs else None)


def _add_paper(block: Block, runs: Sequence[Run]) -> None:
    """Adds the paper's number to each cell, or None if it has none or these runs did not train and test as it did."""
    model = _paper_model(block, runs) if all(map(_as_in_paper, runs)) else None
    shifted = [column for column in block["columns"][1:] if column != OUT_OF_DOMAIN]
    for row in block["rows"]:
        for column, cell in row["scores"].items():
            data_sets = shifted if column == OUT_OF_DOMAIN else [column]
            each = [model.score(row["name"], data_set) for data_set in data_sets] if model else [None]
            mean = (None, None) if None in each else np.mean(each, axis=0).tolist()
            for metric, value in zip(METRICS, mean, strict=True):
                cell[metric]["paper"] = value


def _as_in_paper(run: Run) -> bool:
    """Whether the run trained on all questions and no others, and was tested on whole sets."""
    data, recipe = run.recipe.data, run.recipe
    limits = (data.max_train_examples, data.max_eval_examples, recipe.train.max_updates, recipe.eval.select_on)
    more = recipe.pretrain or (data.augmented and recipe.method.name != "ssmba")
    return data.train_fraction == 1 and not data.holdout_fraction and not more and limits == (None,) * 4


def _paper_notes(block: Block, runs: Sequence[Run]) -> list[str]:
    """What the paper has no number for."""
    if not runs:
        return []
    model = _paper_model(block, runs)
    if model is None:
        return [f"The paper has no numbers for {block['model']}."]
    if not all(map(_as_in_paper, runs)):
        return [
            f"{block['title']}: the paper's numbers are left out: its models trained on all of {trained_on()} and on "
            "nothing else, and were tested on whole sets."
        ]
    notes = [f"In round brackets the paper's number, for models trained on {trained_on()}."]
    for source in dict.fromkeys(run.recipe.data.train for run in runs):
        if not was_trained_on(source):
            notes.append(f"Not known to be {trained_on()}: data.train {source}, on which these models were trained.")
    cells = [cell[METRICS[0]]["paper"] for row in block["rows"] for cell in row["scores"].values()]
    if None in cells:
        sets = [name for name in block["columns"] if name != OUT_OF_DOMAIN and not model.knows_data_set(name)]
        methods = [row["name"] for row in block["rows"] if not model.knows_method(row["name"])]
        unknown = [f"the data sets {', '.join(sets)}"] if sets else []
        unknown += [f"the methods {', '.join(methods)}"] if methods else []
        for_what = f"for {' and '.join(unknown)}" if unknown else "for every method on every data set"
        notes.append(f"A dash in brackets: the paper has no number {for_what} with {model.label}.")
    return notes
