"""Rows of tables: CSV, Parquet, Arrow, and data sets that `datasets` loaded."""

import csv
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.data.fields import excerpt
from swep_ds.data.layouts import COLUMNS, LABELS, column_of

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ROWS_AT_A_TIME = 100  # converted to Python objects at once: many rows may repeat one long context

Rows = Iterator[dict[str, Any]]


def is_arrow(content: bytes) -> bool:
    """Whether the bytes begin like Parquet, an Arrow file or an Arrow stream."""
    return content.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"))


def arrow_rows(content: bytes, labels: bool) -> Rows:
    """The rows of a Parquet or Arrow file. `labels`: whether they must have answers.

    Raises InputError: the file is damaged, lacks a column or has one twice.
    """
    with as_input_error("damaged data file", "fetch it or save it again"):
        if content.startswith(b"PAR1"):
            file = pq.ParquetFile(pa.BufferReader(content))
            table = file.read(_columns(file.schema_arrow.names, labels))
        elif content.startswith(b"ARROW1"):
            table = pa.ipc.open_file(content).read_all()
        elif content.endswith(END_OF_STREAM):
            table = pa.ipc.open_stream(content).read_all()
        else:  # pyarrow would take the end of the file for the end of the stream, and lose the rest
            raise ValueError("it is cut off")
    for batch in table.select(_columns(table.column_names, labels)).to_batches(ROWS_AT_A_TIME):
        yield from batch.to_pylist()


def dataset_rows(dataset: Any, labels: bool) -> Rows:
    """The rows of a `datasets.Dataset`. Otherwise as `arrow_rows`."""
    dataset = dataset.select_columns(_columns(dataset.column_names, labels)).with_format("arrow")
    for table in dataset.iter(ROWS_AT_A_TIME):
        yield from table.to_pylist()


def csv_delimiter(header: str) -> str | None:
    """What separates the columns of a text table, by its first line: a comma, a semicolon or a tab; None = nothing."""
    for delimiter in ",;\t":
        if {"question", "context"} & {column_of(name.strip(' "')) for name in header.split(delimiter)}:
            return delimiter
    most = max(",;\t", key=header.count)
    return most if most in header else None


def csv_rows(text: str, delimiter: str, labels: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a text table with a header, without empty ones, each with its place. `labels`: whether they must have
    answers. Rows are counted as a spreadsheet does, from the header on, which is row 1.

    Raises InputError: a quoted text is not closed or is followed by more text, as one with quotes that are not doubled;
    a row has more or fewer cells than the header; or the header lacks a column or has one twice.
    """
    csv.field_size_limit(sys.maxsize)  # a context may be long
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    try:
        for number, cells in enumerate(reader, 1):
            if not any(cells):
                pass
            elif not header:
                _columns(cells, labels)
                header = [column_of(name) for name in cells]
            elif len(cells) != len(header):
                raise csv.Error(f"it has {len(cells)} cells, and the header {len(header)}")
            else:
                row = dict(zip(header, cells, strict=True))
                if "id" in row:  # pandas makes 7.0 of the number 7 in a column with gaps
                    row["id"] = re.sub(r"^(\d+)\.0$", r"\1", row["id"])
                yield f"row {number}", row
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"malformed table of text from line {line} on ({error}): give every row the header's columns; put a text "
            "with quotation marks in quotation marks and double its own"
        ) from None


def _columns(names: Sequence[str], labels: bool) -> list[str]:
    """The names that stand for `COLUMNS`. Raises InputError: two stand for the same one, or a needed one is missing."""
    columns = [column_of(name) for name in names]
    for column in COLUMNS:
        if columns.count(column) > 1:
            raise InputError(f"has the column {column!r} {columns.count(column)} times; keep one")
    missing = [name for name in ("question", "context") if name not in columns]
    if labels and not LABELS.intersection(columns):
        missing.append("answer")
    if missing:
        raise InputError(
            f"has no column {' and no column '.join(missing)} (found: {excerpt(list(names))}): rename yours"
        )
    return [name for name in names if column_of(name) in COLUMNS]
