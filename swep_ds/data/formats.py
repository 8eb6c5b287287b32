"""What a file holds: recognises its format by its content and gives its items."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.data.fields import excerpt, field
from swep_ds.data.layouts import column_of
from swep_ds.data.tables import arrow_rows, csv_delimiter, csv_rows, is_arrow

Items = Iterator[tuple[str, Any]]  # articles, paragraphs or rows, each with its place, such as "row 7"
WORKBOOK = "a workbook of Excel or LibreOffice: save it as CSV UTF-8"
OTHER_FORMATS = {  # first bytes -> what the file is, and the fix
    b"\xd0\xcf\x11\xe0": WORKBOOK,
    b"PK\x03\x04": "a zip archive: unpack it, and name the file in it",
    b"7z\xbc\xaf": "a 7-Zip archive: unpack it, and name the file in it",
    b"BZh": "compressed by bzip2: unpack it (bunzip2)",
    b"\xfd7zXZ": "compressed by xz: unpack it (unxz)",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard: unpack it (unzstd)",
}
MAX_HEADER = 4096  # characters of a file's first line that are looked at


def file_items(path: Path, labels: bool) -> Items:
    """The items of a file. `labels`: whether its questions must have answers.

    Raises InputError: it is empty, damaged, of another format, or a table without a column.
    """
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        with as_input_error("damaged gzip file", "fetch it again"):
            content = gzip.decompress(content)
    if is_arrow(content):
        yield from numbered(arrow_rows(content, labels))
        return
    text = re.sub(r"\Asep=[,;\t]\r?\n", "", _text(content))  # which Excel writes to itself
    header, *_ = text[:MAX_HEADER].lstrip().splitlines() or [""]
    if not header:
        raise InputError("is empty; give a data set with at least one question")
    if header.startswith(("{", "[")):
        yield from _json_items(text)
    elif delimiter := csv_delimiter(header):
        yield from csv_rows(text, delimiter, labels)
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
        near = content[max(0, error.start - 20) : error.start + 20].decode("cp1252", "replace")
        raise InputError(
            f"is neither Parquet nor Arrow nor UTF-8 text (byte {error.start}); if {excerpt(near)} is its text there, "
            "it is Windows-1252, as Excel's plain CSV is: save it as UTF-8 (in Excel: CSV UTF-8)"
        ) from None


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
        if len(set(map(len, cells))) > 1:
            raise InputError("its columns have different numbers of rows: write it with orient='records'")
        return numbered(dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True))
    if "data" in document:
        return ((f"data[{number}]", article) for number, article in enumerate(field(document, "data", list)))
    if isinstance(document.get("rows"), list):
        return numbered(row["row"] if isinstance(row, dict) and "row" in row else row for row in document["rows"])
    if document and all(isinstance(row, dict) for row in document.values()):  # orient="index"
        return numbered(document.values())
    return iter([("line 1", document)])
