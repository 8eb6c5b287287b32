"""How far forecasts of EM and F1 are off on shifted sets that they were not fitted to.

    python studies/forecast/compare.py                      # the tables of README.md, from cells.jsonl
    python studies/forecast/compare.py measure runs/learned_noise/*-seed[012]/unaveraged    # more cells
    python studies/forecast/compare.py measure --alone runs/quick/*

A cell is a shifted set as runs of one name but for their seed forecast it, or with --alone one run by itself. `measure`
prints cells; cells.jsonl holds those of the page.
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from swep_ds.analysis.forecast import (
    MEASURED,
    MEASURED_DECLINING,
    WORD,
    Correction,
    forecast,
    read_home,
    read_runs,
    scores,
    words,
)
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.folder import UNAVERAGED, RunFolder

CELLS = Path(__file__).parent / "cells.jsonl"
CHOSEN = "unknown words of contexts"
REAL = ("new_wiki", "amazon", "bioasq")  # the other sets are generated text
DISTANCES = (CHOSEN, "unknown words of questions", "words of a context")
DISTANCES += ("perplexity of contexts", "perplexity of questions", "domain classifier")
DECLINING = " of runs that decline"
LEVEL = 90  # percent, of intervals; those of the package are of 95
ORDER = 4  # characters in an n-gram
SAMPLE = 500  # texts, for n-grams and the domain classifier


# Estimators that the package does not use


def thresholded_confidence(scores_Q: np.ndarray, confidence_Q: np.ndarray, there_Q: np.ndarray) -> float:
    """ATC, average thresholded confidence (Garg et al., ICLR 2022): the share of confidences there above a threshold.
    Of those at home, the mean score is the share above it."""
    return float(np.mean(there_Q > np.quantile(confidence_Q, 1 - np.mean(scores_Q))))


def difference_of_confidences(scores_Q: np.ndarray, confidence_Q: np.ndarray, there_Q: np.ndarray) -> float:
    """DoC (Guillory et al., ICCV 2021): the mean score falls by as much as the mean confidence."""
    return float(np.mean(scores_Q) - np.mean(confidence_Q) + np.mean(there_Q))


OTHERS = {"ATC": thresholded_confidence, "DoC": difference_of_confidences}


# Distances, 0 at home


def distances(training: list[Example], home: list[Example], there: list[Example]) -> dict[str, float]:
    known = words(training)
    texts = {text for example in training for text in (example.context, example.question)}
    surprise = n_gram_model(sorted(texts))
    contexts = [sorted({example.context for example in examples}) for examples in (home, there)]
    questions = [sorted({example.question for example in examples}) for examples in (home, there)]

    def log_ratio(measure: Callable[[list[str]], float], texts: list[list[str]]) -> float:
        return math.log(measure(texts[1]) / measure(texts[0]))

    def unknown(texts: list[str]) -> float:
        units = [word for text in texts for word in WORD.findall(text.lower())]
        return (sum(word not in known for word in units) + 0.5) / (len(units) + 1)

    def length(texts: list[str]) -> float:
        return float(np.mean([len(WORD.findall(text)) for text in texts]))

    values = [log_ratio(unknown, contexts), log_ratio(unknown, questions), log_ratio(length, contexts)]
    values += [surprise(contexts[1]) - surprise(contexts[0]), surprise(questions[1]) - surprise(questions[0])]
    return dict(zip(DISTANCES, [*values, float(ndtri(min(auc(*questions), 0.999)))], strict=True))


def n_gram_model(texts: list[str]) -> Callable[[list[str]], float]:
    """Nats a character under n-grams of characters of order `ORDER`, smoothed by adding 0.05; the log of perplexity."""

    def grams(text: str) -> list[str]:
        padded = " " * (ORDER - 1) + text.lower()
        return [padded[i : i + ORDER] for i in range(len(text))]

    counts = Counter(gram for text in texts for gram in grams(text))
    prefixes: Counter[str] = Counter()
    for gram, count in counts.items():
        prefixes[gram[:-1]] += count
    alphabet = len({gram[-1] for gram in counts}) + 1

    def surprise(texts: list[str]) -> float:
        units = [gram for text in texts[:: max(1, len(texts) // SAMPLE)] for gram in grams(text)]
        chances = [(counts[gram] + 0.05) / (prefixes[gram[:-1]] + 0.05 * alphabet) for gram in units]
        return float(-np.log(chances).mean())

    return surprise


def auc(home: list[str], there: list[str]) -> float:
    """The area under the ROC curve of naive Bayes, which tells two domains apart by words of questions; two folds."""
    rng = np.random.default_rng(0)
    size = min(len(home), len(there), SAMPLE)
    bags = []  # by domain
    for texts in (home, there):
        bags.append([set(WORD.findall(texts[i].lower())) for i in rng.permutation(len(texts))[:size]])
    odds = [[], []]
    for fold in (0, 1):
        counts = [Counter(word for bag in of_domain[fold::2] for word in bag) for of_domain in bags]
        totals = [count.total() + len(counts[0] | counts[1]) for count in counts]
        for domain in (0, 1):
            for bag in bags[domain][1 - fold :: 2]:
                logs = [np.log([(counts[n][word] + 1) / totals[n] for word in bag]).sum() for n in (0, 1)]
                odds[domain].append(logs[1] - logs[0])
    return float(np.mean(np.array(odds[1])[:, None] > np.array(odds[0])))


# Measuring cells


def measure(folders: Sequence[Path], alone: bool) -> None:
    """Prints the cells of runs that were tested on shifted sets, a line of JSON each."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        run = folder.parent.name if folder.name == UNAVERAGED else folder.name
        groups[run if alone else run.rpartition("-seed")[0]].append(folder)
    known_distances: dict[tuple, dict[str, float]] = {}
    for group, of_group in groups.items():
        home = read_home(of_group)
        recipe = RunFolder(of_group[0]).read_recipe()
        for name in recipe.test_sets[1:]:
            runs = read_runs(of_group, name)
            made = forecast(home, name, runs)
            signal = made.rests_on
            if any(made.declined):
                signal += DECLINING
            cell = {"runs": group, "signal": signal, "set": name, "truth": made.truth, "no drop": made.at_home}
            cell |= {"declined": made.declined, "forecast": [made.exact_match, made.f1]}
            if alone:
                confidences = [np.array([item.confidence for item in run]) for run in (home.runs[0], runs[0])]
                [scores_Q2] = scores(home.runs)
                for key, estimate in OTHERS.items():
                    cell[key] = [100 * estimate(scores_Q, *confidences) for scores_Q in scores_Q2.T]
            key = (recipe.data.model_dump_json(), name)
            if key not in known_distances:
                at_home, there = ([item.example for item in run] for run in (home.runs[0], runs[0]))
                known_distances[key] = distances(load_examples(recipe)[0], at_home, there)
            cell |= {"line": made.uncorrected, "error": made.error, "distances": known_distances[key]}
            rounded = json.loads(json.dumps(cell), parse_float=lambda digits: round(float(digits), 4))
            print(json.dumps(rounded), flush=True)


def read_cells(file: Path = CELLS) -> pd.DataFrame:
    """A row for each cell and metric: shares in [0, 1], but for `error` and the distances. Of runs that decline, what
    they decline rightly at home is left out of every score: in an error it cancels."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        cell = json.loads(line)
        for number, metric in enumerate(("EM", "F1")):
            row = {name: cell[name] for name in ("runs", "signal", "set")} | cell["distances"] | {"metric": metric}
            for name in ("truth", "no drop", "line", *OTHERS):
                if name in cell:
                    row[name] = (cell[name][number] - cell.get("declined", [0, 0])[number]) / 100
            rows.append(row | {"error": cell["error"][number]})
    return pd.DataFrame(rows)


# Leaving a set out


def fit(cells: pd.DataFrame, signal: str = "agreement") -> Correction:
    """c of a set is the mean over its cells of this signal and over EM and F1; all sets weigh the same."""
    cells = cells[cells["signal"] == signal]
    c = (ndtri(cells["line"]) - ndtri(cells["truth"])) / cells[CHOSEN]
    c = c.groupby(cells["set"]).mean()
    return Correction(c.mean(), c.std(), len(c), cells[CHOSEN].min(), cells[CHOSEN].max())


def corrected(cells: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """[N, 3]: value, low and high of the package's forecasts, with c from the other sets."""
    corrections = dict.fromkeys(cells["signal"], fit(others))
    corrections["agreement" + DECLINING] = fit(others, "agreement" + DECLINING)
    rows = zip(cells["signal"], ndtri(cells["line"]), cells[CHOSEN], cells["error"], strict=True)
    return np.array([corrections[signal].bounds(*row, LEVEL) for signal, *row in rows])


def as_others(cells: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """As `corrected`, with c of runs that do not decline."""
    return corrected(cells.assign(signal="agreement"), others)


def across(cells: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """As `as_others`, for a real set with c from generated ones only, and the other way round."""
    is_real = cells["set"].iloc[0] in REAL
    return as_others(cells, others[others["set"].isin(REAL) != is_real])


def by_least_squares(distance: str, cells: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """[N, 1]: values with c of any distance, by least squares over the other sets, the same c at all distances."""
    others = others[others["signal"] == "agreement"]
    missed = ndtri(others["line"]) - ndtri(others["truth"])
    means = pd.DataFrame({"missed": missed, "d": others[distance]}).groupby(others["set"]).mean()
    c = (means["missed"] * means["d"]).sum() / (means["d"] ** 2).sum()
    return ndtr(ndtri(cells["line"]) - c * cells[distance]).to_numpy()[:, None]


def by_the_best(cells: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """As `by_least_squares`, by the distance that does best where one of the other sets is left out."""
    others = others[~others["signal"].str.endswith(DECLINING)]
    best = min(DISTANCES, key=lambda name: summary(left_out(others, partial(by_least_squares, name)))["all"])
    return by_least_squares(best, cells, others)


def left_out(cells: pd.DataFrame, forecasts: Callable) -> pd.DataFrame:
    """The cells with "value", and "low" and "high" if `forecasts` gives them, each set forecast from the others."""
    parts = []
    for name in dict.fromkeys(cells["set"]):
        here = cells["set"] == name
        values = forecasts(cells[here], cells[~here])
        columns = ["value", "low", "high"][: values.shape[1]]
        parts.append(cells[here].assign(**dict(zip(columns, values.T, strict=True))))
    return pd.concat(parts)


def summary(made: pd.DataFrame) -> dict[str, float]:
    """Means over the sets of the mean absolute error, in points, and the share of the intervals that hold the truth."""
    missed = 100 * (made["value"] - made["truth"]).abs().groupby(made["set"]).mean()
    real = missed.index.isin(REAL)
    means = {"real text": missed[real].mean(), "generated": missed[~real].mean(), "all": missed.mean()}
    if "low" in made:
        held = (made["low"] <= made["truth"]) & (made["truth"] <= made["high"])
        means["held"] = 100 * held.groupby(made["set"]).mean().mean()
        means["width"] = 100 * (made["high"] - made["low"]).groupby(made["set"]).mean().mean()
    return means


def tables(cells: pd.DataFrame) -> str:
    ours = {"line less c d": corrected, "with c from the other kind of text": across}
    agreement = {"no drop": None, "line": None} | ours
    agreement |= {f"by {name}": partial(by_least_squares, name) for name in DISTANCES}
    agreement["by the best of these on the other sets"] = by_the_best
    confidence = {"no drop": None, "DoC": None, "ATC": None, "line": None} | ours
    declining = {"no drop": None, "line": None, "line less c d": corrected, "with c of runs that do not": as_others}
    parts = []
    for signal, rows in (
        ("agreement", agreement),
        ("confidence", confidence),
        ("agreement" + DECLINING, declining),
        ("confidence" + DECLINING, confidence),
    ):
        table = []
        for name, forecasts in rows.items():
            row = {signal: name}
            for metric in ("F1", "EM"):
                chosen = cells["metric"] == metric
                if forecasts is None:
                    of_signal = cells[chosen & (cells["signal"] == signal)]
                    made = of_signal.assign(value=of_signal[name])
                else:
                    made = left_out(cells[chosen], forecasts)
                    made = made[made["signal"] == signal]
                row |= {f"{metric}, {key}": value for key, value in summary(made).items()}
            table.append(row)
        parts.append(markdown(pd.DataFrame(table)))
    made = left_out(cells, corrected)
    made = made[made["metric"] == "F1"].groupby(["signal", "set"], sort=False)
    sets = 100 * made[["no drop", "truth", "line", "value", "low", "high"]].mean()
    parts.append(markdown(sets.reset_index()))
    parts.append(f"Fitted to all sets: {fit(cells)}; the package has {MEASURED}")
    parts.append(f"Runs that decline: {fit(cells, 'agreement' + DECLINING)}; the package has {MEASURED_DECLINING}")
    return "\n\n".join(parts)


def markdown(table: pd.DataFrame) -> str:
    rows = [list(table), ["---"] * len(table.columns)]
    for row in table.itertuples(index=False):
        rows.append(["" if value != value else value if isinstance(value, str) else f"{value:.1f}" for value in row])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measuring = parser.add_subparsers(dest="command").add_parser("measure")
    measuring.add_argument("runs", type=Path, nargs="+")
    measuring.add_argument("--alone", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.command == "measure":
            measure(arguments.runs, arguments.alone)
        else:
            print(tables(read_cells()))
    except InputError as fault:
        sys.exit(f"error: {fault}")


if __name__ == "__main__":
    main()
