"""The registered comparisons of learned_noise: F1 of the arms, differences, calibration.

    python studies/learned_noise/comparisons.py runs/learned_noise

The runs are those that `sweep.json` names. The command makes the tables of "The other comparisons" in
appendix.md. Two of the 20 registered differences have their own rules, and Holm's adjusts the others.
Differences that were not registered, and all of calibration, have plain intervals.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from swep_ds.analysis.crossed import holm
from swep_ds.analysis.runs import Run, find_runs, read_runs
from swep_ds.analysis.significance import QuestionScores, compare
from swep_ds.common.errors import InputError
from swep_ds.evaluation.results import OUT_OF_DOMAIN
from swep_ds.sweeps.sweep import unaveraged

CONTROL = "MLE, two dropout masks"
ARMS = ("SWEP", "SWEP, shuffled", "Prior-Aug 0.1", "Prior-Aug 0.333", CONTROL, "MLE, equal compute")
WEIGHTS = {"last": unaveraged, "average": str}  # -> the name of an arm's row
SHIFTED, SOURCE = "shifted mean", "source"
Pair = tuple[str, str]  # an arm less another


# decided before the first run; each is tested on `SHIFTED` and `SOURCE`, with last and with averaged weights
REGISTERED = (
    ("SWEP", "SWEP, shuffled"),
    ("SWEP", "Prior-Aug 0.1"),
    ("Prior-Aug 0.1", CONTROL),
    ("SWEP", "MLE, equal compute"),
    ("Prior-Aug 0.333", "Prior-Aug 0.1"),
)
OWN_RULE = REGISTERED[:2]  # tested apart, on the shifted mean with the last weights
NOT_REGISTERED = (("SWEP", CONTROL), ("Prior-Aug 0.333", CONTROL), (CONTROL, "MLE, equal compute"))


def rule(pair: Pair, weights: str, where: str) -> str:
    if pair not in REGISTERED:
        return "not registered"
    return "its own rule" if pair in OWN_RULE and (weights, where) == ("last", SHIFTED) else "Holm"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def head(*cells: str) -> list[str]:
    return ["", line(*cells), line(*["---"] * len(cells))]


def scores(rows: dict[str, list[Run]], columns: list[str]) -> list[str]:
    """F1 on each set and, after the source domain, the mean over the others: mean ± SD over seeds."""
    lines = head("F1", "weights", "seeds", columns[0], "shifted mean", *columns[1:])
    for weights, row_of in WEIGHTS.items():
        for arm in ARMS:
            f1_SC = np.array([[run.results.scores[column]["f1"] for column in columns] for run in rows[row_of(arm)]])
            f1_SC = np.insert(f1_SC, 1, f1_SC[:, 1:].mean(1), axis=1)
            cells = [f"{mean:.2f} ± {sd:.2f}" for mean, sd in zip(f1_SC.mean(0), f1_SC.std(0, ddof=1), strict=True)]
            lines.append(line(arm, weights, str(len(f1_SC)), *cells))
    return lines


def differences(rows: dict[str, list[Run]], columns: list[str]) -> list[str]:
    """Differences in F1 on the shifted mean and on the source domain: 95 % interval, p, p by Holm's rule."""
    questions, estimates = QuestionScores(), {}
    for pair in (*REGISTERED, *NOT_REGISTERED):
        for weights, row_of in WEIGHTS.items():
            name, base = map(row_of, pair)
            compared = compare([({name: rows[name], base: rows[base]}, base)], questions)[0]
            for where, column in ((SHIFTED, OUT_OF_DOMAIN), (SOURCE, columns[0])):
                estimates[pair, weights, where] = compared[name, column, "f1"]
                if "difference_p" not in estimates[pair, weights, where]:
                    raise InputError("\n".join([f"{name} less {base}: has no interval", *questions.notes]))
    together = [key for key in estimates if rule(*key) == "Holm"]
    adjusted = dict(zip(together, holm([estimates[key]["difference_p"] for key in together]), strict=True))

    def cells(key: tuple[Pair, str, str]) -> list[str]:
        difference = estimates[key]
        p = difference["difference_p"]
        shown = "< 0.001" if p < 0.001 else f"{p:.3f}"
        note = f"{adjusted[key]:.3f}" if key in adjusted else rule(*key)
        bounds = "{difference:+.2f}, {difference_low:+.2f} to {difference_high:+.2f}".format(**difference)
        return [bounds, f"{shown}, {note}"]

    lines = head("difference in F1", "weights", "shifted mean", "p, Holm", columns[0], "p, Holm")
    for pair in (*REGISTERED, *NOT_REGISTERED):
        for weights in WEIGHTS:
            both = cells((pair, weights, SHIFTED)) + cells((pair, weights, SOURCE))
            lines.append(line(" less ".join(pair), weights, *both))
    return lines


def large_sets(rows: dict[str, list[Run]], columns: list[str]) -> list[str]:
    """Differences in F1 with the last weights on the mean of the shifted sets but the last: BioASQ asks 224 questions
    of 1,490 texts and has most of the variance."""
    kept = columns[:-1]
    questions = QuestionScores()
    lines = head("last weights, F1", f"mean of {' and '.join(kept[1:])}")
    for pair in (*REGISTERED, *NOT_REGISTERED):
        both = {}
        for row in map(unaveraged, pair):
            both[row] = []
            for run in rows[row]:
                results = run.results.model_copy(update={"eval": {name: run.results.eval[name] for name in kept}})
                both[row].append(replace(run, results=results))
        name, base = both
        difference = compare([(both, base)], questions)[0][name, OUT_OF_DOMAIN, "f1"]
        bounds = "{difference:+.2f}, {difference_low:+.2f} to {difference_high:+.2f}".format(**difference)
        lines.append(line(" less ".join(pair), bounds))
    return lines


def calibration(rows: dict[str, list[Run]], columns: list[str]) -> list[str]:
    """ECE and AURC with the last weights, means over the shifted sets, and differences to MLE with two masks seed by
    seed, with Student's t interval over seeds."""
    lines = head("last weights, shifted mean", "ECE", "difference", "AURC", "difference")
    for arm in ARMS:
        cells = []
        for metric in ("ece", "aurc"):
            mine, control = (
                {run.seed: np.mean([run.results.scores[column][metric] for column in columns[1:]]) for run in runs}
                for runs in (rows[unaveraged(arm)], rows[unaveraged(CONTROL)])
            )
            values = np.array([*mine.values()])
            cells.append(f"{values.mean():.2f} ± {values.std(ddof=1):.2f}")
            less = np.array([mine[seed] - control[seed] for seed in mine if seed in control])
            low, high = stats.ttest_1samp(less, 0).confidence_interval()
            cells.append("" if arm == CONTROL else f"{less.mean():+.2f}, {low:+.2f} to {high:+.2f}")
        lines.append(line(arm, *cells))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="folder of the sweep's runs")
    args = parser.parse_args()
    try:
        runs, missing = read_runs(find_runs([args.sweep]))
        if missing:
            raise InputError("\n".join(run.line for run in missing))
        rows: dict[str, list[Run]] = {}
        for run in runs:
            rows.setdefault(run.variant, []).append(run)
        needed = [row_of(arm) for row_of in WEIGHTS.values() for arm in ARMS]
        if lost := [row for row in needed if row not in rows]:
            raise InputError(f"the sweep has no runs of {lost[0]!r}")
        columns = list(runs[0].results.scores)
        for table in (scores, differences, large_sets, calibration):
            print("\n".join(table(rows, columns)))
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
