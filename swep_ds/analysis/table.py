"""One table of many runs in the paper's layout: a block per model, a row per variant, a column per data set.

A cell is the mean and the standard deviation over seeds, with the difference to a base row and the paper's number.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from swep_ds.analysis import significance
from swep_ds.analysis.crossed import LEVEL, MARGIN, MIN_SEEDS, MIN_TEXTS, holm
from swep_ds.analysis.paper import paper_model, trained_on, was_trained_on
from swep_ds.analysis.questions import QuestionScores
from swep_ds.analysis.robustness import ABOVE, Line, add_points, fitted, line_notes
from swep_ds.analysis.runs import MODEL, Primary, Run, RunRef, read_runs, settings_notes, version_note
from swep_ds.common.errors import InputError
from swep_ds.common.files import public_name, public_names
from swep_ds.data.splits import MIN_ARTICLES
from swep_ds.evaluation.calibration import CALIBRATED, CALIBRATION, COVERED_ACCURACY, ECE_BINS, MIN_CLUSTERS
from swep_ds.evaluation.results import METRICS, OUT_OF_DOMAIN, Scores, out_of_domain_mean
from swep_ds.sweeps.sweep import SHIFTED, unaveraged

SCORES = (*METRICS, *CALIBRATION, *CALIBRATED, ABOVE)
HEADS = {"exact_match": "EM", "f1": "F1"}
BASE = "MLE"
Table = dict[str, Any]
Block = dict[str, Any]
Rows = Mapping[str, Sequence[Run]]


def make(refs: Sequence[RunRef], against: str | None = None, line: Line | None = None) -> Table:
    """The table of the runs that are finished and comparable (`read_runs`), with the reason why others are missing.

    Args:
        against: the row that the others are compared with; None = MLE if there is one.
        line: F1 on shifted data as in-domain F1 predicts it; None = fitted to the runs of the row `against`, if it can.

    Returns:
        {"against", "line": a dumped `Line` or None, "blocks": [{"title", "model", "labels": {axis: label}, "columns":
        the data sets, then the out-of-domain mean of two or more shifted ones, "primary": [{"row", "base", "column",
        "metric", **difference}], "rows": [{"name", "seeds": those of its finished runs, "scores", "differences"}]}],
        "missing": [{"name", "labels", "seed", "reason", "line"}], "notes": [lines]}.
        "scores": by column, then "exact_match", "f1" and, where known, `CALIBRATION`, `CALIBRATED` and `ABOVE`:
        {"mean", "std" or None (one run), "paper" or None}, in percent.
        "differences" to the base row, by column, then "exact_match" and "f1": see `_difference`.

    Raises InputError: no row is called `against`, or several are.
    """
    runs, missing = read_runs(refs)
    base = _base_row(list(dict.fromkeys(ref.variant for ref in refs)), against)
    no_line = ""
    if line is None and base is not None:
        line, no_line = fitted([run.results.scores for run in runs if run.ref.variant == base], base)
    questions = QuestionScores()
    titles = public_names(ref.model for ref in refs if MODEL not in ref.labels)
    blocks, notes, done = [], [], []
    for ref in refs:
        if ref.block in done:
            continue
        done.append(ref.block)
        model, labels = ref.block
        block_refs = [other for other in refs if other.block == ref.block]
        block_runs = [run for run in runs if run.ref.block == ref.block]
        names = dict.fromkeys(other.variant for other in block_refs)
        rows = {name: [run for run in block_runs if run.ref.variant == name] for name in names}
        block = score_block(titles.get(model, model), labels, rows, line)
        paper_notes = _add_paper(block, block_runs)
        seeds_notes = _add_differences(block, rows, base, questions) if rows.get(base) else []
        for primary in dict.fromkeys(other.primary for other in block_refs if other.primary):
            _add_primary(block, rows, primary, questions)
        _adjust(block, base)
        blocks.append(block)
        notes += [*settings_notes(rows), *seeds_notes, *paper_notes]
    notes += [*_difference_notes(blocks, base), *_calibration_notes(blocks)]
    if line:
        notes += line_notes(line, [run.results.scores for run in runs])
    elif no_line:
        notes.append(no_line)
    return {
        "against": base,
        "line": line and line.model_dump(),
        "blocks": blocks,
        "missing": [run.entry() for run in missing],
        "notes": [*dict.fromkeys(notes), *questions.notes, *version_note(runs)],
    }


def _base_row(rows: Sequence[str], against: str | None) -> str | None:
    """The row called `against`, or the only one that differs from it only in case and separators.

    Without `against` the base is MLE, and None if there is no such row.
    """

    def folded(name: str) -> str:
        return re.sub(r"[\s,_-]+", " ", name.casefold())

    wanted = against or BASE
    matches = [wanted] if wanted in rows else [name for name in rows if folded(name) == folded(wanted)]
    if against and len(matches) != 1:
        fault = f"{len(matches)} rows have that name" if matches else "no row has that name"
        raise InputError(f"--against {against}: {fault}; the rows are {', '.join(map(repr, rows))}")
    return matches[0] if len(matches) == 1 else None


def score_block(model: str, labels: dict[str, str], rows: Rows, line: Line | None) -> Block:
    """A block with its scores, without differences."""
    scored = {name: [run.results.scores for run in runs] for name, runs in rows.items()}
    if line:
        scored = {name: [add_points(scores, line) for scores in runs] for name, runs in scored.items()}
    title = ", ".join([model, *(f"{axis} {label}" for axis, label in labels.items())])
    block = {"title": title, "model": model, "labels": labels, **aggregate(scored), "primary": []}
    for row in block["rows"]:
        row["seeds"] = [run.ref.seed for run in rows[row["name"]]]
        row["differences"] = {}
    return block


def aggregate(rows: Mapping[str, Sequence[Scores]]) -> Block:
    """Means over runs, and sample standard deviations (n - 1) if there are at least two.

    Args:
        rows: by row, the scores of its runs (one run per seed), in percent; all on the same data sets, the source
            domain first. A row may have no run.

    Returns:
        {"columns": the data sets, then the out-of-domain mean of two or more shifted ones, taken run by run,
        "rows": [{"name", "scores": {column: {metric: {"mean", "std" or None}}}}]}, with the metrics that all of a row's
        runs have; a row without runs has no scores.
    """
    entries, columns = [], []
    for name, runs in rows.items():
        full = [_with_mean(scores) for scores in runs]
        scores: dict[str, Any] = {column: {} for column in (full[0] if full else [])}
        for column, cell in scores.items():
            for metric in SCORES:
                if all(metric in run[column] for run in full):
                    cell[metric] = _summary([run[column][metric] for run in full])
        entries.append({"name": name, "scores": scores})
        columns = columns or list(scores)
    return {"columns": columns, "rows": entries}


def _with_mean(scores: Scores) -> dict[str, dict[str, float]]:
    mean = out_of_domain_mean(scores)
    return scores | {OUT_OF_DOMAIN: mean} if mean else scores


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


# Differences


def _add_differences(block: Block, rows: Rows, base: str, questions: QuestionScores) -> list[str]:
    """Returns a line for each row whose differences leave out seeds that it or the base has run."""
    data_sets = [column for column in block["columns"] if column != OUT_OF_DOMAIN]
    compared = significance.compare(rows, base, data_sets, questions)
    notes = []
    for row in block["rows"]:
        name, runs = row["name"], rows[row["name"]]
        common = significance.common_seeds(runs, rows[base])
        if name == base or not common:
            continue
        for column in block["columns"]:
            row["differences"][column] = {
                metric: _difference(runs, rows[base], column, metric, compared[name]) for metric in METRICS
            }
        if others := sorted({run.ref.seed for run in (*runs, *rows[base])} - set(common)):
            notes.append(
                f"{block['title']}: {name} is compared with {base} over the {len(common)} seeds that both have run; "
                f"left out: {', '.join(map(str, others))}."
            )
    return notes


def _difference(
    runs: Sequence[Run], base: Sequence[Run], column: str, metric: str, compared: Mapping[str | None, Any]
) -> dict[str, Any]:
    """A difference in points, over the seeds in common.

    Returns:
        {"mean", "std": from seed to seed, or None (one seed), "n": seeds, "low", "high" and "p": of the crossed
        interval, "no_difference": whether it is smaller than `MARGIN` by its test, "bootstrap_low", "bootstrap_high"};
        None where there is no interval.
    """
    scores, base_scores = (
        {run.ref.seed: _with_mean(run.results.scores)[column][metric] for run in row} for row in (runs, base)
    )
    each = [scores[seed] - base_scores[seed] for seed in significance.common_seeds(runs, base)]
    result = {**_summary(each), "n": len(each)}
    result |= dict.fromkeys(("low", "high", "p", "no_difference", "bootstrap_low", "bootstrap_high"))
    difference = compared.get(None if column == OUT_OF_DOMAIN else column)
    if difference is None:
        return result
    number = METRICS.index(metric)
    if difference.bootstrap is not None:
        result["bootstrap_low"], result["bootstrap_high"] = difference.bootstrap[:, number].tolist()
    if difference.crossed is not None:
        low, high = difference.crossed.interval()
        result["low"] = float(low[number])
        result["high"] = float(high[number])
        result["p"] = float(difference.crossed.p()[number])
        result["no_difference"] = bool(difference.crossed.within()[number])
    return result


def _add_primary(block: Block, rows: Rows, primary: Primary, questions: QuestionScores) -> None:
    """Adds the contrast that the sweep names, if both of its rows have runs with seeds in common."""
    name, base, metric, column = primary
    runs, base_runs = rows.get(name, []), rows.get(base, [])
    columns = block["columns"]
    if column == SHIFTED and len(columns) > 1:
        column = columns[-1]  # the mean, or the only shifted set
    if column in columns and significance.common_seeds(runs, base_runs):
        data_sets = [other for other in columns if other != OUT_OF_DOMAIN]
        compared = significance.compare({base: base_runs, name: runs}, base, data_sets, questions)[name]
        difference = _difference(runs, base_runs, column, metric, compared)
        block["primary"].append({"row": name, "base": base, "column": column, "metric": metric, **difference})


def _adjust(block: Block, base: str | None) -> None:
    """Adds "holm", p adjusted for all differences of the block but the primary one, and "significant".

    A table of several sweeps may have several primary comparisons in a block: these are adjusted with the others.
    """
    by_test: dict[Hashable, list[dict[str, Any]]] = {}  # a test is the same for both directions of a comparison
    for entry in block["primary"]:
        test = frozenset((entry["row"], entry["base"])), entry["column"], entry["metric"]
        by_test.setdefault(test, []).append(entry)
    primaries = list(by_test)
    for row in block["rows"]:
        for column, by_metric in row["differences"].items():
            for metric, entry in by_metric.items():
                by_test.setdefault((frozenset((row["name"], base)), column, metric), []).append(entry)
    p = {test: entries[0]["p"] for test, entries in by_test.items()}
    together = [test for test in by_test if p[test] is not None and [test] != primaries]
    adjusted = p | dict(zip(together, holm([p[test] for test in together]), strict=True))
    for test, entries in by_test.items():
        for entry in entries:
            entry["holm"] = adjusted[test]
            entry["significant"] = adjusted[test] is not None and adjusted[test] < 1 - LEVEL / 100


# Notes


def _difference_notes(blocks: Sequence[Block], base: str | None) -> list[str]:
    if base is None:
        return [f"No differences: there is no row {BASE}; --against names another one."]
    rows = [row for block in blocks for row in block["rows"]]
    if not any(row["differences"] for row in rows):
        return []
    notes = [
        f"Differences from {base} are in points, seed by seed over the n seeds that both have; SD is from seed to "
        f"seed. The {LEVEL} % interval covers other seeds crossed with other questions, and needs {MIN_SEEDS} seeds "
        f"and {MIN_TEXTS} texts in each set. "
        f"Questions are grouped by article where there are {MIN_ARTICLES} articles, else by paragraph, or by question "
        "where a set asks the same of many texts.",
        "p is adjusted by Holm's method for all differences of the block except the sweep's primary one, and for this "
        f"one too if the block has several. Bold: p below {1 - LEVEL / 100:.2f}. No difference: "
        f"smaller than {MARGIN} points (two one-sided tests at {100 - LEVEL} %, not adjusted for their number).",
        f"The last interval is a bootstrap over questions ({significance.RESAMPLES:,} resamples): other questions for "
        f"these trained models. It knows nothing of other seeds, and needs {MIN_CLUSTERS} texts.",
    ]
    if any(row["name"] == unaveraged(base) for row in rows):
        notes.append(
            f"{base} has averaged weights, so the difference of an unaveraged row to it includes the effect of "
            f"averaging: --against {unaveraged(base)!r} compares last weights."
        )
    return notes


def _calibration_notes(blocks: Sequence[Block]) -> list[str]:
    cells = [cell for block in blocks for row in block["rows"] for cell in row["scores"].values()]
    notes = []
    if any(CALIBRATION[0] in cell for cell in cells):
        notes.append(
            f"Calibration, in percent, lower is better for the first two: expected calibration error ({ECE_BINS} bins "
            "of as many questions each), area under the risk-coverage curve (risk: 1 - EM), and the share of questions "
            f"that can be answered, the most confident first, with {COVERED_ACCURACY} % of EM."
        )
    if any(CALIBRATED[0] in cell for cell in cells):
        notes.append("Calibrated: the same by the confidences of the calibrator that the run fitted to held-out text.")
    return notes


# The paper's numbers


def _add_paper(block: Block, runs: Sequence[Run]) -> list[str]:
    """Adds the paper's number to each cell, or None if it has none or these runs did not train and test as it did.

    Returns what the paper has no number for.
    """
    model = paper_model(block["model"]) or (paper_model(runs[0].results.model) if runs else None)
    comparable = model is not None and all(map(_as_in_paper, runs))
    shifted = [column for column in block["columns"][1:] if column != OUT_OF_DOMAIN]
    lacking = False
    for row in block["rows"]:
        for column, cell in row["scores"].items():
            data_sets = shifted if column == OUT_OF_DOMAIN else [column]
            each = [model.score(row["name"], data_set) if comparable else None for data_set in data_sets]
            mean = (None, None) if None in each else np.mean(each, axis=0).tolist()
            lacking = lacking or None in each
            for metric, value in zip(METRICS, mean, strict=True):
                cell[metric]["paper"] = value
    if not runs:
        return []
    if model is None:
        return [f"The paper has no numbers for {block['model']}."]
    if not comparable:
        return [
            f"{block['title']}: the paper's numbers are left out: its models trained on all of {trained_on()} and on "
            "nothing else, averaged no weights, and were tested on whole sets."
        ]
    notes = [f"The paper's number, for models trained on {trained_on()}, is in round brackets."]
    for source in dict.fromkeys(run.recipe.data.train for run in runs):
        if not was_trained_on(source):
            name = public_name(source)
            notes.append(f"These models were trained on data.train {name}, which is not known to be {trained_on()}.")
    if lacking:
        sets = [name for name in block["columns"] if name != OUT_OF_DOMAIN and not model.knows_data_set(name)]
        methods = [row["name"] for row in block["rows"] if not model.knows_method(row["name"])]
        unknown = []
        if sets:
            unknown.append(f"the data sets {', '.join(sets)}")
        if methods:
            unknown.append(f"the methods {', '.join(methods)}")
        for_what = f"for {' and '.join(unknown)}" if unknown else "for every method on every data set"
        notes.append(f"A dash in brackets: the paper has no number {for_what} with {model.label}.")
    return notes


def _as_in_paper(run: Run) -> bool:
    """Whether the run trained on all questions and no others, averaged no weights, and was tested on whole sets."""
    recipe, data = run.recipe, run.recipe.data
    return (
        data.train_fraction == 1
        and data.max_train_examples is None
        and not data.holdout_fraction
        and recipe.pretrain is None
        and (not data.augmented or recipe.method.name == "ssmba")
        and recipe.train.max_updates is None
        and recipe.train.average == "none"
        and data.max_eval_examples is None
        and recipe.eval.select_on is None
    )
