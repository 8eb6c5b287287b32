"""Do a model's confidences say which of its answers are right? An answer is right if its exact match is 1.

Questions are ordered by confidence, the highest first. Where several have the same confidence, their order is
arbitrary: each counts with the mean of their exact matches.

A calibrator says how likely the best answer is exactly right. It is fitted to questions that the model was not trained
on and whose scores are not reported. Three kinds compete:
  - softmax: the answer's probability as it is;
  - temperature: its log odds divided by one number, sigmoid(log odds / T), which keeps the order of the questions;
  - features: a logistic regression on the probabilities of the five best answers and of the answer's text, wherever it
    stands, and on the lengths of question, text and answer (as Kamath, Jia and Liang, ACL 2020, but for the forest).
The kind with the lowest cross-validated log loss is fitted to all questions. All is deterministic.

Shapes: N questions, F features, P weights that are fitted.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy  # whose parts are imported when they are used, as in `data/splits.py`

from swep_ds.common.settings import Section
from swep_ds.data.answers import normalize_answer
from swep_ds.data.example import Example
from swep_ds.data.splits import effective_clusters

if TYPE_CHECKING:  # it imports PyTorch, which readers of results need not
    from swep_ds.evaluation.spans import Answer

ECE_BINS = 15
COVERED_ACCURACY = 80  # percent
CALIBRATION = ("ece", "aurc", f"coverage_at_{COVERED_ACCURACY}")
CALIBRATED = tuple(f"calibrated_{name}" for name in CALIBRATION)  # the same of a calibrator's confidences
RESAMPLES = 1000
LEVEL = 95  # percent, of intervals
MIN_CLUSTERS = 10  # a percentile interval over fewer resampled clusters is too narrow
CHANGES = CALIBRATION[1:]  # whose change by a calibrator has an interval
N_BEST = 5  # answers to a question that are kept, and that features are made of
FEATURES = ("log_odds", "text_log_odds", *(f"probability_{n}" for n in range(2, N_BEST + 1)))
FEATURES += ("log_question", "log_context", "log_answer")  # lengths in characters
FOLDS = 5
MIN_OF_EACH = 20  # right answers, and wrong ones
MAX_ODDS = 1e6  # probability 1 counts as these odds, 0 as their inverse
RIDGE = 1.0  # penalty on half the squared weights of standardised features
KINDS = ("softmax", "temperature", "features")


def calibration(confidence: Sequence[float], exact_match: Sequence[float]) -> dict[str, float]:
    """Three scores of N >= 1 questions, in percent, from their confidences and exact matches (0 or 1).

    "ece": expected calibration error: the mean over questions of |mean confidence - mean exact match| of their bin. The
    `ECE_BINS` bins hold equally many questions, give or take one (Nguyen and O'Connor, EMNLP 2015).
    "aurc": area under the risk-coverage curve: the mean over n = 1 ... N of the share of wrong answers among the n most
    confident ones (Geifman and El-Yaniv, NeurIPS 2017).
    "coverage_at_80": the largest share n / N at which 80 % of the n most confident answers are right; 0 if there is
    none (Kamath et al., ACL 2020).
    """
    confidence_N, right_N = ordered(confidence, exact_match)
    gaps = [abs((confidence_N[rows] - right_N[rows]).sum()) for rows in bins(len(right_N))]
    ece = _percent(sum(gaps) / len(right_N))
    return dict(zip(CALIBRATION, [ece, *_order_scores(right_N)], strict=True))


def _order_scores(right_N: np.ndarray) -> list[float]:
    """The scores `CHANGES`, of exact matches that are `ordered`."""
    accuracy_N = accuracy_by_coverage(right_N)
    enough = np.flatnonzero(accuracy_N >= COVERED_ACCURACY / 100 - 1e-12)  # but for rounding
    coverage = max(enough + 1, default=0) / len(right_N)
    return [_percent(np.mean(1 - accuracy_N)), _percent(coverage)]


def _percent(share: float) -> float:
    return 100.0 * float(np.clip(share, 0, 1))


def calibrated_scores(
    softmax: Sequence[float], calibrated: Sequence[float], exact_match: Sequence[float], clusters: Sequence[int]
) -> dict[str, float]:
    """What a calibrator changes on N >= 1 questions, from the confidences without it and with it: `CALIBRATED`, in
    percent, and for `CHANGES` "<name>_change_low" and "_high", in points: the `LEVEL` % interval of the change, by a
    paired percentile bootstrap over `clusters` (N numbers from 0), if there are `MIN_CLUSTERS` effective ones.
    """
    scores = dict(zip(CALIBRATED, calibration(calibrated, exact_match).values(), strict=True))
    cluster_N = np.asarray(clusters)
    if effective_clusters(cluster_N) < MIN_CLUSTERS:
        return scores
    right_N = np.asarray(exact_match, dtype=float)
    sorted_once = []
    for confidence_N in (np.asarray(softmax), np.asarray(calibrated)):
        order_N = np.argsort(-confidence_N, kind="stable")
        sorted_once.append((cluster_N[order_N], confidence_N[order_N], right_N[order_N]))
    count = int(cluster_N.max()) + 1
    rng = np.random.default_rng(0)
    changes = []
    for _ in range(RESAMPLES):
        copies = np.bincount(rng.integers(count, size=count), minlength=count)
        before, after = (
            _order_scores(_means_of_ties(np.repeat(confidence_N, copies[of_N]), np.repeat(right_N, copies[of_N])))
            for of_N, confidence_N, right_N in sorted_once
        )
        changes.append(np.subtract(after, before))
    tail = (100 - LEVEL) / 2
    for name, values in zip(CHANGES, np.transpose(changes), strict=True):
        low, high = np.percentile(values, [tail, 100 - tail]).tolist()
        scores |= {f"{name}_change_low": low, f"{name}_change_high": high}
    return scores


def ordered(confidence: Sequence[float], exact_match: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Both [N] by confidence, the highest first; exact matches are means over questions of the same confidence."""
    confidence_N = np.asarray(confidence, dtype=float)
    order_N = np.argsort(-confidence_N, kind="stable")
    confidence_N = confidence_N[order_N]
    return confidence_N, _means_of_ties(confidence_N, np.asarray(exact_match, dtype=float)[order_N])


def _means_of_ties(confidence_N: np.ndarray, right_N: np.ndarray) -> np.ndarray:
    tie_N = np.cumsum(np.diff(confidence_N, prepend=np.inf) != 0) - 1  # its number, for each question
    return (np.bincount(tie_N, right_N) / np.bincount(tie_N))[tie_N]


def bins(total: int) -> list[np.ndarray]:
    """The rows of `ordered` questions in each of at most `ECE_BINS` bins."""
    return np.array_split(np.arange(total), min(ECE_BINS, total))


def accuracy_by_coverage(right_N: np.ndarray) -> np.ndarray:
    """The share of right answers among the n most confident ones, n = 1 ... N, from `ordered` exact matches [N]."""
    return np.cumsum(right_N) / np.arange(1, len(right_N) + 1)


class Calibrator(Section):
    """sigmoid(intercept + weights . features), and how it was chosen."""

    kind: Literal[KINDS]
    intercept: float
    weights: dict[Literal[FEATURES], float]  # the others have none
    log_loss: dict[Literal[KINDS], float]  # cross-validated, in nats
    questions: int  # that it was fitted to

    def confidence(self, features_NF: np.ndarray) -> np.ndarray:
        """The probability that the best answer is exactly right: [N] float64 from `features` [N, F]."""
        weights_F = np.array([self.weights.get(name, 0.0) for name in FEATURES])
        return scipy.special.expit(self.intercept + features_NF @ weights_F)

    def __str__(self) -> str:
        losses = ", ".join(f"{kind} {loss:.4f}" for kind, loss in self.log_loss.items())
        fitted = f"{self.kind}, on {self.questions} questions"
        return f"confidences are calibrated by {fitted} (cross-validated log loss: {losses})"


def features(example: Example, answers: Sequence["Answer"]) -> list[float]:
    """The F features of a question, from the answer that is given and the next best; none has probability 0."""
    answers = answers[:N_BEST]
    probabilities = [answer.probability for answer in answers] + [0.0] * (N_BEST - len(answers))
    text = answers[0].text if answers else ""
    normalized = normalize_answer(text)
    same = sum(answer.probability for answer in answers if normalize_answer(answer.text) == normalized)
    lengths = [math.log1p(len(part)) for part in (example.question, example.context, text)]
    return [_log_odds(probabilities[0]), _log_odds(same), *probabilities[1:], *lengths]


def _log_odds(probability: float) -> float:
    least = 1 / (1 + MAX_ODDS)
    kept = min(max(probability, least), 1 - least)
    return math.log(kept / (1 - kept))


def fit(features_NF: np.ndarray, right_N: Sequence[bool | float], clusters_N: Sequence[int]) -> Calibrator | str:
    """The calibrator of the kind with the lowest cross-validated log loss, the simplest of equals; or a sentence that
    says that questions or texts are too few. Questions of a cluster (`data.splits.clusters`) are left out together."""
    right_N = np.asarray(right_N, dtype=float)
    right = int(right_N.sum())
    wrong = len(right_N) - right
    texts = len(set(clusters_N))
    if min(right, wrong) < MIN_OF_EACH or texts < FOLDS:
        return (
            f"confidences are softmax probabilities: {right} right and {wrong} wrong answers about {texts} texts are "
            f"too few to calibrate them, which takes {MIN_OF_EACH} of each and {FOLDS} texts"
        )
    fold_N = _folds(clusters_N)
    log_loss = {}
    for kind in KINDS:
        loss_N = np.empty(len(right_N))
        for fold in range(FOLDS):
            left = fold_N == fold
            intercept, weights_F = _fit(kind, features_NF[~left], right_N[~left])
            loss_N[left] = _log_losses(intercept + features_NF[left] @ weights_F, right_N[left])
        log_loss[kind] = float(loss_N.mean())
    kind = min(KINDS, key=log_loss.__getitem__)
    intercept, weights_F = _fit(kind, features_NF, right_N)
    weights = {name: float(weight) for name, weight in zip(FEATURES, weights_F, strict=True) if weight}
    return Calibrator(kind=kind, intercept=intercept, weights=weights, log_loss=log_loss, questions=len(right_N))


def _folds(clusters_N: Sequence[int]) -> np.ndarray:
    """The fold of each question [N]: clusters in random order, each to the fold with the fewest questions so far."""
    _, cluster_N, sizes = np.unique(list(map(str, clusters_N)), return_inverse=True, return_counts=True)
    folds = np.empty(len(sizes), int)
    filled = np.zeros(FOLDS, int)
    for cluster in np.random.default_rng(0).permutation(len(sizes)):
        folds[cluster] = filled.argmin()
        filled[folds[cluster]] += sizes[cluster]
    return folds[cluster_N]


def _log_losses(logit_N: np.ndarray, right_N: np.ndarray) -> np.ndarray:
    return -scipy.special.log_expit(np.where(right_N > 0, logit_N, -logit_N))


def _fit(kind: str, features_NF: np.ndarray, right_N: np.ndarray) -> tuple[float, np.ndarray]:
    """(intercept, weights [F]) of one kind."""
    weights_F = np.zeros(features_NF.shape[1])
    weights_F[0] = 1.0  # the log odds of the softmax
    if kind == "softmax":
        return 0.0, weights_F
    if kind == "temperature":
        [weights_F[0]] = _minimum(features_NF[:, :1], right_N, np.ones(1), np.zeros(1), [(1e-3, None)])  # T is positive
        return 0.0, weights_F
    mean_F = features_NF.mean(0)
    std_F = features_NF.std(0)
    std_F[std_F < 1e-12] = np.inf  # a constant says nothing
    columns_NP = np.column_stack([np.ones(len(right_N)), (features_NF - mean_F) / std_F])
    ridge_P = np.full(columns_NP.shape[1], RIDGE)
    ridge_P[0] = 0.0  # the intercept's
    intercept, *scaled_F = _minimum(columns_NP, right_N, np.zeros(len(ridge_P)), ridge_P)
    weights_F = np.array(scaled_F) / std_F
    return float(intercept - mean_F @ weights_F), weights_F


def _minimum(
    columns_NP: np.ndarray, right_N: np.ndarray, start_P: np.ndarray, ridge_P: np.ndarray, bounds: list | None = None
) -> np.ndarray:
    """The P weights with the least summed log loss and ridge penalty; the problem is convex."""

    def loss(weights_P: np.ndarray) -> tuple[float, np.ndarray]:
        logit_N = columns_NP @ weights_P
        value = _log_losses(logit_N, right_N).sum() + ridge_P @ weights_P**2 / 2
        return value, columns_NP.T @ (scipy.special.expit(logit_N) - right_N) + ridge_P * weights_P

    options = {"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-8}
    return scipy.optimize.minimize(loss, start_P, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
