"""How likely is a model's best answer exactly right? A logistic regression on what the answers themselves show.

It is fitted to questions that the model was not trained on and whose scores are not reported. Three kinds compete:
  - softmax: the answer's probability as it is;
  - temperature: its log odds divided by one number, sigmoid(log odds / T), which keeps the order of the questions;
  - features: a logistic regression on the probabilities of the five best answers and of the answer's text, wherever it
    stands, and on the lengths of question, text and answer (as Kamath, Jia and Liang, ACL 2020, but for the forest).
The kind with the lowest cross-validated log loss is fitted to all questions. Questions of a cluster
(`data.splits.clusters`) are left out together. All is deterministic.

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

if TYPE_CHECKING:  # it imports PyTorch, which readers of results need not
    from swep_ds.evaluation.spans import Answer

N_BEST = 5  # answers to a question that are kept, and that features are made of
FEATURES = ("log_odds", "text_log_odds", *(f"probability_{n}" for n in range(2, N_BEST + 1)))
FEATURES += ("log_question", "log_context", "log_answer")  # lengths in characters
FOLDS = 5
MIN_OF_EACH = 20  # right answers, and wrong ones
MAX_ODDS = 1e6  # probability 1 counts as these odds, 0 as their inverse
RIDGE = 1.0  # penalty on half the squared weights of standardised features
KINDS = ("softmax", "temperature", "features")


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
        return (
            f"confidences are calibrated by {self.kind}, on {self.questions} questions (cross-validated log loss: "
            f"{losses})"
        )


def features(example: Example, answers: Sequence["Answer"]) -> list[float]:
    """The F features of a question, from the answer that is given and the next best; none has probability 0."""
    answers = answers[:N_BEST]
    probabilities = [answer.probability for answer in answers] + [0.0] * (N_BEST - len(answers))
    text = ""
    same = 0.0
    if answers:
        text = answers[0].text
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
    says that questions or texts are too few. `right_N` is whether the exact match is 1."""
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
