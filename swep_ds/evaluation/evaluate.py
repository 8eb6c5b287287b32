"""Evaluates a model on any number of data sets: windows, predictions, scores, files."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from datasets import config as datasets_config
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.console import Console
from swep_ds.data.batches import Padding
from swep_ds.data.features import Features, build_features
from swep_ds.data.readers import Example
from swep_ds.data.windows import WindowSettings
from swep_ds.evaluation.calibration import calibration
from swep_ds.evaluation.generated import GeneratedAnswers
from swep_ds.evaluation.predict import Decoder, Outputs, decode
from swep_ds.evaluation.results import Score, Scores, write_predictions
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import Null, SpanDecoder, SpanSettings
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
        """Accepted answers by question id."""
        return {example.id: example.answers for example in self.examples}


@dataclass(frozen=True)
class Predictions:
    """By question id, in the order of the examples: the best answer, its probability and, of a model that may decline,
    the null answer."""

    texts: dict[str, str]
    confidences: dict[str, float]
    nulls: dict[str, Null]

    @property
    def odds(self) -> dict[str, float]:
        return {id_: null.odds for id_, null in self.nulls.items()}

    def declining(self, threshold: float | None) -> "Predictions":
        """With "" and its probability for each question whose null odds are above the threshold; None declines none."""
        declined = [id_ for id_, odds in self.odds.items() if threshold is not None and odds > threshold]
        confidences = {id_: self.nulls[id_].probability for id_ in declined}
        return Predictions(self.texts | dict.fromkeys(declined, ""), self.confidences | confidences, self.nulls)


@dataclass(frozen=True)
class Evaluation:
    """How to evaluate."""

    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    spans: SpanSettings
    batch_size: int  # windows per rank
    cache: Path  # folder for tokenised windows
    scorers: Mapping[str, Scorer] = field(default_factory=dict)  # by data set; others have SQuAD's rules
    null_threshold: float | None = None  # of null odds, above which a question is declined; None = the model cannot

    @property
    def padding(self) -> Padding:
        return Padding.of(self.tokenizer)

    def prepare(self, tests: dict[str, list[Example]]) -> list[EvalSet]:
        """Tokenises data sets by name; several ranks call it in `local_rank_zero_first`, for the cache."""
        options = {"settings": self.windows, "training": False, "cache_dir": self.cache}
        options["console"] = Console(quiet=not ranks.is_main())
        tokenise = partial(build_features, tokenizer=self.tokenizer, **options)
        return [EvalSet(name, examples, tokenise(examples)) for name, examples in tests.items()]

    def run(self, outputs: Outputs, tests: list[EvalSet], folder: Path, say: Callable[[str], None]) -> Scores:
        """Scores by data set, in order, on every rank; rank 0 writes `predictions/`, `confidence/` and, of a model that
        may decline a question, `null_odds/`. Collective.

        Raises:
            WriteFailed: on all ranks.
        """
        scores: Scores = {}
        for test in tests:
            cut = f", {test.features.questions_cut} questions cut" if test.features.questions_cut else ""
            say(f"evaluating {test.name}: {len(test.examples)} questions in {len(test.features.dataset)} windows{cut}")
            predictions, golds, scorer = self.predict(outputs, test), test.golds, self.scorer(test.name)
            given = predictions.declining(self.null_threshold)
            right = [em for em, _ in scorer.by_question(given.texts, golds).values()]
            scores[test.name] = scorer.score(given.texts, golds) | calibration(list(given.confidences.values()), right)
            if predictions.nulls and not all(golds.values()):
                scores[test.name] |= scorer.best_thresholds(predictions.texts, golds, predictions.odds)
            odds = predictions.odds if predictions.nulls else None
            write_on_rank0(partial(write_predictions, folder, test.name, given.texts, given.confidences, odds), folder)
        return scores

    def score(self, outputs: Outputs, test: EvalSet) -> Score:
        """EM and F1, on every rank; at the threshold with the best F1 if the model may decline. Collective."""
        predictions, scorer = self.predict(outputs, test), self.scorer(test.name)
        if predictions.nulls:
            predictions = predictions.declining(self._best_threshold(predictions, test))
        return scorer.score(predictions.texts, test.golds)

    def choose_threshold(self, outputs: Outputs, test: EvalSet) -> float:
        """The threshold on null odds with the best F1 on `test`, on every rank. Collective."""
        return self._best_threshold(self.predict(outputs, test), test)

    def _best_threshold(self, predictions: Predictions, test: EvalSet) -> float:
        odds = predictions.odds
        below = math.nextafter(min(odds.values()), -math.inf)
        return self.scorer(test.name).best_thresholds(predictions.texts, test.golds, odds, below)["best_f1_threshold"]

    def predict(self, outputs: Outputs, test: EvalSet) -> Predictions:
        """The best answer to each question, none declined, on every rank. Collective."""
        decoder = self.decoder(test.examples, best_only=True)
        decode(outputs, decoder, test.features.dataset, self.padding, self.batch_size)
        nulls = decoder.nulls() if self.null_threshold is not None else {}
        parts = ranks.gather((decoder.answers(), decoder.confidences(), nulls))
        ids = [example.id for example in test.examples]
        merged = [{id_: value for part in kind for id_, value in part.items()} for kind in zip(*parts, strict=True)]
        return Predictions(*({id_: kind[id_] for id_ in ids if id_ in kind} for kind in merged))

    def decoder(self, examples: list[Example], *, best_only: bool = False) -> Decoder:
        """The decoder for the task of these windows; `best_only` as in `SpanDecoder`."""
        if self.windows.task == "generative":
            return GeneratedAnswers(examples, self.tokenizer)
        return SpanDecoder(examples, self.spans, best_only=best_only, null=self.null_threshold is not None)

    def scorer(self, name: str) -> Scorer:
        """The rules for a data set."""
        return self.scorers.get(name, Scorer())
