"""The headline of a run's report: the share of its exact answers that the model loses on other domains.

Home is the source domain, the first data set that a run tests on. All intervals are of 95 percent over questions, for
this trained model: clusters of them (`data.splits.clusters`) are drawn again (`significance.resampled_means`). They
say nothing about other seeds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from swep_ds.analysis.answered import Answered
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


class _Measured(NamedTuple):
    """EM and F1 [2], and the same over resampled questions [RESAMPLES, 2], or None."""

    scores: np.ndarray
    samples: np.ndarray | None

    @classmethod
    def mean_of(cls, sets: Sequence["_Measured"]) -> "_Measured":
        samples = [measured.samples for measured in sets]
        known = all(each is not None for each in samples)
        return cls(np.mean([each.scores for each in sets], axis=0), np.mean(samples, axis=0) if known else None)

    def less(self, other: "_Measured") -> "_Measured":
        known = self.samples is not None and other.samples is not None
        return _Measured(self.scores - other.scores, self.samples - other.samples if known else None)

    def intervals(self) -> list[Interval]:
        """Those of EM and F1."""
        if self.samples is None:
            return [Interval(float(value)) for value in self.scores]
        low, high = interval(self.samples).tolist()
        return [Interval(float(value), *ends) for value, *ends in zip(self.scores, low, high, strict=True)]


def domains(results: Results, answered: Mapping[str, Sequence[Answered]]) -> Domains:
    """The domains of a run that tested on at least one.

    The finding is about the questions that have an answer: a model that declines all questions answers none.

    Args:
        answered: by data set; its intervals are missing where this is.
    """
    which = " with an answer" if any(score.no_answer_total for score in results.eval.values()) else ""
    measured: dict[str, _Measured] = {}
    totals, notes, few, ids = {}, [], [], {}
    for name, score in results.eval.items():
        items = answered.get(name, ())
        if items:
            means = _scores(items).mean(0)
            if len(items) != score.total or not np.allclose(means, (score.exact_match, score.f1), atol=ROUNDING):
                notes.append(
                    f"{name} has no interval: on today's data the answers score {means[0]:.2f} / {means[1]:.2f} over "
                    f"{len(items)} questions, and {score.exact_match:.2f} / {score.f1:.2f} over {score.total} in "
                    "results.json."
                )
                items = ()
        if not score.no_answer_total:
            totals[name], scores = score.total, (score.exact_match, score.f1)
        elif score.has_answer_total:
            totals[name], scores = score.has_answer_total, (score.has_answer_exact_match, score.has_answer_f1)
        else:
            continue
        ids[name] = [item.example.id for item in items]
        having = with_answer({name: items})[name]
        samples = _resampled(_scores(having), having, name) if having else None
        measured[name] = _Measured(np.array(scores), samples)
        if having and samples is None:
            few.append(name)
    source = next(iter(results.eval))
    if source not in measured:
        headline = f"No question of {source}, the source domain, has an answer."
        return Domains([], headline, "So there is nothing to compare other domains with.", notes, which)
    if few:
        notes.append(f"{', '.join(few)}: no interval, since the questions are about fewer than {MIN_CLUSTERS} texts.")
    others = [name for name in measured if name != source]
    if len(others) > 1:
        measured[MEAN] = _Measured.mean_of([measured[name] for name in others])
        if measured[MEAN].samples is not None:
            notes += note_on_shared_ids({name: ids[name] for name in others})
    rows = []
    for name, value in measured.items():
        gap = None if name == source else value.less(measured[source]).intervals()[1]
        rows.append(Domain(name, *value.intervals(), totals.get(name), gap))
    return Domains(rows, *_finding(rows, measured, which), notes, which)


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
        values = _scores(items) - np.array([(100.0 * item.other_right, item.other_f1) for item in items])
        measured = _Measured(values.mean(0), _resampled(values, items, name))
        gained = sum(item.right and not item.other_right for item in items)
        lost = sum(item.other_right and not item.right for item in items)
        rows.append(Domain(name, *measured.intervals(), len(items), gained=gained, lost=lost))
        if name != names[0]:
            shifted.append(measured)
    if len(shifted) == len(names) - 1 > 1:
        others = [row for row in rows if row.name != names[0]]
        gained, lost = sum(row.gained for row in others), sum(row.lost for row in others)
        rows.append(Domain(MEAN, *_Measured.mean_of(shifted).intervals(), gained=gained, lost=lost))
    return rows


def _scores(items: Sequence[Answered]) -> np.ndarray:
    """[Q, 2]: EM and F1 in percent."""
    return np.array([(100.0 * item.right, item.f1) for item in items])


def _resampled(values: np.ndarray, items: Sequence[Answered], name: str) -> np.ndarray | None:
    """Means of `values` [Q, 2] over resampled questions, [RESAMPLES, 2]; None if too few texts can be drawn."""
    clusters_N = clusters([item.example for item in items])
    return resampled_means(values, clusters_N, name) if effective_clusters(clusters_N) >= MIN_CLUSTERS else None


def _finding(rows: Sequence[Domain], measured: Mapping[str, _Measured], which: str) -> tuple[str, str]:
    """(headline, statement). `which`: the questions that count, as words."""
    source, *others = rows
    at_home = f"{source.exact_match.value:.1f} % of the questions{which} of {source.name}"
    if not others:
        return f"The model answers {at_home} exactly.", "It was tested on no other domain."
    away = others[-1]  # the mean, or the only other domain
    shifted = [row for row in others if row.name != MEAN]
    where = shifted[0].name
    if len(shifted) > 1:
        count = WORDS[len(shifted)] if len(shifted) < len(WORDS) else str(len(shifted))
        where = f"{count} other domains on average"
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
    lost = _loss(measured[source.name], measured[away.name])
    if lost.low is None:
        return "These results do not say whether the model loses exact answers on other domains.", detail
    detail += f" The 95 % interval of the loss, over questions, is {lost.low:.0f} to {lost.high:.0f} %."
    if lost.low > 0:
        headline = f"On other domains the model loses {lost.value:.0f} % of the exact answers that it gives at home."
    elif lost.high < 0:
        headline = f"On other domains the model gives {-lost.value:.0f} % more exact answers than at home."
    else:
        headline = "These questions do not show that the model loses exact answers on other domains."
    return headline, detail


def _loss(source: _Measured, away: _Measured) -> Interval:
    """1 - EM away / EM at home, in percent."""
    lost = 100 * (1 - away.scores[0] / source.scores[0])
    if source.samples is None or away.samples is None or not source.samples[:, 0].all():
        return Interval(lost)
    ratios = 100 * (1 - away.samples[:, :1] / source.samples[:, :1])
    return Interval(lost, *interval(ratios)[:, 0].tolist())
