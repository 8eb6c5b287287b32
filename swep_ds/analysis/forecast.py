"""What will a model do on text without labels? A forecast of its EM and F1 there, and how sure that is.

On the probit scale z, the inverse of the normal distribution function, scores move from home, where answers are known,
as a signal does that needs no answers:

    z(score there) = z(score at home) + z(signal there) - z(signal at home) - c d,     d = ln(u there / u at home)

The signal is the agreement of the runs' answers (Baek et al., NeurIPS 2022, "Agreement-on-the-Line"; Saxena et al.,
2404.01542) or, of one run, its mean confidence (difference of confidences: Guillory et al., ICCV 2021). On its own it
is too optimistic, and the more so the farther the text is, as runs agree on wrong answers. c d corrects that: u is the
share of the contexts' words that the training text lacks; c was measured (studies/forecast). Of runs
that decline this is about the answers given, over all questions, and what is declined rightly counts as at home.

The interval, of the mean over these runs, takes c as varying from set to set and questions as a sample. It does not
know how answers would be labelled: where they are shorter than at home, scores are lower.

Shapes: R runs, Q questions; 2 are the metrics of `METRICS`, EM and F1. Scores and signals are shares in [0, 1].
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from swep_ds.analysis.answered import Answered, read_answered
from swep_ds.analysis.domains import Interval, percentages, resampled
from swep_ds.analysis.labelled import Estimate
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.evaluation.calibration import LEVEL, MIN_CLUSTERS
from swep_ds.evaluation.results import METRICS
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.folder import RunFolder
from swep_ds.pipeline.inputs import check_unchanged

WORD = re.compile(r"\w+")
Scores = tuple[float, float]  # EM and F1 in percent


class Correction(NamedTuple):
    """c, over shifted sets whose answers are known."""

    mean: float  # in probits for each factor e of the share of unknown words
    spread: float  # standard deviation from set to set
    sets: int
    nearest: float  # the least d among them; an interval is not narrower for nearer text
    farthest: float

    def bounds(self, line: np.ndarray, distance: float, error: np.ndarray, level: float = LEVEL) -> np.ndarray:
        """[3, ...]: value, low and high as shares, from z of the `line` [...] and its standard error by sampling. Text
        with no more unknown words than home is not corrected. The next set's c is around the mean as Student's t."""
        tail = 0.5 + level / 200
        of_c = stdtrit(self.sets - 1, tail) * self.spread * np.sqrt(1 + 1 / self.sets)
        half = np.hypot(of_c * max(distance, self.nearest), ndtri(tail) * error)
        value = line - self.mean * max(distance, 0.0)
        return ndtr([value, value - half, value + half])


MEASURED = Correction(mean=0.25, spread=0.092, sets=7, nearest=0.42, farthest=1.44)
MEASURED_DECLINING = Correction(mean=0.07, spread=0.076, sets=4, nearest=1.24, farthest=1.44)  # for their agreement


class Home(NamedTuple):
    """What R runs of one training set answer on their source domain."""

    name: str
    runs: Sequence[Sequence[Answered]]  # R times the same Q questions
    known: Collection[str]  # words that they were trained on
    scorer: Scorer


@dataclass(frozen=True)
class Forecast:
    """The mean over the runs on one data set. Intervals, of `LEVEL` percent, are missing where it has too few texts."""

    exact_match: Interval  # in percent, as all scores and signals here
    f1: Interval
    at_home: Scores
    declined: Scores  # the part of them that questions declined rightly make
    rests_on: str  # "agreement" or "confidence"
    signal_at_home: Scores
    signal_there: Scores
    unknown_words: tuple[float, float]  # percent of the contexts' words at home and there
    distance: float  # d
    uncorrected: Scores  # the forecasts without c d
    error: tuple[float, float]  # draws of their z
    by_question: np.ndarray  # [Q, 2] the signal there
    truth: Scores | None  # if the questions have answers, which the forecast does not use
    remarks: list[str]
    labelled: int = 0  # questions whose labels correct the forecast: `with_labels` has it then, by metric
    with_labels: dict[str, Estimate] = field(default_factory=dict)


def signal(runs: Sequence[Sequence[Answered]], scorer: Scorer) -> np.ndarray:
    """[Q, 2]: how sure the runs are of each answer; 0 where they decline. Raises InputError: there is one run, without
    confidences."""
    if len(runs) > 1:
        return agreement([[item.predicted for item in run] for run in runs], scorer)
    if runs[0][0].confidence is None:
        raise InputError("one run, and it wrote no confidences: name a second run with another seed")
    return np.array([[item.confidence if item.predicted else 0.0] * len(METRICS) for item in runs[0]])


def agreement(runs: Sequence[Sequence[str]], scorer: Scorer) -> np.ndarray:
    """[Q, 2]: EM and F1 between two runs' answers, the mean over all pairs of R >= 2 runs; 0 where one declines."""
    of_pairs = []
    for pair in combinations(runs, 2):
        same_Q = [scorer.exact_match(answer, [other]) if answer else 0.0 for answer, other in zip(*pair, strict=True)]
        overlap_Q = [scorer.f1(answer, [other]) for answer, other in zip(*pair, strict=True)]
        of_pairs.append(np.stack([same_Q, np.maximum(same_Q, overlap_Q)], axis=1))  # SQuAD's F1 of "the" and "a" is 0
    return np.mean(of_pairs, axis=0)


def line(score: np.ndarray, signal: np.ndarray, signal_there: np.ndarray, questions: int) -> np.ndarray:
    """z(score) + z(signal there) - z(signal) of means; 0 and 1 count as half of one of the `questions`."""
    least = 0.5 / questions
    z_score, z_signal, z_there = ndtri(np.clip([score, signal, signal_there], least, 1 - least))
    return z_score + z_there - z_signal


def words(examples: Iterable[Example]) -> set[str]:
    """The different words of questions and contexts, in lower case."""
    texts = {text for example in examples for text in (example.question, example.context)}
    return {word for text in texts for word in WORD.findall(text.lower())}


def unknown_share(examples: Iterable[Example], known: Collection[str]) -> float:
    """The share of the words of all different contexts that are not known. Half a word is added: it is never 0."""
    contexts = {example.context for example in examples}
    unknown = [word not in known for context in contexts for word in WORD.findall(context.lower())]
    return (sum(unknown) + 0.5) / (len(unknown) + 1)


def scores(runs: Sequence[Sequence[Answered]]) -> np.ndarray:
    """[R, Q, 2]: EM and F1."""
    return np.array(list(map(percentages, runs))) / 100


def forecast(home: Home, name: str, runs: Sequence[Sequence[Answered]]) -> Forecast:
    """What the runs of `home` score on the data set `name`, from their answers to the same Q questions. If these have
    accepted answers, they serve for `truth` only."""
    scores_RQ2 = scores(home.runs)
    given_RQ1 = np.array([[[item.predicted != ""] for item in run] for run in home.runs])
    declined_2 = (scores_RQ2 * ~given_RQ1).mean((0, 1))  # what questions that are declined rightly add
    rests_on = "agreement" if len(runs) > 1 else "confidence"
    correction = MEASURED_DECLINING if rests_on == "agreement" and declined_2.any() else MEASURED
    at_home_Q4 = np.concatenate([(scores_RQ2 * given_RQ1).mean(0), signal(home.runs, home.scorer)], axis=1)
    there_Q2 = signal(runs, home.scorer)
    home_D4 = resampled(at_home_Q4.mean(0), at_home_Q4, home.runs[0], home.name)  # row 0 is about the questions drawn
    there_D2 = resampled(there_Q2.mean(0), there_Q2, runs[0], name)
    line_D2 = line(home_D4[:, :2], home_D4[:, 2:], there_D2, min(len(at_home_Q4), len(there_Q2)))
    error_2 = line_D2[1:].std(0)
    unknown = np.array([unknown_share([item.example for item in run], home.known) for run in (home.runs[0], runs[0])])
    distance = log(unknown[1] / unknown[0])
    given = correction.bounds(line_D2[0], distance, error_2)
    bounds = 100 * np.minimum(given + declined_2, 1)
    remarks = []
    if declined_2.any():
        remark = f"As at home, {100 * declined_2[1]:.0f} % of all questions are taken to be declined rightly."
        f1, low, high = 100 * given[:, 1]
        remark += f" If all of them have an answer, F1 is {f1:.1f}"
        if not np.isnan(low):
            remark += f" ({low:.1f} to {high:.1f})"
        remarks.append(f"{remark}.")
    if distance > correction.farthest:
        remarks.append("Farther from home than any set that was measured: the score may be below the interval.")
    if np.isnan(error_2).any():
        bounds = bounds[:1]
        remarks.append(f"No interval: these questions, or those at home, are about fewer than {MIN_CLUSTERS} texts.")
    truth = None
    if any(item.example.answers for item in runs[0]):
        truth = _percent(scores(runs).mean((0, 1)))
    return Forecast(
        *(Interval(*values) for values in bounds.T.tolist()),
        at_home=_percent(scores_RQ2.mean((0, 1))),
        declined=_percent(declined_2),
        rests_on=rests_on,
        signal_at_home=_percent(home_D4[0, 2:]),
        signal_there=_percent(there_D2[0]),
        unknown_words=_percent(unknown),
        distance=distance,
        uncorrected=_percent(np.minimum(ndtr(line_D2[0]) + declined_2, 1)),
        error=tuple(error_2.tolist()),
        by_question=there_Q2,
        truth=truth,
        remarks=remarks,
    )


def _percent(shares: np.ndarray) -> tuple[float, float]:
    return tuple((100 * shares).tolist())


def read_home(folders: Sequence[Path]) -> Home:
    """What finished runs answered on the first set that they were tested on. Raises InputError: no runs; a run that is
    not finished or tested nothing; data that have changed; runs that differ in more than their seed, or not at all."""
    if not folders:
        raise InputError("no runs: name the folder of a finished run, or of several with different seeds")
    of_first = None
    for folder in folders:
        recipe = RunFolder(folder).read_recipe()
        RunFolder(folder).check_finished()
        if not recipe.test_sets:
            raise InputError(f"{folder}: was tested on no data, so that its scores at home are not known")
        name = recipe.test_sets[0]
        check_unchanged(recipe, folder, recipe.data.sources)
        data = recipe.data.model_copy(update={"eval": {name: recipe.data.eval.get(name)}})
        trained = (data, recipe.model, recipe.method)
        of_first = of_first or trained
        if trained != of_first:
            raise InputError(
                f"{folder}: has another model, another method or other data at home than {folders[0]}: name runs that "
                "differ in their seed"
            )
    training, _ = load_examples(recipe.model_copy(update={"data": data.model_copy(update={"eval": {}})}))
    runs = read_runs(folders, name)
    for (folder, run), (again, other) in combinations(zip(folders, runs, strict=True), 2):
        if run == other:
            raise InputError(f"{folder} and {again} are the same run: name runs that differ in their seed")
    return Home(name, runs, words(training), recipe.eval.scorer_of(name))


def read_runs(folders: Sequence[Path], name: str) -> list[list[Answered]]:
    """What runs have answered on a set that they were tested on. Raises InputError: as `read_answered`, or they have
    answered different questions."""
    runs = [read_answered(folder, RunFolder(folder).read_recipe(), name) for folder in folders]
    if any([item.example for item in run] != [item.example for item in runs[0]] for run in runs):
        raise InputError(f"{name}: the runs have answered different questions: name runs that differ in their seed")
    return runs
