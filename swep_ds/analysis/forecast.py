"""What will a model do on text without labels? A forecast of its EM and F1 there, and how sure that is.

On the probit scale z, the inverse of the normal distribution function, scores move from home, where answers are known,
as a signal does that needs no answers:

    z(score there) = z(score at home) + z(signal there) - z(signal at home) - c d,     d = ln(u there / u at home)

The signal is the agreement of the runs' answers to a question (Baek et al., NeurIPS 2022, "Agreement-on-the-Line";
Saxena et al., 2404.01542) or, of one run, its mean confidence (difference of confidences: Guillory et al., ICCV 2021).
On its own it is too optimistic, and the more so the farther the text is from home, as runs agree on wrong answers. c d
corrects that: u is the share of the contexts' words that the training text lacks, and c was measured on shifted sets
(docs/measurements/cpu-forecast.md). Of a model that may decline this is about the answers that it gives, over all
questions; those that it declines rightly are taken to be as many as at home, as runs decline more on foreign text.

The interval takes c as varying from set to set, and questions as a sample. It is about the mean over these runs, and
knows nothing of how answers would be labelled: where they are shorter than at home, or of another kind, scores are
lower.

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

from swep_ds.analysis.domains import Interval
from swep_ds.analysis.labelled import Estimate
from swep_ds.analysis.significance import resampled_means
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json
from swep_ds.data.example import Example
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.calibration import LEVEL, MIN_CLUSTERS
from swep_ds.evaluation.results import METRICS, read_predictions
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.examples import check_unchanged, load_examples, reported_examples, source_of_test_set
from swep_ds.pipeline.folder import RunFolder

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


@dataclass(frozen=True)
class Answers:
    """A run's answers to Q questions."""

    texts: Sequence[str]  # "" = declined
    confidence: np.ndarray | None = None  # [Q] the softmax's probabilities; None = not known


@dataclass(frozen=True)
class Home:
    """What R runs of one training set answer on their source domain."""

    name: str
    examples: Sequence[Example]
    runs: Sequence[Answers]
    known: Collection[str]  # words that they were trained on
    scorer: Scorer

    def signal(self, runs: Sequence[Answers]) -> np.ndarray:
        """[Q, 2]: how sure the runs are of each answer; 0 where they decline. Raises InputError: there is one run,
        without confidences."""
        if len(runs) > 1:
            return agreement([run.texts for run in runs], self.scorer)
        if runs[0].confidence is None:
            raise InputError("one run, and it wrote no confidences: name a second run with another seed")
        return np.stack([runs[0].confidence * (np.array(runs[0].texts) != "")] * len(METRICS), axis=1)


@dataclass(frozen=True)
class Forecast:
    """Of the mean over the runs on one data set. Intervals, of `LEVEL` percent, are missing where it is about too few
    texts."""

    data_set: str
    exact_match: Interval  # in percent, as all scores and signals here
    f1: Interval
    at_home: Scores
    rests_on: str  # "agreement" or "confidence"
    signal_at_home: Scores
    signal_there: Scores
    unknown_words: tuple[float, float]  # percent of the contexts' words at home and there
    distance: float  # d
    uncorrected: Scores  # the forecasts without c d
    error: tuple[float, float]  # of their z, by sampling
    by_question: np.ndarray  # [Q, 2] the signal there
    truth: Scores | None  # if the questions have answers, which the forecast does not use
    remarks: list[str]
    labelled: int = 0  # questions whose labels correct the forecast: `with_labels` has it then, by metric
    with_labels: dict[str, Estimate] = field(default_factory=dict)


# Estimators


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


def score(run: Answers, examples: Sequence[Example], scorer: Scorer) -> np.ndarray:
    """[Q, 2]: EM and F1 of a run's answers."""
    ids = [example.id for example in examples]
    golds = {example.id: example.answers for example in examples}
    by_question = scorer.by_question(dict(zip(ids, run.texts, strict=True)), golds)
    return np.array([by_question[id_] for id_ in ids])


def forecast(
    home: Home, name: str, examples: Sequence[Example], runs: Sequence[Answers], correction: Correction = MEASURED
) -> Forecast:
    """What the runs of `home` score on the `examples` of the data set `name`, from their answers `runs` in the same
    order. If the examples have accepted answers, these serve for `truth` only."""
    scores_RQ2 = np.array([score(run, home.examples, home.scorer) for run in home.runs])
    given_RQ1 = np.array([run.texts for run in home.runs])[:, :, None] != ""
    declined_2 = (scores_RQ2 * ~given_RQ1).mean((0, 1))  # what questions that are declined rightly add
    at_home_Q4 = np.concatenate([(scores_RQ2 * given_RQ1).mean(0), home.signal(home.runs)], axis=1)
    there_Q2 = home.signal(runs)
    clusters_home = clusters(home.examples)
    clusters_there = clusters(examples)
    questions = min(len(at_home_Q4), len(there_Q2))
    # row 0 is the mean over all questions, the others are means over questions drawn again
    home_D4 = np.vstack([at_home_Q4.mean(0), resampled_means(at_home_Q4, clusters_home, home.name)])
    there_D2 = np.vstack([there_Q2.mean(0), resampled_means(there_Q2, clusters_there, name)])
    line_D2 = line(home_D4[:, :2], home_D4[:, 2:], there_D2, questions)
    error_2 = line_D2[1:].std(0)
    unknown = np.array([unknown_share(home.examples, home.known), unknown_share(examples, home.known)])
    distance = log(unknown[1] / unknown[0])
    bounds = 100 * np.minimum(correction.bounds(line_D2[0], distance, error_2) + declined_2, 1)
    remarks = []
    if declined_2.any():
        remarks.append(f"As at home, {100 * declined_2[1]:.0f} % of all questions are taken to be declined rightly.")
    if distance > correction.farthest:
        remarks.append("Farther from home than any set that was measured: the score may be below the interval.")
    if min(effective_clusters(clusters_home), effective_clusters(clusters_there)) < MIN_CLUSTERS:
        bounds = bounds[:1]
        remarks.append(f"No interval: these questions, or those at home, are about fewer than {MIN_CLUSTERS} texts.")
    truth = None
    if any(example.answers for example in examples):
        truth = _percent(np.mean([score(run, examples, home.scorer) for run in runs], axis=(0, 1)))
    return Forecast(
        name,
        *(Interval(*values) for values in bounds.T.tolist()),
        at_home=_percent(scores_RQ2.mean((0, 1))),
        rests_on="agreement" if len(runs) > 1 else "confidence",
        signal_at_home=_percent(home_D4[0, 2:]),
        signal_there=_percent(there_D2[0]),
        unknown_words=_percent(unknown),
        distance=distance,
        uncorrected=_percent(ndtr(line_D2[0]) + declined_2),
        error=tuple(error_2.tolist()),
        by_question=there_Q2,
        truth=truth,
        remarks=remarks,
    )


def _percent(shares: np.ndarray) -> tuple[float, float]:
    return tuple((100 * shares).tolist())


# Reading runs


def read_home(folders: Sequence[Path]) -> Home:
    """What finished runs answered on the first set that they were tested on. Raises InputError: no runs; a run that is
    not finished or was tested on no data; data that cannot be read, have changed since, or differ between the runs."""
    if not folders:
        raise InputError("no runs: name the folder of a finished run, or of several with different seeds")
    at_home = []
    for folder in folders:
        recipe = RunFolder(folder).read_recipe()
        RunFolder(folder).check_finished()
        if not recipe.test_sets:
            raise InputError(f"{folder}: was tested on no data, so that its scores at home are not known")
        name = recipe.test_sets[0]
        check_unchanged(recipe, folder, [*recipe.data.sources, source_of_test_set(recipe, name)])
        only_home = recipe.data.model_copy(update={"eval": {}})
        at_home.append((name, recipe.data.eval.get(name), recipe.validation_set == name, only_home))
        if at_home[-1] != at_home[0]:
            raise InputError(f"{folder}: has other data at home than {folders[0]}: name runs that differ in their seed")
    examples = reported_examples(recipe, name)
    training, _ = load_examples(recipe.model_copy(update={"data": only_home}))
    runs = [read_answers(folder, name, examples) for folder in folders]
    return Home(name, examples, runs, words(training), Scorer(recipe.eval.answer_language(name)))


def read_answers(folder: Path, name: str, examples: Sequence[Example]) -> Answers:
    """A run's answers to a set that it was tested on. Raises InputError: they cannot be read, or one is missing."""
    texts = read_predictions(folder, name)
    if missing := next((example.id for example in examples if example.id not in texts), None):
        raise InputError(f"{folder}: has no answer to question {missing} of {name}")
    confidence = None
    if (file := folder / "confidence" / f"{name}.json").is_file():
        by_id = read_json(file, unique_keys=False)
        confidence = np.array([by_id[example.id] for example in examples])
    return Answers([texts[example.id] for example in examples], confidence)
