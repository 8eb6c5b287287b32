"""The headline of a run's report: the share of its exact answers that the model loses on other domains.

Home is the source domain, the first data set that a run tests on. All intervals are of 95 percent over questions, for
this trained model: clusters of them (`data.splits.clusters`) are drawn again (`significance.resampled_means`). They
say nothing about other seeds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from swep_ds.analysis.answered import Answered
from swep_ds.analysis.significance import RESAMPLES, ROUNDING, interval, note_on_shared_ids, resampled_means
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.calibration import MIN_CLUSTERS
from swep_ds.evaluation.results import DataSetScore, Results

MEAN = "mean of the others"


class Interval(NamedTuple):
    """A value, and the ends of its interval; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


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


class Domains(NamedTuple):
    """`rows` hold the source domain first and the mean last; `notes` say where intervals are missing and why.

    headline, statement: the finding, in a sentence and in detail.
    which: the questions that count, as words; empty where all do.
    """

    rows: list[Domain]
    headline: str
    statement: str
    notes: list[str]
    which: str


def domains(results: Results, answered: Mapping[str, Sequence[Answered]]) -> Domains:
    """The domains of a run that tested on at least one.

    The finding is about the questions that have an answer: a model that declines all questions answers none.

    Args:
        answered: by data set; its intervals are missing where this is.
    """
    which = ""
    if any(score.no_answer_total for score in results.eval.values()):
        which = " with an answer"
    values: dict[str, np.ndarray] = {}  # see `_resampled`
    totals: dict[str, int] = {}
    ids: dict[str, list[str]] = {}
    notes, few = [], []
    for name, score in results.eval.items():
        items = answered.get(name, ())
        if note := _mismatch(name, score, items):
            notes.append(note)
            items = ()
        scores = (score.exact_match, score.f1)
        totals[name] = score.total
        if score.no_answer_total:
            scores = (score.has_answer_exact_match, score.has_answer_f1)
            totals[name] = score.has_answer_total
        if not totals[name]:
            continue
        ids[name] = [item.example.id for item in items]
        having = with_answer({name: items})[name]
        values[name] = _resampled(scores, _scores(having), having, name)
        if having and np.isnan(values[name]).any():
            few.append(name)
    source = next(iter(results.eval))
    if source not in values:
        headline = f"No question of {source}, the source domain, has an answer."
        return Domains([], headline, "So there is nothing to compare other domains with.", notes, which)
    if few:
        notes.append(f"{', '.join(few)}: no interval, since the questions are about fewer than {MIN_CLUSTERS} texts.")
    others = [name for name in values if name != source]
    if len(others) > 1:
        values[MEAN] = np.mean([values[name] for name in others], axis=0)
        if not np.isnan(values[MEAN]).any():
            notes += note_on_shared_ids({name: ids[name] for name in others})
    rows = []
    for name, of_set in values.items():
        gap = None
        if name != source:
            gap = _interval((of_set - values[source])[:, 1])
        rows.append(Domain(name, *map(_interval, of_set.T), totals.get(name), gap))
    return Domains(rows, *_finding(rows, values, which), notes, which)


def _mismatch(name: str, score: DataSetScore, items: Sequence[Answered]) -> str:
    """A note if the answers do not give the score; "" if they do, or cannot be read."""
    if not items:
        return ""
    means = _scores(items).mean(0)
    if len(items) == score.total and np.allclose(means, (score.exact_match, score.f1), atol=ROUNDING):
        return ""
    return (
        f"{name} has no interval: on today's data the answers score {means[0]:.2f} / {means[1]:.2f} over "
        f"{len(items)} questions, and {score.exact_match:.2f} / {score.f1:.2f} over {score.total} in results.json."
    )


def with_answer(answered: Mapping[str, Sequence[Answered]]) -> dict[str, list[Answered]]:
    """The questions that have an answer, by data set."""
    return {name: [item for item in items if item.example.answers] for name, items in answered.items()}


def changes(answered: Mapping[str, Sequence[Answered]], names: Sequence[str]) -> list[Domain]:
    """Against the other run, on the questions that both answered: each data set, and the mean over all but the first.

    Args:
        names: the data sets of the run; one that the other run did not answer in full is left out, and the mean too.
    """
    rows, shifted = [], []
    for name in names:
        items = [item for item in answered.get(name, ()) if item.other is not None]
        if not items or len(items) < len(answered[name]):
            continue
        differences = _scores(items) - np.array([(100.0 * item.other_right, item.other_f1) for item in items])
        values = _resampled(differences.mean(0), differences, items, name)
        gained = sum(item.right and not item.other_right for item in items)
        lost = sum(item.other_right and not item.right for item in items)
        rows.append(Domain(name, *map(_interval, values.T), len(items), gained=gained, lost=lost))
        if name != names[0]:
            shifted.append(values)
    if len(shifted) == len(names) - 1 > 1:
        others = rows[1:]
        values = np.mean(shifted, axis=0)
        gained = sum(row.gained for row in others)
        lost = sum(row.lost for row in others)
        rows.append(Domain(MEAN, *map(_interval, values.T), gained=gained, lost=lost))
    return rows


def _scores(items: Sequence[Answered]) -> np.ndarray:
    """[Q, 2]: EM and F1 in percent."""
    return np.array([(100.0 * item.right, item.f1) for item in items])


def _resampled(means: Sequence[float], values: np.ndarray, items: Sequence[Answered], name: str) -> np.ndarray:
    """[1 + RESAMPLES, 2]: the means of EM and F1, then those of `values` [Q, 2] over resampled questions, or NaN if
    too few texts can be drawn."""
    samples = np.full((RESAMPLES, 2), np.nan)
    if items:
        clusters_Q = clusters([item.example for item in items])
        if effective_clusters(clusters_Q) >= MIN_CLUSTERS:
            samples = resampled_means(values, clusters_Q, name)
    return np.concatenate([[means], samples])


def _interval(values: np.ndarray) -> Interval:
    """Of a measured value and those of resampled questions: [1 + RESAMPLES]."""
    value, low, high = float(values[0]), *interval(values[1:]).tolist()
    return Interval(value) if np.isnan(low) else Interval(value, low, high)


def _finding(rows: Sequence[Domain], values: Mapping[str, np.ndarray], which: str) -> tuple[str, str]:
    """(headline, statement). `which`: the questions that count, as words."""
    source, *others = rows
    at_home = f"{source.exact_match.value:.1f} % of the questions{which} of {source.name}"
    if not others:
        return f"The model answers {at_home} exactly.", "It was tested on no other domain."
    away = others[-1]  # the mean, or the only other domain
    shifted = [row for row in others if row.name != MEAN]
    where = shifted[0].name
    if len(shifted) > 1:
        where = f"{len(shifted)} other domains on average"
    detail = (
        f"It answers {at_home}, its source domain, exactly, and {away.exact_match.value:.1f} % of those of {where}."
    )
    best = max(shifted, key=lambda row: row.exact_match.value)
    least = min(shifted, key=lambda row: row.exact_match.value)
    if best.exact_match.value > least.exact_match.value:
        detail += (
            f" It does best on {best.name} ({best.exact_match.value:.1f} %) and worst on {least.name} "
            f"({least.exact_match.value:.1f} %)."
        )
    if not source.exact_match.value:
        return f"The model answers no question{which} of {source.name}, its source domain, exactly.", detail
    at_home_R = values[source.name][:, 0]
    at_home_R = np.where(at_home_R == 0, np.nan, at_home_R)  # without an answer at home there is nothing to lose
    lost = _interval(100 * (1 - values[away.name][:, 0] / at_home_R))
    if lost.low is None:
        return "These results do not say whether the model loses exact answers on other domains.", detail
    detail += f" The 95 % interval of the loss, over questions, is {lost.low:.0f} to {lost.high:.0f} %."
    headline = "These questions do not show that the model loses exact answers on other domains."
    if lost.low > 0:
        headline = f"On other domains the model loses {lost.value:.0f} % of the exact answers that it gives at home."
    elif lost.high < 0:
        headline = f"On other domains the model gives {-lost.value:.0f} % more exact answers than at home."
    return headline, detail
