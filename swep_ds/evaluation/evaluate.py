"""Evaluates a model on any number of data sets: windows, predictions, scores, files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import config as datasets_config
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.data.batches import Padding
from swep_ds.data.example import Example
from swep_ds.data.features import Features, build_features
from swep_ds.data.splits import clusters
from swep_ds.data.windows import WindowSettings
from swep_ds.evaluation.calibration import calibrated_scores, calibration
from swep_ds.evaluation.calibrator import N_BEST, Calibrator, features, fit
from swep_ds.evaluation.generated import GeneratedAnswers
from swep_ds.evaluation.predict import Predict, decode
from swep_ds.evaluation.results import Score, Scores, write_predictions
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import Answer, SpanDecoder, SpanSettings, with_null
from swep_ds.ranks.writing import write_on_rank0

CACHE = Path(datasets_config.HF_DATASETS_CACHE) / "swep_ds"  # tokenised windows; moves with HF_HOME


@dataclass(frozen=True)
class EvalSet:
    """A tokenised test set."""

    name: str
    examples: list[Example]
    features: Features

    @property
    def golds(self) -> dict[str, tuple[str, ...]]:
        return {example.id: example.answers for example in self.examples}


@dataclass(frozen=True)
class Predictions:
    """By question id, in the order of the examples: the `N_BEST` best answers and, if the model may decline, the null
    answer."""

    n_best: dict[str, list[Answer]]
    nulls: dict[str, Answer]

    @property
    def texts(self) -> dict[str, str]:
        return {id_: answers[0].text if answers else "" for id_, answers in self.n_best.items()}

    @property
    def confidences(self) -> dict[str, float]:
        return {id_: answers[0].probability if answers else 0.0 for id_, answers in self.n_best.items()}

    @property
    def odds(self) -> dict[str, float]:
        return {id_: null.odds for id_, null in self.nulls.items()}

    def declining(self, threshold: float | None) -> "Predictions":
        """The same predictions, after `with_null` has decided which questions to decline."""
        n_best = {}
        for id_, answers in self.n_best.items():
            n_best[id_] = with_null(answers, self.nulls.get(id_), threshold)[:N_BEST]
        return Predictions(n_best, self.nulls)

    def features(self, examples: list[Example]) -> np.ndarray:
        """What a calibrator sees of their answers: [N, F]."""
        return np.array([features(example, self.n_best[example.id]) for example in examples])


def _fields(answer: Answer) -> dict[str, Any]:
    fields = {"text": answer.text, "probability": answer.probability, "score": answer.score}
    if answer.start is not None:
        fields |= {"start": answer.start, "end": answer.end}
    return fields


@dataclass(frozen=True)
class Evaluation:
    """Tokenises, predicts, decides when to decline, and scores, with one set of rules, windows and thresholds."""

    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    spans: SpanSettings
    batch_size: int  # windows per rank
    scorers: Mapping[str, Scorer] = field(default_factory=dict)  # by data set; others have SQuAD's rules
    null_threshold: float | None = None  # a question with null odds above this is declined; None = never
    calibrator: Calibrator | None = None

    def scorer(self, name: str) -> Scorer:
        """The rules for a data set."""
        return self.scorers.get(name, Scorer())

    def prepare(self, tests: dict[str, list[Example]]) -> list[EvalSet]:
        """Tokenises data sets by name. On several ranks call it inside `local_rank_zero_first`, for the cache."""
        build = partial(build_features, training=False, cache_dir=CACHE, console=Console(quiet=not ranks.is_main()))
        return [EvalSet(name, tests[name], build(tests[name], self.tokenizer, self.windows)) for name in tests]

    def run(self, predict: Predict, tests: list[EvalSet], folder: Path, say: Callable[[str], None]) -> Scores:
        """Scores by data set, in order, on every rank; rank 0 writes the folders `BY_TEST`. Collective.

        Raises WriteFailed: on all ranks.
        """
        scores: Scores = {}
        for test in tests:
            windows = test.features
            cut = ""
            if windows.questions_cut:
                cut = f", {windows.questions_cut} questions cut"
            say(f"evaluating {test.name}: {windows.examples} questions in {len(windows.dataset)} windows{cut}")
            predictions = self.predict(predict, test)
            given = predictions.declining(self.null_threshold)
            n_best = {id_: [_fields(answer) for answer in answers] for id_, answers in given.n_best.items()}
            contents = {"predictions": given.texts, "confidence": given.confidences, "n_best": n_best}
            right = self._right(given, test)
            softmax = list(given.confidences.values())
            score = self.scorer(test.name).score(given.texts, test.golds) | calibration(softmax, right)
            if self.calibrator:
                sure = self.calibrator.confidence(given.features(test.examples)).tolist()
                score |= calibrated_scores(softmax, sure, right, clusters(test.examples))
                contents["calibrated"] = dict(zip(given.texts, sure, strict=True))
            if predictions.nulls:
                contents["null_odds"] = predictions.odds
                if not all(test.golds.values()):
                    score |= self._best_thresholds(predictions, test)
            scores[test.name] = score
            write_on_rank0(partial(write_predictions, folder, test.name, contents), folder)
        return scores

    def predict(self, predict: Predict, test: EvalSet) -> Predictions:
        """The best answers to each question, none declined, on every rank. Collective."""
        if self.windows.task == "generative":
            decoder = GeneratedAnswers(test.examples, self.tokenizer)
        else:
            decoder = SpanDecoder(test.examples, self.spans, null=self.null_threshold is not None)
        decode(predict, decoder, test.features.dataset, Padding.of(self.tokenizer), self.batch_size)
        n_best = {}
        nulls = {}
        for n_best_of_rank, nulls_of_rank in ranks.gather((decoder.n_best(N_BEST), decoder.nulls())):
            n_best |= n_best_of_rank
            nulls |= nulls_of_rank
        ids = [example.id for example in test.examples]
        return Predictions({id_: n_best[id_] for id_ in ids}, {id_: nulls[id_] for id_ in ids if id_ in nulls})

    def score(self, predictions: Predictions, test: EvalSet) -> Score:
        """EM and F1 of what `predict` gave; at the threshold with the best F1 if the model may decline."""
        if predictions.nulls:
            best = self._best_thresholds(predictions, test, reachable=True)
            predictions = predictions.declining(best["best_f1_threshold"])
        return self.scorer(test.name).score(predictions.texts, test.golds)

    def with_threshold(self, predictions: Predictions, test: EvalSet) -> tuple["Evaluation", str]:
        """The evaluation at the threshold with the best F1 on `test`, half of a data set; and why."""
        if all(test.golds.values()):
            return self, f"half of {test.name}, which could choose another, has no question without an answer"
        best = self._best_thresholds(predictions, test, reachable=True)
        return replace(self, null_threshold=best["best_f1_threshold"]), f"the best by F1 on half of {test.name}"

    def with_calibrator(self, predictions: Predictions, test: EvalSet) -> tuple["Evaluation", str]:
        """The evaluation with a calibrator fitted to these answers, if there are enough; and a line for the log."""
        given = predictions.declining(self.null_threshold)
        fitted = fit(given.features(test.examples), self._right(given, test), clusters(test.examples).tolist())
        calibrator = fitted if isinstance(fitted, Calibrator) else None
        return replace(self, calibrator=calibrator), str(fitted)

    def _right(self, predictions: Predictions, test: EvalSet) -> list[float]:
        """The exact match of each question."""
        return [em for em, _ in self.scorer(test.name).by_question(predictions.texts, test.golds).values()]

    def _best_thresholds(self, predictions: Predictions, test: EvalSet, *, reachable: bool = False) -> dict[str, float]:
        scorer = self.scorer(test.name)
        return scorer.best_thresholds(predictions.texts, test.golds, predictions.odds, reachable=reachable)
