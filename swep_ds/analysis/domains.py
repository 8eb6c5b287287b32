"""The headline of a run's report: the share of its exact answers that the model loses on other domains.

Home is the source domain, the first data set that a run tests on. All intervals are of 95 percent over questions, for
this trained model: clusters of them (`data.splits.clusters`) are drawn again (`significance.resampled_means`). They
say nothing about other seeds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from swep_ds.analysis.answered import Answered
from swep_ds.analysis.significance import RESAMPLES, ROUNDING, interval, note_on_shared_ids, resampled_means
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.calibration import MIN_CLUSTERS
from swep_ds.evaluation.results import METRICS, Results

MEAN = "mean of the others"


class Interval(NamedTuple):
    """A value, and the ends of its interval; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: np.ndarray) -> "Interval":
        """`values`: [1 + RESAMPLES], see `resampled`."""
        value = float(values[0])
        if np.isnan(values).any():
            return cls(value)
        return cls(value, *interval(values[1:]).tolist())


class Domain(NamedTuple):
    """A data set, or the mean over all but the source domain: scores in percent, or differences to another run.

    Where a model may decline, scores are of the questions that have an answer.
    """

    name: str
    exact_match: Interval
    f1: Interval
    total: int | None = None  # questions; None for the mean
    gap: Interval | None = None  # F1 less the source domain's, in points; None for the source domain
    gained: int = 0  # questions that only this run answers exactly
    lost: int = 0  # those that only the other run does


def domains(results: Results, answered: Mapping[str, Sequence[Answered]]) -> dict[str, Any]:
    """The domains of a run that tested on at least one. Intervals are missing where its answers are.

    The finding is about the questions that have an answer: a model that declines all questions answers none.

    "rows": a `Domain` each, the source domain first and the mean last; empty if no question of the source domain has an
    answer. "loss": of exact answers on other domains, in percent of those at home; None without another domain.
    "notes": where intervals are missing and why. "which": the questions that count, as words; empty where all do.
    """
    which = " with an answer" if any(score.get("no_answer_total") for score in results.scores.values()) else ""
    values: dict[str, np.ndarray] = {}  # see `resampled`
    totals: dict[str, int] = {}
    few: list[str] = []  # data sets about too few texts
    notes: list[str] = []
    for name, score in results.scores.items():
        items = answered.get(name, ())
        if items:
            same = np.allclose(percentages(items).mean(0), [score[metric] for metric in METRICS], atol=ROUNDING)
            if not same or len(items) != score["total"]:
                notes.append(f"{name} has no interval: on today's data its answers do not give the scores of the run.")
                items = ()
        part = ""
        if score.get("no_answer_total"):
            part = "has_answer_"
        if total := score.get(f"{part}total"):
            scores = [score[part + metric] for metric in METRICS]
            totals[name] = total
            items = [item for item in items if item.example.answers]
            values[name] = resampled(scores, percentages(items), items, name)
            if items and np.isnan(values[name]).any():
                few.append(name)
    source = next(iter(results.scores))
    if source not in values:
        notes.append(f"No question of {source}, the source domain, has an answer.")
        return {"rows": [], "loss": None, "notes": notes, "which": which}
    if few:
        notes.append(f"{', '.join(few)}: no interval, since the questions are about fewer than {MIN_CLUSTERS} texts.")
    notes += results.withheld
    others = [name for name in values if name != source]
    if len(others) > 1:
        values[MEAN] = np.mean([values[name] for name in others], axis=0)
        if not np.isnan(values[MEAN]).any():
            notes += note_on_shared_ids({name: [item.example.id for item in answered[name]] for name in others})
    rows = []
    for name, of_set in values.items():
        gap = Interval.of((of_set - values[source])[:, 1]) if name != source else None
        rows.append(Domain(name, *map(Interval.of, of_set.T), totals.get(name), gap))
    loss = None
    if others:
        at_home_R = values[source][:, 0]
        at_home_R = np.where(at_home_R == 0, np.nan, at_home_R)  # without an answer at home there is nothing to lose
        loss = Interval.of(100 * (1 - values[rows[-1].name][:, 0] / at_home_R))
    return {"rows": rows, "loss": loss, "notes": notes, "which": which}


def changes(answered: Mapping[str, Sequence[Answered]], names: Sequence[str]) -> list[Domain]:
    """Against the other run, on the same questions: each of the run's data sets `names`, and the mean over all but the
    first. A set that the other run did not answer in full is left out, and then the mean is, too."""
    values = {}
    counts = {}  # questions [gained, lost]
    for name in names:
        items = answered.get(name, ())
        if items and all(item.other is not None for item in items):
            differences = percentages(items) - percentages([item.other for item in items])
            values[name] = resampled(differences.mean(0), differences, items, name)
            counts[name] = np.sum([differences[:, 0] > 0, differences[:, 0] < 0], axis=1)
    if len(values) == len(names) > 2:
        values[MEAN] = np.mean([values[name] for name in names[1:]], axis=0)
        counts[MEAN] = np.sum([counts[name] for name in names[1:]], axis=0)
    rows = []
    for name, of_set in values.items():
        gained, lost = counts[name].tolist()
        total = None if name == MEAN else len(answered[name])
        rows.append(Domain(name, *map(Interval.of, of_set.T), total, gained=gained, lost=lost))
    return rows


def percentages(items: Sequence[Answered]) -> np.ndarray:
    """[Q, 2]: EM and F1 in percent."""
    return np.array([(100.0 * item.right, item.f1) for item in items])


def resampled(means: Sequence[float], values: np.ndarray, items: Sequence[Answered], name: str) -> np.ndarray:
    """[1 + RESAMPLES, k]: the means [k], then those of `values` [Q, k] over resampled questions, or NaN if too few
    texts can be drawn."""
    samples = np.full((RESAMPLES, len(means)), np.nan)
    if items:
        clusters_Q = clusters([item.example for item in items])
        if effective_clusters(clusters_Q) >= MIN_CLUSTERS:
            [samples] = resampled_means([values], clusters_Q, name)
    return np.concatenate([[means], samples])
