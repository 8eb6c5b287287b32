"""Predictions of a model for a data set, spread over ranks: every question answered once, by one rank."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from swep_ds import ranks
from swep_ds.console import Console, Progress
from swep_ds.data.batches import Batch, Padding
from swep_ds.data.readers import Example

Columns = Mapping[str, np.ndarray | pa.ListArray]  # of windows; lists stay as Arrow has them
Outputs = Callable[[Batch], tuple[Tensor, ...]]  # what a model's `predict` gives for a batch


class Decoder(Protocol):
    """Makes answers of a model's outputs: `SpanDecoder`, `GeneratedAnswers`."""

    examples: Sequence[Example]

    def add(self, columns: Columns, *outputs: Tensor) -> None: ...

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
    stored = features.with_format("arrow")

    def read(number: int) -> tuple[Columns, Batch]:
        columns = read_columns(stored, mine[number] if number < len(mine) else np.array([0]))
        return columns, _batch(columns, padding)

    calls = max(ranks.gather(len(mine)))
    coming = read(0)
    for number in _with_progress(calls):
        ranks.progress(f"evaluation, batch {number + 1}")
        columns, batch = coming
        result = outputs(batch.to(ranks.device()))
        if number + 1 < calls:
            coming = read(number + 1)  # while a GPU is at the result
        if number < len(mine):
            decoder.add(columns, *result)


def read_columns(stored: datasets.Dataset, rows: np.ndarray) -> Columns:
    """Some rows of a data set in "arrow" format."""
    [table] = stored[rows.tolist()].combine_chunks().to_batches()
    return {
        field.name: column if pa.types.is_list(field.type) else column.to_numpy()
        for field, column in zip(table.schema, table.columns, strict=True)
    }


def _batch(columns: Columns, padding: Padding) -> Batch:
    rows = {name: _rows(columns[name]) for name in ("input_ids", "token_type_ids") if name in columns}
    lengths = tuple(columns["length"].tolist())
    return Batch(**padding.inputs(rows, max(lengths)), lengths=lengths)


def _rows(lists: pa.ListArray) -> list[np.ndarray]:
    values = lists.values.to_numpy()  # those of other rows too, where `lists` is a slice
    return [values[begin:end] for begin, end in pairwise(lists.offsets.to_numpy().tolist())]


def _batches(features: datasets.Dataset, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """This rank's rows: all windows of every `world_size`-th question, longest first so that memory peaks at once."""
    example, length = (np.asarray(features[name][:]) for name in ("example", "length"))
    rows = np.flatnonzero(example % world_size == rank)
    rows = rows[np.argsort(-length[rows], kind="stable")]
    return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]


def _with_progress(count: int) -> Iterator[int]:
    """0 .. count - 1, with progress on rank 0."""
    with Progress(Console(quiet=not ranks.is_main()), "batches", count) as progress:
        for number in range(count):
            yield number
            progress.update(number + 1)
