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

WORKBOOK = "a workbook of Excel or LibreOffice: save it as CSV UTF-8"
OTHER_FORMATS = {  # first bytes -> what the file is, and the fix
    b"\xd0\xcf\x11\xe0": WORKBOOK,
    b"PK\x03\x04": "a zip archive: unpack it, and name the file in it",
    b"BZh": "compressed by bzip2: unpack it (bunzip2)",
    b"\xfd7zXZ": "compressed by xz: unpack it (unxz)",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard: unpack it (unzstd)",
}
ARROW = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")  # first bytes of Parquet, an Arrow file and an Arrow stream
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
LABELS = {"answers", "answer", "is_impossible", "detected_answers"}
MAX_HEADER = 4096  # characters of a file's first line that are looked at
ROWS_AT_A_TIME = 100  # converted to Python objects at once: many rows may repeat one long context


def file_items(path: Path, labels: bool) -> Items:
    """The items of a file. `labels`: whether its questions must have answers.

    Raises InputError: it is empty, damaged, of another format, or a table without a column.
    """
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        with as_input_error("damaged gzip file", "fetch it again"):
            content = gzip.decompress(content)
    if content.startswith(ARROW):
        yield from numbered(_arrow_rows(content, labels))
        return
    text = re.sub(r"\Asep=[,;\t]\r?\n", "", _text(content))  # which Excel writes to itself
    header, *_ = text[:MAX_HEADER].lstrip().splitlines() or [""]
    if not header:
        raise InputError("is empty; give a data set with at least one question")
    if header.startswith(("{", "[")):
        yield from _json_items(text)
    elif delimiter := _csv_delimiter(header):
        yield from _csv_rows(text, delimiter, labels)
    else:
        raise InputError(
            f"holds neither JSON nor Parquet, Arrow or CSV (whose first line names the columns question, context and "
            f"answers), but begins with {excerpt(header)}; save it as SQuAD or MRQA JSON, or as rows in one of these"
        )


def numbered(rows: Iterable[Any]) -> Items:
    return ((f"row {number}", row) for number, row in enumerate(rows))


def _text(content: bytes) -> str:
    for begin, what in OTHER_FORMATS.items():
        if content.startswith(begin):
            if b"xl/workbook." in content or b"opendocument.spreadsheet" in content:
                what = WORKBOOK
            raise InputError(f"is {what}")
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"is neither Parquet nor Arrow nor UTF-8 text (byte {error.start}): save it as UTF-8 (in Excel: CSV UTF-8)"
        ) from None


# JSON


def _json_items(text: str) -> Items:
    """The items of a JSON document or of JSON lines, whose places are the lines."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data" or "\n" in text[: error.pos].strip():
            raise InputError(_not_json(error, error.lineno)) from None
        return _json_lines(text)
    return document_items(document)


def _json_lines(text: str) -> Items:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(_not_json(error, number)) from None
            if not (isinstance(value, dict) and "header" in value):  # MRQA's first line
                yield f"line {number}", value


def _not_json(error: json.JSONDecodeError, line: int) -> str:
    return f"not JSON: line {line}, column {error.colno}: {error.msg}; correct it or fetch the file again"


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


def _arrow_rows(content: bytes, labels: bool) -> Iterator[dict[str, Any]]:
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


def dataset_rows(dataset: Any, labels: bool) -> Iterator[dict[str, Any]]:
    """The rows of a `datasets.Dataset`. `labels`: whether they must have answers.

    Raises InputError: a column is missing, or is there twice.
    """
    dataset = dataset.select_columns(_columns(dataset.column_names, labels)).with_format("arrow")
    for table in dataset.iter(ROWS_AT_A_TIME):
        yield from table.to_pylist()


def _csv_delimiter(header: str) -> str | None:
    """What separates the columns of a text table, by its first line: a comma, a semicolon or a tab; None = nothing."""
    for delimiter in ",;\t":
        if {"question", "context"} & {column_of(name.strip(' "')) for name in header.split(delimiter)}:
            return delimiter
    most = max(",;\t", key=header.count)
    return most if most in header else None


def _csv_rows(text: str, delimiter: str, labels: bool) -> Items:
    """The rows of a text table with a header, without empty ones. They are counted as a spreadsheet does, from the
    header on, which is row 1."""
    csv.field_size_limit(sys.maxsize)  # a context may be long
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    try:
        for number, cells in enumerate(reader, 1):
            if any(cells) and not header:
                _columns(cells, labels)
                header = [column_of(name) for name in cells]
            elif any(cells):
                if len(cells) != len(header):
                    raise csv.Error(f"it has {len(cells)} cells, and the header {len(header)}")
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
