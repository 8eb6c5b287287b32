"""Exact match and F1 exactly as the official scorers of SQuAD v1.1 and v2.0, of MRQA 2019, of MLQA and of the data sets
in `scoring_rules.py` have them.

All normalise both texts, compare with each accepted answer and keep the best. A question without a prediction scores 0.
Some official scripts do so as well; v2.0's ends in a KeyError, and those of JGLUE and KLUE leave it out of the mean.
  - Where every question has an answer, two texts that both normalise to nothing match exactly (EM 1) but share no token
    (F1 0).
  - Where some questions of a data set have no answer, v2.0's rules hold for all of its questions: an accepted answer
    that normalises to nothing is none, a question without an answer accepts only the prediction that normalises to
    nothing, and F1 is 1 where both texts have no token. PersianQA's script, which has EM 1 and F1 0 there, is followed
    in all else.
  - JGLUE has v2.0's rules in every data set. So has KLUE, but there an accepted answer that normalises to nothing is
    an answer like others.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from swep_ds.data.places import UNSPACED
from swep_ds.evaluation.scoring_rules import RULES, Rules

Golds = Mapping[str, Sequence[str]]  # accepted answers by question id; none = the question has no answer
METRICS = ("exact_match", "f1")
# Scripts without spaces, or with particles or articles at their words, in the order in which they are looked for: their
# characters, the share of an answer's letters above which they are named, and the rows of `RULES` for them
SCRIPTS = {
    "Korean": ("\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3", 0.5, ("korquad", "klue")),
    "Thai, Lao, Khmer or Burmese (no official scorer is known)": (
        "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff",
        0.5,
        ("jglue",),
    ),
    "Japanese": ("\u3040-\u30ff\uff66-\uff9f", 0.1, ("jglue",)),
    "Chinese": (UNSPACED, 0.5, ("cmrc", "dureader", "mlqa zh")),
    "in Arabic script (Persian, Arabic)": ("\u0600-\u06ff\u0750-\u077f", 0.5, ("persianqa", "arcd", "mlqa ar")),
}


@lru_cache(2**16)  # both metrics of every run are of the same gold answers
def _units(text: str, row: str) -> tuple[str, Sequence[str]]:
    """A text after normalisation, and what F1 counts in it."""
    normalized = RULES[row].normalize(text)
    return normalized, RULES[row].units(normalized)


@dataclass(frozen=True)
class Scorer:
    """The rules for one data set: a row of `RULES`, such as "squad" or "mlqa de"."""

    row: str = "squad"

    @property
    def rules(self) -> Rules:
        return RULES[self.row]

    def normalize(self, text: str) -> str:
        return _units(text, self.row)[0]

    def name(self, golds: Golds) -> str:
        """Whose rules these are, for people."""
        if self.rules.empty or all(golds.values()):
            return self.rules.name
        return self.rules.v2_name or f"{self.rules.name}, unanswerable as in SQuAD v2.0"

    def advice(self, data_set: str, golds: Golds) -> str | None:
        """Which scorer to take for answers that are mostly in a script of `SCRIPTS`, if this is another."""
        texts = "".join(text for answers in golds.values() for text in answers)
        letters = sum(map(str.isalpha, texts))
        for script, (characters, share, fitting) in SCRIPTS.items():
            if len(re.findall(f"[{characters}]", texts)) > share * letters:
                if self.row in fitting:
                    return None
                known = f"{data_set}: answers are {script}, which {self.name(golds)} has no rules for"
                rows = " or ".join(fitting).replace("mlqa ", "mlqa with eval.language ")
                return f"{known}: set eval.scorer to {rows}"
        return None

    def exact_match(self, prediction: str, answers: Sequence[str]) -> float:
        """1.0 if `prediction` equals one of `answers` after normalisation, else 0.0."""
        return float(self.normalize(prediction) in map(self.normalize, answers))

    def f1(self, prediction: str, answers: Sequence[str]) -> float:
        """F1 in [0, 1] of what two normalised texts share, the best over `answers`, which is not empty."""
        _, predicted = _units(prediction, self.row)
        best = 0.0
        for answer in answers:
            _, gold = _units(answer, self.row)
            if same := self.rules.overlap(predicted, gold):
                precision = same / len(predicted)
                recall = same / len(gold)
                best = max(best, 2 * precision * recall / (precision + recall))
        return best

    def by_question(self, predictions: Mapping[str, str], golds: Golds) -> dict[str, tuple[float, float]]:
        """EM and F1 in [0, 1] of each question in `golds`; 0 without a prediction."""
        empty = self.rules.empty
        is_v2 = empty is not None or not all(golds.values())
        scores = dict.fromkeys(golds, (0.0, 0.0))
        for id_ in golds.keys() & predictions.keys():
            answers = set(golds[id_])
            if is_v2 and empty != "kept":
                answers = [answer for answer in answers if self.normalize(answer)]
            if is_v2:
                answers = answers or [""]
            right = self.exact_match(predictions[id_], answers)
            overlap = self.f1(predictions[id_], answers)
            if is_v2 and not self.normalize(predictions[id_]):
                overlap = right
            scores[id_] = (right, overlap)
        return scores

    def score(self, predictions: Mapping[str, str], golds: Golds) -> dict[str, float | int]:
        """The scores of the questions in `golds`, at least one: "exact_match" and "f1" in percent, and "total". If
        some have no answer, also those of the questions with one (`has_answer_...`) and of the others
        (`no_answer_...`)."""
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
