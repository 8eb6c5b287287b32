"""Evaluation of a model on any number of data sets: windows, predictions, scores, files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from swep_ds import distributed as ranks
from swep_ds.data.batches import Batch, Padding
from swep_ds.data.features import Features, WindowSettings, build_features
from swep_ds.data.readers import Example
from swep_ds.evaluation.predict import predict
from swep_ds.evaluation.results import Scores, write_predictions
from swep_ds.evaluation.scores import score
from swep_ds.evaluation.spans import SpanSettings


@dataclass(frozen=True)
class Evaluation:
    """How to evaluate: the same for every data set."""

    tokenizer: object
    windows: WindowSettings
    spans: SpanSettings
    batch_size: int  # windows per rank
    cache: Path  # of tokenised windows

    def features(self, examples: list[Example]) -> Features:
        return ranks.first_on_each_node(
            lambda: build_features(examples, self.tokenizer, self.windows, training=False, cache_dir=self.cache)
        )

    def run(
        self,
        logits: Callable[[Batch], tuple[Tensor, Tensor]],
        tests: dict[str, list[Example]],
        folder: Path,
        say: Callable[[str], None],
    ) -> Scores:
        """Scores by data set, in order, on every rank; rank 0 writes `predictions/` under `folder`."""
        scores: Scores = {}
        for name, examples in tests.items():
            features = self.features(examples)
            cut = f", {features.questions_cut} questions cut" if features.questions_cut else ""
            say(f"evaluating {name}: {len(examples)} questions in {len(features.dataset)} windows{cut}")
            predictions = predict(
                logits,
                examples,
                features.dataset,
                Padding.of(self.tokenizer),
                self.spans,
                batch_size=self.batch_size,
                device=ranks.device(),
            )
            if ranks.is_main():
                write_predictions(folder, name, predictions)
            scores[name] = score(predictions, {example.id: example.answers for example in examples})
        return scores


def model_logits(model: torch.nn.Module) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """Logits of a plain Hugging Face model."""

    def logits(batch: Batch) -> tuple[Tensor, Tensor]:
        types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, **types)
        return output.start_logits, output.end_logits

    return logits
