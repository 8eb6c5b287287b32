"""What a file holds: recognises its format by its content and gives its items."""

import csv
import gzip
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.data.fields import excerpt, field
from swep_ds.data.layouts import COLUMNS, column_of

Items = Iterator[tuple[str, Any]]  # articles, paragraphs or rows, each with its place, such as "row 7"

ARROW = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")  # first bytes of Parquet, an Arrow file and an Arrow stream
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
MAX_HEADER = 4096  # characters of a file's first line that are looked at
ROWS_AT_A_TIME = 100  # converted to Python objects at once: many rows may repeat one long context


def file_items(path: Path) -> Items:
    """The items of a file. Raises InputError: it is empty, damaged, of another format, or a table without a column."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        with as_input_error("damaged gzip file", "fetch it again"):
            content = gzip.decompress(content)
    if content.startswith(ARROW):
        yield from numbered(table_rows(_arrow_table(content)))
        return
    text = re.sub(r"\Asep=[,;\t]\r?\n", "", _text(content))  # a hint for Excel
    header, *_ = text[:MAX_HEADER].lstrip().splitlines() or [""]
    delimiter = max(",;\t", key=header.count)
    if header.startswith(("{", "[")):
        yield from _json_items(text)
    elif delimiter in header:
        yield from _csv_rows(text, delimiter)
    else:
        raise InputError(
            f"holds neither JSON nor Parquet, Arrow or CSV (whose first line names the columns question, context and "
            f"answers), but begins with {excerpt(header)}; save it as SQuAD or MRQA JSON, or as rows in one of these"
        )


def numbered(rows: Iterable[Any]) -> Items:
    return ((f"row {number}", row) for number, row in enumerate(rows))


def _text(content: bytes) -> str:
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"is neither Parquet nor Arrow nor UTF-8 text (byte {error.start}): save text as UTF-8, save a workbook of "
            "Excel or LibreOffice as CSV UTF-8, and unpack an archive"
        ) from None


# JSON


def _json_items(text: str) -> Items:
    """The items of a JSON document or of JSON lines, whose places are the lines."""
    try:
        return document_items(json.loads(text))
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise _not_json(error, error.lineno) from None
    return _json_lines(text)


def _json_lines(text: str) -> Items:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise _not_json(error, number) from None
            if not (isinstance(value, dict) and "header" in value):  # MRQA's first line
                yield f"line {number}", value


def _not_json(error: json.JSONDecodeError, line: int) -> InputError:
    return InputError(f"not JSON: line {line}, column {error.colno}: {error.msg}; correct it or fetch the file again")


def document_items(document: Any) -> Items:
    """The items of a JSON document: a list, SQuAD's {"data": [...]}, rows as the hub's viewer gives them, or a table in
    one of the forms of pandas (`to_json`, any `orient`) and of `Dataset.to_dict`. Anything else is a row."""
    if isinstance(document, list):
        return numbered(document)
    if "columns" in document and "data" in document:
        return numbered(dict(zip(document["columns"], row, strict=True)) for row in document["data"])
    columns = {name: cells for name, cells in document.items() if isinstance(cells, list | dict)}
    if {"question", "context"} <= {column_of(name) for name in columns}:
        cells = [list(cells.values()) if isinstance(cells, dict) else cells for cells in columns.values()]
        return numbered(dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True))
    if "data" in document:
        return ((f"data[{number}]", article) for number, article in enumerate(field(document, "data", list)))
    if isinstance(document.get("rows"), list):
        return numbered(row["row"] if isinstance(row, dict) and "row" in row else row for row in document["rows"])
    if document and all(isinstance(row, dict) for row in document.values()):  # orient="index"
        return numbered(document.values())
    return iter([("line 1", document)])


# Tables


def _arrow_table(content: bytes) -> pa.Table:
    with as_input_error("damaged data file", "fetch it or save it again"):
        if content.startswith(b"PAR1"):
            return pq.ParquetFile(pa.BufferReader(content)).read()
        if content.startswith(b"ARROW1"):
            return pa.ipc.open_file(content).read_all()
        if not content.endswith(END_OF_STREAM):  # pyarrow would take the end of the file for that of the stream
            raise ValueError("it is cut off")
        return pa.ipc.open_stream(content).read_all()


def table_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table, with the columns among `COLUMNS`. Raises InputError: as `_known_columns`."""
    for batch in table.select(_known_columns(table.column_names)).to_batches(ROWS_AT_A_TIME):
        yield from batch.to_pylist()


def _csv_rows(text: str, delimiter: str) -> Items:
    """The rows of a text table with a header, without empty ones. They are counted as a spreadsheet does, from the
    header on, which is row 1."""
    csv.field_size_limit(sys.maxsize)  # a context may be long
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    number = 0
    try:
        for number, cells in enumerate(reader, 1):
            if not any(cells):
                continue
            if not header:
                _known_columns(cells)
                header = [column_of(name) for name in cells]
                continue
            if len(cells) != len(header):
                raise InputError(f"row {number} has {len(cells)} cells, and the header {len(header)}: correct it")
            row = dict(zip(header, cells, strict=True))
            if "id" in row:  # pandas makes 7.0 of the number 7 in a column with gaps
                row["id"] = re.sub(r"^(\d+)\.0$", r"\1", row["id"])
            yield f"row {number}", row
    except csv.Error as error:
        raise InputError(
            f"malformed table of text after row {number} ({error}): put a text with quotation marks in quotation "
            "marks and double its own"
        ) from None


def _known_columns(names: Sequence[str]) -> list[str]:
    """The names that stand for `COLUMNS`. Raises InputError: two stand for the same one, or a needed one is missing."""
    columns = [column_of(name) for name in names]
    for column in COLUMNS:
        if columns.count(column) > 1:
            raise InputError(f"has the column {column!r} {columns.count(column)} times; keep one")
    for column in ("question", "context"):
        if column not in columns:
            raise InputError(f"has no column {column} (found: {excerpt(list(names))}): rename yours")
    return [name for name in names if column_of(name) in COLUMNS]
