"""Exact match and F1 exactly as the official scorers of SQuAD v1.1 and of the MRQA 2019 shared task have them.

The two scorers agree on every rule: normalise both texts, compare with each gold answer, keep the best, average
over the questions in percent. Two rules surprise people, and both are kept:
  - a question without a prediction scores 0 and still counts;
  - two texts that both normalise to nothing match exactly (EM 1) but share no token (F1 0).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from swep_ds.data.answers import normalize_answer


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if `prediction` equals one of `answers` after normalisation, else 0.0. `answers` is not empty."""
    normalized = normalize_answer(prediction)
    return float(any(normalized == normalize_answer(answer) for answer in answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """F1 in [0, 1] between the bags of normalised tokens, the best over `answers`, which is not empty."""
    predicted = normalize_answer(prediction).split()
    return max(_token_f1(predicted, normalize_answer(answer).split()) for answer in answers)


def _token_f1(predicted: list[str], gold: list[str]) -> float:
    same = (Counter(predicted) & Counter(gold)).total()
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def score(predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]]) -> dict[str, float | int]:
    """Scores a data set: `predictions` maps question id to answer, `golds` question id to accepted answers.

    Returns "exact_match" and "f1" in percent of the questions in `golds`, and "total", their number (>= 1).
    Predictions for other ids are ignored.
    """
    pairs = [(predictions[id_], answers) for id_, answers in golds.items() if id_ in predictions]
    return {
        "exact_match": 100.0 * sum(exact_match(*pair) for pair in pairs) / len(golds),
        "f1": 100.0 * sum(f1(*pair) for pair in pairs) / len(golds),
        "total": len(golds),
    }
