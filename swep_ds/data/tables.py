"""Rows of tables: CSV, Parquet, Arrow, and data sets that `datasets` loaded."""

import csv
import io
import itertools
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
MAX_HEADER = 4096  # characters of a text table's first line

Rows = Iterator[dict[str, Any]]


def is_arrow(content: bytes) -> bool:
    """Whether the bytes begin like Parquet, an Arrow file or an Arrow stream."""
    return content.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"))


def arrow_rows(source: str, content: bytes, labels: bool) -> Rows:
    """The rows of a Parquet or Arrow file. `labels`: whether they must have answers.

    Raises InputError: the file is damaged, lacks a column or has one twice.
    """
    with as_input_error(f"{source}: damaged data file", "fetch it or save it again"):
        if content.startswith(b"PAR1"):
            file = pq.ParquetFile(pa.BufferReader(content))
            columns = _columns(source, file.schema_arrow.names, labels)
            batches = file.iter_batches(ROWS_AT_A_TIME, columns=columns)
        else:
            if content.startswith(b"ARROW1"):
                table = pa.ipc.open_file(content).read_all()
            elif content.endswith(END_OF_STREAM):
                table = pa.ipc.open_stream(content).read_all()
            else:  # pyarrow would take the end of the file for the end of the stream, and lose the rest
                raise ValueError("it is cut off")
            batches = table.select(_columns(source, table.schema.names, labels)).to_batches(ROWS_AT_A_TIME)
        for batch in batches:
            yield from batch.to_pylist()


def dataset_rows(source: str, dataset: Any, labels: bool) -> Rows:
    """The rows of a `datasets.Dataset`. Otherwise as `arrow_rows`."""
    with as_input_error(f"{source}: damaged data set", "fetch it or save it again"):
        dataset = dataset.select_columns(_columns(source, dataset.column_names, labels)).with_format("arrow")
        for table in dataset.iter(ROWS_AT_A_TIME):
            yield from table.to_pylist()


def csv_delimiter(text: str) -> str | None:
    """What separates the columns of a text table: a comma, a semicolon or a tab. None: the text is JSON, or its
    first line has no columns."""
    header, *_ = text[:MAX_HEADER].lstrip().splitlines() or [""]
    if header.startswith(("{", "[")):
        return None
    for delimiter in ",;\t":
        if {"question", "context"} & {column_of(name.strip(' "')) for name in header.split(delimiter)}:
            return delimiter
    most = max(",;\t", key=header.count)
    return most if most in header else None


def csv_rows(source: str, text: str, delimiter: str, labels: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a text table with a header, without empty ones, each with its place. `labels`: whether they must have
    answers. Rows are counted as a spreadsheet does, from the header on, which is row 1.

    Raises InputError: a quoted text is not closed or is followed by more text, as one with quotes that are not doubled;
    a row has more or fewer cells than the header; or the header lacks a column or has one twice.
    """
    csv.field_size_limit(sys.maxsize)  # a context may be long
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    fix = "give every row the header's columns; put a text with quotation marks in quotation marks and double its own"
    header: list[str] = []
    for number in itertools.count(1):
        with as_input_error(f"{source}: malformed table of text from line {reader.line_num + 1} on", fix):
            cells = next(reader, None)
            if cells and header and len(cells) != len(header):
                raise ValueError(f"it has {len(cells)} cells, and the header {len(header)}")
        if cells is None:
            return
        if header and any(cells):
            row = dict(zip(header, cells, strict=True))
            if "id" in row:  # pandas makes 7.0 of the number 7 in a column with gaps
                row["id"] = re.sub(r"^(\d+)\.0$", r"\1", row["id"])
            yield f"row {number}", row
        elif any(cells):
            _columns(source, cells, labels)
            header = [column_of(name) for name in cells]


def _columns(source: str, names: Sequence[str], labels: bool) -> list[str]:
    """The names that stand for `COLUMNS`. Raises InputError: two stand for the same one, or a needed one is missing."""
    columns = [column_of(name) for name in names]
    for column in COLUMNS:
        if columns.count(column) > 1:
            raise InputError(f"{source}: has the column {column!r} {columns.count(column)} times; keep one")
    missing = [name for name in ("question", "context") if name not in columns]
    if labels and not LABELS.intersection(columns):
        missing.append("answer")
    if missing:
        raise InputError(
            f"{source}: has no column {' and no column '.join(missing)} (found: {excerpt(list(names))}): rename yours"
        )
    return [name for name in names if column_of(name) in COLUMNS]
