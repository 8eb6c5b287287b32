"""Predicts answers for a data set, spread over the ranks: exactly one rank answers each question."""

from collections.abc import Callable
from itertools import pairwise

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.console import Console, Progress
from swep_ds.data.batches import Batch, Padding
from swep_ds.evaluation.generated import GeneratedAnswers
from swep_ds.evaluation.spans import Columns, SpanDecoder

Predict = Callable[[Batch], tuple[Tensor, ...]]  # a model's `predict`
Decoder = SpanDecoder | GeneratedAnswers


@torch.no_grad()
def decode(predict: Predict, decoder: Decoder, features: datasets.Dataset, padding: Padding, batch_size: int) -> None:
    """Runs this rank's share of the windows of the decoder's examples through a model in evaluation mode, `batch_size`
    at a time, and adds the outputs to the decoder. Collective.

    All ranks make the same number of calls, as ZeRO-3 requires: a rank without windows left repeats the first one and
    drops the result.
    """
    batches = _batches(features, batch_size, ranks.rank(), ranks.world_size())
    calls = max(ranks.gather(len(batches)))
    padded = batches + [np.array([0])] * (calls - len(batches))
    stored = features.with_format("arrow")
    with Progress(Console(quiet=not ranks.is_main()), "batches", calls) as progress:
        for number, rows in enumerate(padded, 1):
            ranks.progress(f"evaluation, batch {number}")
            columns = read_columns(stored, rows)
            result = predict(_batch(columns, padding).to(ranks.device()))
            if number <= len(batches):
                decoder.add(columns, *result)
            progress.update(number)


@torch.no_grad()
def decode_alone(predict: Predict, decoder: Decoder, windows: pa.Table, padding: Padding, batch_size: int) -> None:
    """As `decode`, in a process that need not be a rank."""
    for rows in _batches(windows, batch_size, rank=0, world_size=1):
        columns = read_columns(windows, rows)
        decoder.add(columns, *predict(_batch(columns, padding).to(ranks.device())))


def read_columns(windows: datasets.Dataset | pa.Table, rows: np.ndarray) -> Columns:
    """Rows of a table, or of a data set in "arrow" format, by column."""
    chosen = windows.take(rows) if isinstance(windows, pa.Table) else windows[rows.tolist()]
    [table] = chosen.combine_chunks().to_batches()
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        columns[field.name] = column if pa.types.is_list(field.type) else column.to_numpy()
    return columns


def _batch(columns: Columns, padding: Padding) -> Batch:
    rows = {}
    for name in {"input_ids", "token_type_ids"} & columns.keys():
        values = columns[name].values.to_numpy()  # if the list is a slice, those of other rows as well
        rows[name] = [values[begin:end] for begin, end in pairwise(columns[name].offsets.to_numpy().tolist())]
    lengths = tuple(columns["length"].tolist())
    return Batch(**padding.inputs(rows, max(lengths)), lengths=lengths)


def _batches(features: datasets.Dataset | pa.Table, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """This rank's rows: all windows of every `world_size`-th question, longest first so that memory peaks at once."""
    example = np.asarray(features["example"][:])
    length = np.asarray(features["length"][:])
    rows = np.flatnonzero(example % world_size == rank)
    rows = rows[np.argsort(-length[rows], kind="stable")]
    return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
