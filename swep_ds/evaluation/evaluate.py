"""Evaluation of a model on any number of data sets: windows, predictions, scores, files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import config as datasets_config
from transformers import PreTrainedTokenizerFast

from swep_ds import distributed as ranks
from swep_ds.data.batches import Padding
from swep_ds.data.features import Features, WindowSettings, build_features
from swep_ds.data.readers import Example
from swep_ds.evaluation.predict import Logits, predict
from swep_ds.evaluation.results import Scores, write_predictions
from swep_ds.evaluation.scores import score
from swep_ds.evaluation.spans import SpanSettings

CACHE = Path(datasets_config.HF_DATASETS_CACHE) / "swep_ds"  # of tokenised windows; moves with HF_HOME


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

    def features(self, examples: list[Example]) -> Features:
        return ranks.first_on_each_node(
            lambda: build_features(examples, self.tokenizer, self.windows, training=False, cache_dir=self.cache)
        )

    def run(self, logits: Logits, tests: dict[str, list[Example]], folder: Path, say: Callable[[str], None]) -> Scores:
        """Scores by data set, in order, on every rank; rank 0 writes `predictions/` under `folder`."""
        scores: Scores = {}
        for name, examples in tests.items():
            features = self.features(examples)
            cut = f", {features.questions_cut} questions cut" if features.questions_cut else ""
            say(f"evaluating {name}: {len(examples)} questions in {len(features.dataset)} windows{cut}")
            answers = predict(logits, examples, features.dataset, self.padding, self.spans, self.batch_size)
            if ranks.is_main():
                write_predictions(folder, name, answers)
            scores[name] = score(answers, {example.id: example.answers for example in examples})
        return scores
