"""Exact match and F1 exactly as the official scorers of SQuAD v1.1 and v2.0, of MRQA 2019 and of MLQA have them.

All normalise both texts, compare with each accepted answer and keep the best. A question without a prediction scores 0.
  - Where every question has an answer, two texts that both normalise to nothing match exactly (EM 1) but share no token
    (F1 0).
  - Where some questions of a data set have no answer, v2.0's rules hold for all of its questions: an accepted answer
    that normalises to nothing is none, a question without an answer accepts only the prediction that normalises to
    nothing, and F1 is 1 where both texts have no token.
"""

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from swep_ds.data.answers import normalize_answer

Golds = Mapping[str, Sequence[str]]  # accepted answers by question id; none = the question has no answer
METRICS = ("exact_match", "f1")
ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",
}
Language = Literal["ar", "de", "en", "es", "hi", "vi", "zh"]
LANGUAGES = get_args(Language)


@lru_cache(2**16)
def normalize_mlqa(text: str, language: Language) -> str:
    """MLQA's normalisation (Lewis et al., ACL 2020; the official scorer, version 1): lower case, without ASCII
    punctuation, Unicode's categories P* and the language's articles. In Chinese every character from U+4E00 to U+9FA5
    is a token.

    Two effects of the official rules are kept: Vietnamese loses classifiers and the word for "of", and Arabic loses its
    article's two letters wherever they stand, in the middle of words, too.
    """
    kept = "".join(c for c in text.lower() if c not in string.punctuation and unicodedata.category(c)[0] != "P")
    if language in ARTICLES:
        kept = re.sub(ARTICLES[language], " ", kept)
    if language == "zh":
        kept = re.sub("([\u4e00-\u9fa5])", r" \1 ", kept)
    return " ".join(kept.split())


@dataclass(frozen=True)
class Scorer:
    """The rules for one data set. `language`: None = SQuAD's, else MLQA's for answers in this language."""

    language: str | None = None

    def normalize(self, text: str) -> str:
        if self.language:
            return normalize_mlqa(text, self.language)
        return normalize_answer(text)

    def name(self, golds: Golds) -> str:
        """Whose rules these are, for people."""
        answered = all(golds.values())
        if self.language is None:
            return "SQuAD v1.1" if answered else "SQuAD v2.0"
        return f"MLQA ({self.language})" if answered else f"MLQA ({self.language}), v2.0"

    def exact_match(self, prediction: str, answers: Sequence[str]) -> float:
        """1.0 if `prediction` equals one of `answers` after normalisation, else 0.0."""
        normalized = self.normalize(prediction)
        return float(any(normalized == self.normalize(answer) for answer in answers))

    def f1(self, prediction: str, answers: Sequence[str]) -> float:
        """F1 in [0, 1] between the bags of normalised tokens, the best over `answers`, which is not empty."""
        predicted = Counter(self.normalize(prediction).split())
        best = 0.0
        for answer in answers:
            gold = Counter(self.normalize(answer).split())
            if same := (predicted & gold).total():
                precision = same / predicted.total()
                recall = same / gold.total()
                best = max(best, 2 * precision * recall / (precision + recall))
        return best

    def by_question(self, predictions: Mapping[str, str], golds: Golds) -> dict[str, tuple[float, float]]:
        """EM and F1 in [0, 1] of each question in `golds`; 0 without a prediction."""
        is_v2 = not all(golds.values())
        scores = dict.fromkeys(golds, (0.0, 0.0))
        for id_ in golds.keys() & predictions.keys():
            answers = golds[id_]
            if is_v2:
                answers = [answer for answer in answers if self.normalize(answer)] or [""]
            right = self.exact_match(predictions[id_], answers)
            overlap = self.f1(predictions[id_], answers)
            if is_v2 and not self.normalize(predictions[id_]):
                overlap = right
            scores[id_] = (right, overlap)
        return scores

    def score(self, predictions: Mapping[str, str], golds: Golds) -> dict[str, float | int]:
        """Of the questions in `golds`, at least one: "exact_match" and "f1" in percent, and "total". If some have no
        answer, also those of the questions with one (`has_answer_...`) and of the others (`no_answer_...`)."""
        by_question = self.by_question(predictions, golds)
        parts = {"": list(golds)}
        if not all(golds.values()):
            parts["has_answer_"] = [id_ for id_, answers in golds.items() if answers]
            parts["no_answer_"] = [id_ for id_, answers in golds.items() if not answers]
        scores = {}
        for part, ids in parts.items():
            if ids:
                for number, metric in enumerate(METRICS):
                    scores[part + metric] = 100.0 * sum(by_question[id_][number] for id_ in ids) / len(ids)
                scores[f"{part}total"] = len(ids)
        return scores

    def best_thresholds(
        self, predictions: Mapping[str, str], golds: Golds, odds: Mapping[str, float], *, reachable: bool = False
    ) -> dict[str, float]:
        """The best EM and F1 over thresholds on `odds`, in percent, with the thresholds: a question is declined where
        its odds of having no answer are above the threshold. `predictions` are the best answers to all questions.

        As in v2.0's scorer, a score may be of a place between equal odds, and the threshold is 0 where it is best to
        decline every question. With `reachable` the threshold is always one that gives the score.
        """
        by_question = self.by_question(predictions, golds)
        ids = sorted(golds, key=odds.__getitem__)
        best = {}
        for number, metric in enumerate(METRICS):
            total = sum(not answers for answers in golds.values())  # all questions are declined
            highest = total
            threshold = 0.0
            if reachable:
                threshold = math.nextafter(odds[ids[0]], -math.inf)
            for id_, following in zip(ids, [*ids[1:], None], strict=True):
                if golds[id_]:
                    total += by_question[id_][number]
                elif predictions[id_]:
                    total -= 1
                splits_a_tie = following is not None and odds[following] == odds[id_]
                if total > highest and not (reachable and splits_a_tie):
                    highest = total
                    threshold = odds[id_]
            best[f"best_{metric}"] = 100.0 * highest / len(golds)
            best[f"best_{metric}_threshold"] = threshold
        return best
