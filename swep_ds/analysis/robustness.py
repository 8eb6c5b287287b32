"""Effective robustness: how far a model's F1 on shifted data lies above the line that its in-domain F1 predicts.

Models that do better in domain do better elsewhere, almost linearly in F1 (Miller et al., ICML 2020). Points above that
line are what a method for robustness should add (Taori et al., NeurIPS 2020). The line is linear in F1, in percent, on
both axes. It is fitted to the base row's runs if there are enough with different F1 in domain, or read from a file.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from swep_ds.analysis.paper import data_set_name
from swep_ds.common.settings import Section, load
from swep_ds.evaluation.results import Scores

LINES = Path(__file__).parent / "lines"
ABOVE = "above_line"  # a key of a set's scores, like exact_match and f1
MIN_RUNS, MIN_SPREAD = 8, 10.0  # a fitted line takes as many runs, over as many points of F1 in domain


class Fit(Section):
    """F1 on a shifted set = slope x F1 in domain + intercept, in percent."""

    slope: float
    intercept: float

    def predict(self, in_domain):
        return self.slope * in_domain + self.intercept


class Line(Section):
    """The line of each shifted set. Data sets match by any name that they have in the paper's tables."""

    source: str  # what it was fitted to
    in_domain: str
    fitted_over: tuple[float, float]  # the lowest and the highest F1 in domain, in percent
    shifted: dict[str, Fit]

    def of(self, data_set: str) -> Fit | None:
        return self.shifted.get(_match(data_set, self.shifted))

    def in_domain_of(self, columns: Collection[str]) -> str | None:
        """The column with the F1 that predicts the others."""
        return _match(self.in_domain, columns)


def _match(name: str, names: Collection[str]) -> str | None:
    """The name itself, or else the only one that the paper's tables give to the same data set."""
    if name in names:
        return name
    alike = [other for other in names if data_set_name(other) == data_set_name(name)]
    return alike[0] if len(alike) == 1 else None


def published(name_or_path: str) -> Line:
    """A shipped line (`lines/`), or one of a YAML file. Raises InputError: no such file, or wrong fields."""
    return load(Line, name_or_path, LINES, "--line")


def fitted(runs: Sequence[Scores], row: str) -> tuple[Line | None, str]:
    """The line through the runs of the row of this name, or None and why it is missing, if any set is shifted. `runs`:
    by run the scores of its data sets, the source domain first."""
    tested = {tuple((name, score["total"]) for name, score in scores.items()) for scores in runs}
    if all(len(sets) < 2 for sets in tested):
        return None, ""
    if len(tested) > 1:
        return None, f"runs of {row} were tested on different data"
    in_domain, *shifted = runs[0]
    x = np.array([scores[in_domain]["f1"] for scores in runs])
    if len(x) < MIN_RUNS or np.ptp(x) < MIN_SPREAD:
        wanted = f"a line takes {MIN_RUNS}, with F1 over {MIN_SPREAD:g} points in domain"
        return None, f"{len(x)} run(s) of {row}, but {wanted}"
    fits = {}
    for name in shifted:
        slope, intercept = np.polyfit(x, [scores[name]["f1"] for scores in runs], 1).tolist()
        fits[name] = Fit(slope=slope, intercept=intercept)
    source = f"least squares over the {len(x)} runs of {row}"
    return Line(source=source, in_domain=in_domain, fitted_over=(x.min(), x.max()), shifted=fits), ""


def add_points(scores: Scores, line: Line) -> Scores:
    """The scores of a run, with `ABOVE` in points added to those of each shifted set that has a line."""
    in_domain = line.in_domain_of(scores)
    result = dict(scores)
    for name, score in scores.items():
        fit = line.of(name)
        if in_domain and name != in_domain and fit:
            result[name] = score | {ABOVE: score["f1"] - fit.predict(scores[in_domain]["f1"])}
    return result


def in_domain_f1(line: Line, runs: Sequence[Scores]) -> list[float]:
    """The F1 from which the line predicts, of each run that has it; none if there is nothing to predict."""
    known = [(scores, column) for scores in runs if (column := line.in_domain_of(scores))]
    if not any(name != column and line.of(name) for scores, column in known for name in scores):
        return []
    return [scores[column]["f1"] for scores, column in known]
