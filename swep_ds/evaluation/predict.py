"""Predictions of a model for a data set, spread over ranks: every question answered once, by one rank."""

from collections.abc import Callable, Sequence

import datasets
import numpy as np
import torch
from torch import Tensor

from swep_ds import distributed as ranks
from swep_ds.data.batches import Batch, Padding
from swep_ds.data.readers import Example
from swep_ds.evaluation.spans import SpanDecoder, SpanSettings

Logits = Callable[[Batch], tuple[Tensor, Tensor]]


def predict(
    logits: Logits,
    examples: Sequence[Example],
    features: datasets.Dataset,
    padding: Padding,
    settings: SpanSettings,
    batch_size: int,
) -> dict[str, str]:
    """Answers by question id, the same on every rank. Arguments as `decode`."""
    answers: dict[str, str] = {}
    for part in ranks.gather(decode(logits, examples, features, padding, settings, batch_size).answers()):
        answers |= part
    return {example.id: answers[example.id] for example in examples}


@torch.no_grad()
def decode(
    logits: Logits,
    examples: Sequence[Example],
    features: datasets.Dataset,
    padding: Padding,
    settings: SpanSettings,
    batch_size: int,
) -> SpanDecoder:
    """Runs this rank's share of the windows through the model; the decoder then knows this rank's answers.

    All ranks run the same number of forward passes, as ZeRO-3 needs; one that has no windows left repeats the
    first one and drops the result.

    Args:
        logits: start and end logits [N, T] of a batch (the model in evaluation mode).
        features: the examples' windows (`build_features`).
        batch_size: windows per rank and forward pass.
    """
    mine = _batches(features, batch_size, ranks.rank(), ranks.world_size())
    decoder = SpanDecoder(examples, settings)
    for number in range(max(ranks.gather(len(mine)))):
        rows = mine[number] if number < len(mine) else np.array([0])
        columns = features[rows.tolist()]
        start, end = logits(Batch(**padding.inputs(columns, max(columns["length"]))).to(ranks.device()))
        if number < len(mine):
            decoder.add(columns, start, end)
    return decoder


def _batches(features: datasets.Dataset, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """This rank's rows: all windows of every `world_size`-th question, longest first so that memory peaks at once."""
    rows = np.flatnonzero(np.asarray(features["example"]) % world_size == rank)
    rows = rows[np.argsort(-np.asarray(features["length"])[rows], kind="stable")]
    return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
