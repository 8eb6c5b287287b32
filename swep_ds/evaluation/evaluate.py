"""Evaluation of a model on any number of data sets: windows, predictions, scores, files."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from datasets import config as datasets_config
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.data.batches import Padding
from swep_ds.data.features import Features, WindowSettings, build_features
from swep_ds.data.readers import Example
from swep_ds.evaluation.generated import GeneratedAnswers
from swep_ds.evaluation.predict import Decoder, Outputs, predict
from swep_ds.evaluation.results import Score, Scores, write_predictions
from swep_ds.evaluation.scores import score
from swep_ds.evaluation.spans import SpanDecoder, SpanSettings
from swep_ds.ranks.writing import write_on_rank0

CACHE = Path(datasets_config.HF_DATASETS_CACHE) / "swep_ds"  # of tokenised windows; moves with HF_HOME


@dataclass(frozen=True)
class EvalSet:
    """A data set to test on, tokenised."""

    name: str
    examples: list[Example]
    features: Features


@dataclass(frozen=True)
class Evaluation:
    """How to evaluate: the same for every data set."""

    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    spans: SpanSettings
    batch_size: int  # windows per rank
    cache: Path  # folder for tokenised windows

    @property
    def padding(self) -> Padding:
        return Padding.of(self.tokenizer)

    def prepare(self, tests: dict[str, list[Example]]) -> list[EvalSet]:
        """Tokenises data sets by name.

        Raises:
            InputError: on all ranks.
        """

        def features(examples: list[Example]) -> Features:
            return build_features(examples, self.tokenizer, self.windows, training=False, cache_dir=self.cache)

        return [
            EvalSet(name, examples, ranks.local_rank_zero_first(lambda examples=examples: features(examples)))
            for name, examples in tests.items()
        ]

    def run(self, outputs: Outputs, tests: list[EvalSet], folder: Path, say: Callable[[str], None]) -> Scores:
        """Scores by data set, in order, on every rank; rank 0 writes `predictions/` under `folder`.

        Raises:
            WriteFailed: on all ranks.
        """
        scores: Scores = {}
        for test in tests:
            windows, cut = test.features.dataset, test.features.questions_cut
            say(
                f"evaluating {test.name}: {len(test.examples)} questions in {len(windows)} windows"
                + (f", {cut} questions cut" if cut else "")
            )
            answers, scores[test.name] = self.score(outputs, test)
            write_on_rank0(partial(write_predictions, folder, test.name, answers), folder)
        return scores

    def decoder(self, examples: list[Example], *, best_only: bool = False) -> Decoder:
        """What makes answers of a model's outputs, for the task of these windows; `best_only`: as `SpanDecoder`."""
        if self.windows.task == "generative":
            return GeneratedAnswers(examples, self.tokenizer)
        return SpanDecoder(examples, self.spans, best_only=best_only)

    def score(self, outputs: Outputs, test: EvalSet) -> tuple[dict[str, str], Score]:
        """Answers by question id and their score, on every rank. All ranks call this together."""
        decoder = self.decoder(test.examples, best_only=True)
        answers = predict(outputs, decoder, test.features.dataset, self.padding, self.batch_size)
        return answers, score(answers, {example.id: example.answers for example in test.examples})
