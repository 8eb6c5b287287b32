"""The tables of "The other comparisons" in cpu-learned-noise.md: F1 of each arm, and 20 differences with Holm's rule.

    python docs/measurements/learned_noise/comparisons.py runs/learned_noise

The runs are those that `sweep.json` names. Two of the differences have rules of their own; Holm's adjusts the others.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from swep_ds.analysis.crossed import holm
from swep_ds.analysis.questions import QuestionScores
from swep_ds.analysis.runs import Run, find_runs, read_runs
from swep_ds.analysis.significance import compare
from swep_ds.errors import InputError
from swep_ds.sweeps.sweep import unaveraged

ARMS = ("SWEP", "SWEP, shuffled", "Prior-Aug 0.1", "Prior-Aug 0.333", "MLE, two dropout masks", "MLE, equal compute")
PAIRS = (
    ("SWEP", "SWEP, shuffled"),
    ("SWEP", "Prior-Aug 0.1"),
    ("Prior-Aug 0.1", "MLE, two dropout masks"),
    ("SWEP", "MLE, equal compute"),
    ("Prior-Aug 0.333", "Prior-Aug 0.1"),
)
OWN_RULE = PAIRS[:2]  # with the last weights, on the shifted mean
WEIGHTS = {"last": unaveraged, "average": str}  # -> the name of an arm's row
F1 = 1  # its number in estimates, after EM


def scores(rows: dict[str, list[Run]], columns: list[str]) -> list[str]:
    """A line for each arm: F1 on each set, after the source domain the mean over the others, mean ± SD over seeds."""
    lines = []
    for weights, row_of in WEIGHTS.items():
        for arm in ARMS:
            of_seeds = [[run.results.scores[column]["f1"] for column in columns] for run in rows[row_of(arm)]]
            f1_SC = np.array(of_seeds)
            f1_SC = np.insert(f1_SC, 1, f1_SC[:, 1:].mean(1), axis=1)
            cells = [f"{mean:.2f} ± {sd:.2f}" for mean, sd in zip(f1_SC.mean(0), f1_SC.std(0, ddof=1), strict=True)]
            lines.append(" | ".join([arm, weights, str(len(f1_SC)), *cells]))
    return lines


def differences(rows: dict[str, list[Run]], columns: list[str]) -> list[str]:
    """A line for each pair and weights: on the shifted mean and on the source domain difference, interval, p, Holm."""
    questions, estimates = QuestionScores(), {}
    for pair in PAIRS:
        for weights, row_of in WEIGHTS.items():
            name, base = map(row_of, pair)
            by_set = compare({name: rows[name], base: rows[base]}, base, columns, questions)[name]
            for column in (None, columns[0]):
                estimates[pair, weights, column] = by_set[column].crossed
    if questions.notes:
        raise InputError("\n".join(questions.notes))
    together = [key for key in estimates if not (key[0] in OWN_RULE and key[1:] == ("last", None))]
    adjusted = dict(zip(together, holm([estimates[key].p()[F1] for key in together]), strict=True))
    lines = []
    for pair in PAIRS:
        for weights in WEIGHTS:
            cells = [" less ".join(pair), weights]
            for column in (None, columns[0]):
                key = (pair, weights, column)
                low, high = (bound[F1] for bound in estimates[key].interval())
                holms = f"{adjusted[key]:.3f}" if key in adjusted else "its own rule"
                mean, p = estimates[key].mean[F1], estimates[key].p()[F1]
                cells += [f"{mean:+.2f}, {low:+.2f} to {high:+.2f}", f"{p:.4f}, {holms}"]
            lines.append(" | ".join(cells))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="folder of the sweep's runs")
    try:
        runs, missing = read_runs(find_runs([parser.parse_args().sweep]))
        if missing:
            raise InputError("\n".join(run.line for run in missing))
        rows: dict[str, list[Run]] = {}
        for run in runs:
            rows.setdefault(run.ref.variant, []).append(run)
        if lost := [arm for arm in ARMS if arm not in rows]:
            raise InputError(f"the sweep has no row {lost[0]!r}")
        columns = list(runs[0].results.scores)
        print("F1: arm | weights | seeds |", " | ".join([columns[0], "shifted mean", *columns[1:]]))
        print("\n".join(scores(rows, columns)))
        print(f"difference in F1 | weights | shifted mean, 95 % interval | p, Holm | {columns[0]} | p, Holm")
        print("\n".join(differences(rows, columns)))
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
