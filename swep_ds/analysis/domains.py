"""The headline of a run's report: the share of its exact answers that the model loses on other domains.

Home is the source domain, the first data set that a run tests on. All intervals are of 95 percent over questions, for
this trained model: clusters of them (`data.splits.clusters`) are drawn again (`significance.resampled_means`). They
say nothing about other seeds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from swep_ds.analysis.answers import Answered
from swep_ds.analysis.questions import ROUNDING, note_on_shared_ids
from swep_ds.analysis.significance import interval, resampled_means
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.calibration import MIN_CLUSTERS
from swep_ds.evaluation.results import Results

MEAN = "mean of the others"
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class Interval(NamedTuple):
    """A value, and the ends of its interval; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_clear(self) -> bool:
        """Whether the interval does not hold 0."""
        return self.low is not None and (self.low > 0 or self.high < 0)


class Domain(NamedTuple):
    """A data set's scores in percent, or their mean over all but the source domain. Where a model may decline, both are
    of the questions that have an answer.

    gap: F1 less the source domain's, in points; None for the source domain.
    """

    name: str
    exact_match: Interval
    f1: Interval
    total: int | None  # questions; None for the mean
    gap: Interval | None


class DomainChange(NamedTuple):
    """A data set, or the mean over all but the source domain, against another run: differences in points.

    gained, lost: questions that only this run, or only the other one, answers exactly.
    """

    name: str
    exact_match: Interval
    f1: Interval
    gained: int
    lost: int


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
    matching, notes = {}, []  # the data sets whose answers score what results.json says
    for name, score in results.eval.items():
        items = answered.get(name, ())
        means = _scores(items).mean(0) if len(items) else np.full(2, np.nan)
        if len(items) == score.total and np.allclose(means, (score.exact_match, score.f1), atol=ROUNDING):
            matching[name] = items
        elif len(items):
            notes.append(
                f"{name} has no interval: on today's data the answers score {means[0]:.2f} / {means[1]:.2f} over "
                f"{len(items)} questions, and {score.exact_match:.2f} / {score.f1:.2f} over {score.total} in "
                "results.json."
            )
    which = " with an answer" if any(score.no_answer_total for score in results.eval.values()) else ""
    totals, scores = {}, {}
    for name, score in results.eval.items():
        if not score.no_answer_total:
            totals[name], scores[name] = score.total, (score.exact_match, score.f1)
        elif score.has_answer_total:
            totals[name], scores[name] = score.has_answer_total, (score.has_answer_exact_match, score.has_answer_f1)
    source = next(iter(results.eval))
    if source not in scores:
        headline = f"No question of {source}, the source domain, has an answer."
        return Domains([], headline, "So there is nothing to compare other domains with.", notes, which)
    measured = _Measured.of(scores, with_answer(matching))
    if few := [name for name in matching if name in scores and name not in measured.samples]:
        notes.append(f"{', '.join(few)}: no interval, since the questions are about fewer than {MIN_CLUSTERS} texts.")
    if MEAN in measured.samples:
        _, *others = scores
        notes += note_on_shared_ids({name: [item.example.id for item in matching[name]] for name in others})
    rows = [_domain(name, measured, source, totals.get(name)) for name in measured.scores]
    return Domains(rows, *_finding(rows, measured, which), notes, which)


def with_answer(answered: Mapping[str, Sequence[Answered]]) -> dict[str, list[Answered]]:
    """The questions that have an answer, by data set."""
    return {name: [item for item in items if item.example.answers] for name, items in answered.items()}


class _Measured(NamedTuple):
    """EM and F1 by data set. If there are two or more shifted sets, the key `MEAN` has their mean.

    scores: in percent, [2].
    samples: the same over resampled questions, [RESAMPLES, 2]; only for sets whose answers are known.
    """

    scores: dict[str, np.ndarray]
    samples: dict[str, np.ndarray]

    @classmethod
    def of(cls, scores: Mapping[str, tuple[float, float]], answered: Mapping[str, Sequence[Answered]]) -> "_Measured":
        scores = {name: np.array(pair) for name, pair in scores.items()}
        drawn = {name: _resampled(_scores(answered[name]), answered[name], name) for name in scores if name in answered}
        samples = {name: values for name, values in drawn.items() if values is not None}
        _, *others = scores
        if len(others) > 1:
            scores[MEAN] = np.mean([scores[name] for name in others], axis=0)
            if all(name in samples for name in others):
                samples[MEAN] = np.mean([samples[name] for name in others], axis=0)
        return cls(scores, samples)


def changes(answered: Mapping[str, Sequence[Answered]], names: Sequence[str]) -> list[DomainChange]:
    """Against the other run, on the questions that both answered: each data set, and the mean over all but the first.

    Args:
        names: the data sets of the run; one that the other run did not answer in full is left out, and the mean too.
    """
    rows, shifted = [], []
    for number, name in enumerate(names):
        items = [item for item in answered.get(name, ()) if item.other is not None]
        if not items or len(items) < len(answered[name]):
            continue
        values = _scores(items) - np.array([(100.0 * item.other_right, item.other_f1) for item in items])
        samples = _resampled(values, items, name)
        gained, lost = (
            sum(item.right is right and item.other_right is not right for item in items) for right in (True, False)
        )
        rows.append(DomainChange(name, *_intervals(values.mean(0), samples), gained, lost))
        if number:
            shifted.append((values.mean(0), samples))
    if len(shifted) == len(names) - 1 > 1:
        means = np.mean([means for means, _ in shifted], axis=0)
        every = all(samples is not None for _, samples in shifted)
        samples = np.mean([samples for _, samples in shifted], axis=0) if every else None
        counts = [sum(counts) for counts in zip(*(row[3:] for row in rows if row.name != names[0]), strict=True)]
        rows.append(DomainChange(MEAN, *_intervals(means, samples), *counts))
    return rows


def _scores(items: Sequence[Answered]) -> np.ndarray:
    """[Q, 2]: EM and F1 in percent."""
    return np.array([(100.0 * item.right, item.f1) for item in items])


def _resampled(values: np.ndarray, items: Sequence[Answered], name: str) -> np.ndarray | None:
    """Means of `values` [Q, 2] over resampled questions, [RESAMPLES, 2]; None if too few texts can be drawn."""
    clusters_N = clusters([item.example for item in items])
    return resampled_means(values, clusters_N, name) if effective_clusters(clusters_N) >= MIN_CLUSTERS else None


def _intervals(values: np.ndarray, samples: np.ndarray | None) -> list[Interval]:
    if samples is None:
        return [Interval(float(value)) for value in values]
    ends = interval(samples).T.tolist()
    return [Interval(float(value), *pair) for value, pair in zip(values, ends, strict=True)]


def _domain(name: str, measured: _Measured, source: str, total: int | None) -> Domain:
    scores, samples = measured
    gap = None
    if name != source:
        both = name in samples and source in samples
        [_, gap] = _intervals(scores[name] - scores[source], samples[name] - samples[source] if both else None)
    return Domain(name, *_intervals(scores[name], samples.get(name)), total, gap)


def _finding(rows: Sequence[Domain], measured: _Measured, which: str) -> tuple[str, str]:
    """(headline, statement). `which`: the questions that count, as words."""
    source, *others = rows
    at_home = f"{source.exact_match.value:.1f} % of the questions{which} of {source.name}"
    if not others:
        return f"The model answers {at_home} exactly.", "It was tested on no other domain."
    away = others[-1]  # the mean, or the only other domain
    shifted = [row for row in others if row.total is not None]
    plural = len(shifted) > 1
    count = WORDS[len(shifted)] if len(shifted) < len(WORDS) else str(len(shifted))
    where = f"{count} other domains on average" if plural else shifted[0].name
    detail = (
        f"It answers {at_home}, its source domain, exactly, and {away.exact_match.value:.1f} % of those of {where}."
    )
    best, least = (choose(shifted, key=lambda row: row.exact_match.value) for choose in (max, min))
    if best.exact_match.value > least.exact_match.value:
        detail += (
            f" It does best on {best.name} ({best.exact_match.value:.1f} %) and worst on {least.name} "
            f"({least.exact_match.value:.1f} %)."
        )
    if not source.exact_match.value:
        return f"The model answers no question{which} of {source.name}, its source domain, exactly.", detail
    lost = _loss(measured, source.name, away.name)
    if lost.low is None:
        return "These results do not say whether the model loses exact answers on other domains.", detail
    detail += f" The 95 % interval of the loss, over questions, is {lost.low:.0f} to {lost.high:.0f} %."
    if not lost.is_clear:
        return "These questions do not show that the model loses exact answers on other domains.", detail
    if lost.value < 0:
        return f"On other domains the model gives {-lost.value:.0f} % more exact answers than at home.", detail
    return f"On other domains the model loses {lost.value:.0f} % of the exact answers that it gives at home.", detail


def _loss(measured: _Measured, source: str, away: str) -> Interval:
    """1 - EM away / EM at home, in percent."""
    scores, samples = measured
    lost = 100 * (1 - scores[away][0] / scores[source][0])
    if source not in samples or away not in samples or not samples[source][:, 0].all():
        return Interval(lost)
    ratios = 100 * (1 - samples[away][:, :1] / samples[source][:, :1])
    return Interval(lost, *interval(ratios)[:, 0].tolist())
