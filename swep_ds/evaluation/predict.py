"""Predictions of a model for a data set, spread over ranks: every question answered once, by one rank."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import datasets
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from swep_ds import distributed as ranks
from swep_ds.data.batches import Batch, Padding
from swep_ds.data.readers import Example

Outputs = Callable[[Batch], tuple[Tensor, ...]]  # what a model's `predict` gives for a batch
SECONDS_BETWEEN_LINES = 60


class Decoder(Protocol):
    """Makes answers of a model's outputs: `SpanDecoder`, `GeneratedAnswers`."""

    examples: Sequence[Example]

    def add(self, columns: Mapping[str, Sequence], *outputs: Tensor) -> None: ...

    def answers(self) -> dict[str, str]: ...


def predict(
    outputs: Outputs, decoder: Decoder, features: datasets.Dataset, padding: Padding, batch_size: int
) -> dict[str, str]:
    """Answers by question id, the same on every rank. Arguments as `decode`."""
    decode(outputs, decoder, features, padding, batch_size)
    answers: dict[str, str] = {}
    for part in ranks.gather(decoder.answers()):
        answers |= part
    return {example.id: answers[example.id] for example in decoder.examples}


@torch.no_grad()
def decode(outputs: Outputs, decoder: Decoder, features: datasets.Dataset, padding: Padding, batch_size: int) -> None:
    """Runs this rank's share of the windows through the model; the decoder then knows this rank's answers.

    All ranks make the same number of calls, as ZeRO-3 needs; one that has no windows left repeats the first one and
    drops the result.

    Args:
        outputs: the model's (in evaluation mode), for a batch.
        features: the windows of the decoder's examples (`build_features`).
        batch_size: windows per rank and call.
    """
    mine = _batches(features, batch_size, ranks.rank(), ranks.world_size())
    for number in _told(max(ranks.gather(len(mine)))):
        ranks.progress(f"evaluation, batch {number + 1}")
        rows = mine[number] if number < len(mine) else np.array([0])
        columns = features[rows.tolist()]
        lengths = tuple(columns["length"])
        result = outputs(Batch(**padding.inputs(columns, max(lengths)), lengths=lengths).to(ranks.device()))
        if number < len(mine):
            decoder.add(columns, *result)


def _batches(features: datasets.Dataset, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """This rank's rows: all windows of every `world_size`-th question, longest first so that memory peaks at once."""
    example, length = (np.asarray(features[name][:]) for name in ("example", "length"))
    rows = np.flatnonzero(example % world_size == rank)
    rows = rows[np.argsort(-length[rows], kind="stable")]
    return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]


def _told(count: int) -> Iterator[int]:
    """0 .. count - 1, with a progress bar on rank 0; where there is no terminal, with a line a minute."""
    console = Console(quiet=not ranks.is_main(), highlight=False)
    if console.is_terminal and ranks.is_main():
        yield from track(range(count), "predicting", console=console, transient=True)
        return
    told = time.monotonic()
    for number in range(count):
        yield number
        if time.monotonic() - told > SECONDS_BETWEEN_LINES:
            console.print(f"  {number + 1}/{count} batches")
            told = time.monotonic()
