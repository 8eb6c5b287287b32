"""Evaluates a model on any number of data sets: windows, predictions, scores, files."""

from collections.abc import Callable
from dataclasses import dataclass
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
from swep_ds.evaluation.scores import exact_match, score
from swep_ds.evaluation.spans import SpanDecoder, SpanSettings
from swep_ds.ranks.writing import write_on_rank0

CACHE = Path(datasets_config.HF_DATASETS_CACHE) / "swep_ds"  # tokenised windows; moves with HF_HOME


@dataclass(frozen=True)
class EvalSet:
    """A tokenised test set."""

    name: str
    examples: list[Example]
    features: Features


@dataclass(frozen=True)
class Evaluation:
    """How to evaluate, the same for every data set."""

    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    spans: SpanSettings
    batch_size: int  # windows per rank
    cache: Path  # folder for tokenised windows

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
        """Scores by data set, in order, on every rank; rank 0 writes `predictions/` and `confidence/`. Collective.

        Raises:
            WriteFailed: on all ranks.
        """
        scores: Scores = {}
        for test in tests:
            cut = f", {test.features.questions_cut} questions cut" if test.features.questions_cut else ""
            say(f"evaluating {test.name}: {len(test.examples)} questions in {len(test.features.dataset)} windows{cut}")
            answers, confidences = self.answer(outputs, test)
            golds = {example.id: example.answers for example in test.examples}
            right = [exact_match(answers[id_], accepted) for id_, accepted in golds.items()]
            scores[test.name] = score(answers, golds) | calibration(list(confidences.values()), right)
            write_on_rank0(partial(write_predictions, folder, test.name, answers, confidences), folder)
        return scores

    def score(self, outputs: Outputs, test: EvalSet) -> Score:
        """EM and F1, on every rank. Collective."""
        answers, _ = self.answer(outputs, test)
        return score(answers, {example.id: example.answers for example in test.examples})

    def answer(self, outputs: Outputs, test: EvalSet) -> tuple[dict[str, str], dict[str, float]]:
        """Answers and their probabilities by question id, in the order of the examples, on every rank. Collective."""
        decoder = self.decoder(test.examples, best_only=True)
        decode(outputs, decoder, test.features.dataset, self.padding, self.batch_size)
        parts = ranks.gather((decoder.answers(), decoder.confidences()))
        by_id = {id_: (answers[id_], confidences[id_]) for answers, confidences in parts for id_ in answers}
        answered = {example.id: by_id[example.id] for example in test.examples}
        return {id_: text for id_, (text, _) in answered.items()}, {id_: value for id_, (_, value) in answered.items()}

    def decoder(self, examples: list[Example], *, best_only: bool = False) -> Decoder:
        """The decoder for the task of these windows; `best_only` as in `SpanDecoder`."""
        if self.windows.task == "generative":
            return GeneratedAnswers(examples, self.tokenizer)
        return SpanDecoder(examples, self.spans, best_only=best_only)
