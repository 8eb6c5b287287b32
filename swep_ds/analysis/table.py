"""One table of many runs in the paper's layout: a block per model, a row per variant, a column per data set.

A cell is the mean and the standard deviation over seeds, with the difference to a base row and the paper's number.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from swep_ds.analysis import significance
from swep_ds.analysis.crossed import LEVEL, MARGIN, MIN_SEEDS, MIN_TEXTS, holm
from swep_ds.analysis.paper import paper_score, paper_scores, trained_on, was_trained_on
from swep_ds.analysis.robustness import ABOVE, Line, add_points, fitted, line_notes
from swep_ds.analysis.runs import MODEL, Run, read_runs, settings_notes, version_note
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


def make(found: Sequence[Run], against: str | None = None, line: Line | None = None) -> Table:
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
        "differences" to the base row, by column, then "exact_match" and "f1": see `significance.compare`.

    Raises InputError: no row is called `against`, or several are.
    """
    runs, missing = read_runs(found)
    base = _base_row(list(dict.fromkeys(run.variant for run in found)), against)
    no_line = []
    if line is None and base is not None:
        line, no_line = fitted([run.results.scores for run in runs if run.variant == base], base)
    questions = significance.QuestionScores()
    titles = public_names(run.model for run in found if MODEL not in run.labels)
    blocks, notes = [], []
    for place in dict.fromkeys(run.block for run in found):
        model, *labels = place
        rows: dict[str, list[Run]] = {run.variant: [] for run in found if run.block == place}
        for run in runs:
            if run.block == place:
                rows[run.variant].append(run)
        block = score_block(titles.get(model, model), dict(labels), rows, line)
        seeds_notes = _add_differences(block, rows, base, questions)
        for primary in dict.fromkeys(run.primary for run in found if run.block == place and run.primary):
            _add_primary(block, rows, primary, questions)
        _adjust(block, base)
        blocks.append(block)
        notes += [*settings_notes(rows), *seeds_notes, *_add_paper(block, rows)]
    notes += [*_difference_notes(blocks, base), *_calibration_notes(blocks), *no_line]
    if line:
        notes += line_notes(line, [run.results.scores for run in runs])
    entries = []
    for run in missing:
        entry = {"name": run.variant, "labels": run.labels, "seed": run.seed, "reason": run.reason, "line": run.line}
        entries.append(entry)
    return {
        "against": base,
        "line": line and line.model_dump(),
        "blocks": blocks,
        "missing": entries,
        "notes": [*dict.fromkeys(notes), *questions.notes, *version_note(runs)],
    }


def _base_row(rows: Sequence[str], against: str | None) -> str | None:
    """The row called `against`, or the only one that differs from it only in case and separators.

    Without `against` the base is MLE, and None if there is no such row.
    """

    def folded(name: str) -> str:
        return re.sub(r"[\s,_-]+", " ", name.casefold())

    wanted = against or BASE
    if wanted in rows:
        return wanted
    matches = [name for name in rows if folded(name) == folded(wanted)]
    if len(matches) == 1:
        return matches[0]
    if against:
        named = ", ".join(map(repr, rows))
        raise InputError(f"--against {against}: {len(matches) or 'no'} row(s) of that name; the rows are {named}")
    return None


def score_block(model: str, labels: dict[str, str], rows: Rows, line: Line | None) -> Block:
    """A block with its scores, without differences.

    A score has its mean over a row's runs, and the sample standard deviation (n - 1) if there are at least two. Only
    scores that all runs of a row have are in it.
    """
    title = ", ".join([model, *(f"{axis} {label}" for axis, label in labels.items())])
    block = {"title": title, "model": model, "labels": labels, "columns": [], "rows": [], "primary": []}
    for name, runs in rows.items():
        all_scores = [_all_scores(run.results.scores, line) for run in runs]
        columns = list(all_scores[0]) if all_scores else []
        cells: dict[str, Any] = {column: {} for column in columns}
        for column, cell in cells.items():
            for metric in SCORES:
                if all(metric in scores[column] for scores in all_scores):
                    cell[metric] = _summary([scores[column][metric] for scores in all_scores])
        seeds = [run.seed for run in runs]
        block["rows"].append({"name": name, "scores": cells, "seeds": seeds, "differences": {}})
        block["columns"] = block["columns"] or columns
    return block


def _all_scores(scores: Scores, line: Line | None) -> Scores:
    """A run's scores with points above the line and, of two or more shifted sets, their mean."""
    if line:
        scores = add_points(scores, line)
    mean = out_of_domain_mean(scores)
    return scores | {OUT_OF_DOMAIN: mean} if mean else scores


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    std = None
    if len(values) > 1:
        std = float(np.std(values, ddof=1))
    return {"mean": float(np.mean(values)), "std": std}


# Differences


def _add_differences(block: Block, rows: Rows, base: str | None, questions: significance.QuestionScores) -> list[str]:
    """Returns a line for each row whose differences leave out seeds that it or the base has run."""
    if not rows.get(base):
        return []
    compared = significance.compare(rows, base, _data_sets(block), questions)
    notes = []
    for row in block["rows"]:
        name = row["name"]
        if name in compared:
            row["differences"] = compared[name]
            common = significance.common_seeds(rows[name], rows[base])
            if others := sorted({run.seed for run in (*rows[name], *rows[base])} - set(common)):
                notes.append(
                    f"{block['title']}: {name} is compared with {base} over the {len(common)} seeds that both have "
                    f"run; left out: {', '.join(map(str, others))}."
                )
    return notes


def _data_sets(block: Block) -> list[str]:
    return [column for column in block["columns"] if column != OUT_OF_DOMAIN]


def _add_primary(block: Block, rows: Rows, primary: tuple, questions: significance.QuestionScores) -> None:
    """Adds the contrast that the sweep names, if both of its rows have runs with seeds in common."""
    name, base, metric, column = primary
    if column == SHIFTED and len(block["columns"]) > 1:
        column = block["columns"][-1]  # the mean, or the only shifted set
    pair = {base: rows.get(base, []), name: rows.get(name, [])}
    compared = significance.compare(pair, base, _data_sets(block), questions)
    if name in compared and column in block["columns"]:
        about = {"row": name, "base": base, "column": column, "metric": metric}
        block["primary"].append(about | compared[name][column][metric])


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
    adjusted = {test: entries[0]["p"] for test, entries in by_test.items()}
    together = [test for test, p in adjusted.items() if p is not None and [test] != primaries]
    adjusted |= zip(together, holm([adjusted[test] for test in together]), strict=True)
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


def _add_paper(block: Block, rows: Rows) -> list[str]:
    """Adds the paper's number to each cell, or None if it has none or these runs did not train and test as it did.

    Returns notes on these numbers.
    """
    runs = [run for row in rows.values() for run in row]
    if not runs:
        return []
    of_model = paper_scores(block["model"]) or paper_scores(runs[0].results.model)
    comparable = of_model is not None and all(map(_as_in_paper, runs))
    lacking = False
    for row in block["rows"]:
        for column, cell in row["scores"].items():
            data_sets = _data_sets(block)[1:] if column == OUT_OF_DOMAIN else [column]
            each = [None]
            if comparable:
                each = [paper_score(of_model, row["name"], data_set) for data_set in data_sets]
            mean = [None, None]
            if None in each:
                lacking = True
            else:
                mean = np.mean(each, axis=0).tolist()
            for metric, value in zip(METRICS, mean, strict=True):
                cell[metric]["paper"] = value
    if of_model is None:
        return [f"The paper has no numbers for {block['model']}."]
    if not comparable:
        return [
            f"{block['title']}: the paper's numbers are left out: its models trained on all of {trained_on()} and on "
            "nothing else, averaged no weights, and were tested on whole sets."
        ]
    notes = [f"The paper's number, for models trained on {trained_on()}, is in round brackets; a dash: it has none."]
    if not lacking:
        notes = [f"The paper's number, for models trained on {trained_on()}, is in round brackets."]
    for source in dict.fromkeys(run.recipe.data.train for run in runs):
        if not was_trained_on(source):
            name = public_name(source)
            notes.append(f"These models were trained on data.train {name}, which is not known to be {trained_on()}.")
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
