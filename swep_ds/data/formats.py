"""What a file holds: recognises its format by its content and gives its items."""

import gzip
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import parse_json, read_bytes
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
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def file_items(source: str, path: Path, labels: bool) -> Items:
    """The items of a file. `labels`: whether its questions must have answers.

    Raises InputError: it cannot be read, is empty, damaged, of another format, or a table without a column.
    """
    with as_input_error(f"{source}: cannot be read", "name a file that fits into memory"):
        content = read_bytes(path, source)
    if content.startswith(b"\x1f\x8b"):
        with as_input_error(f"{source}: damaged gzip file", "fetch it again"):
            content = gzip.decompress(content)
    if is_arrow(content):
        return numbered(arrow_rows(source, content, labels))
    text = _text(source, content)
    del content  # memory holds the file once
    text = re.sub(r"\Asep=[,;\t]\r?\n", "", text)  # which Excel writes to itself
    if delimiter := csv_delimiter(text):
        return csv_rows(source, text, delimiter, labels)
    return _json_items(source, text)


def numbered(rows: Iterable[Any]) -> Items:
    return ((f"row {number}", row) for number, row in enumerate(rows))


def _text(source: str, content: bytes) -> str:
    for begin, what in OTHER_FORMATS.items():
        if content.startswith(begin):
            if b"xl/workbook." in content or b"opendocument.spreadsheet" in content:
                what = WORKBOOK
            raise InputError(f"{source}: is {what}")
    encoding = "utf-8-sig"
    if content.startswith(UTF_16_MARKS):
        encoding = "utf-16"
    elif b"\0" in content[:2]:  # JSON and headers begin with an ASCII character
        encoding = "utf-16-le" if content[1:2] == b"\0" else "utf-16-be"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        if re.search(rb"[\0-\x08]", content):
            raise InputError(
                f"{source}: neither UTF-8 text (byte {error.start}) nor Parquet or Arrow; save it as UTF-8"
            ) from None
        text = content[max(0, error.start - 20) : error.start + 20].decode("cp1252", "replace")
        raise InputError(
            f"{source}: is not UTF-8 text (byte {error.start}) but probably Windows-1252, as Excel's plain CSV is, in "
            f"which it says {excerpt(text)} there; save it as UTF-8 (in Excel: CSV UTF-8)"
        ) from None


def _json_items(source: str, text: str) -> Items:
    """The items of a JSON document or of JSON lines, whose places are the lines."""
    lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line and not line.isspace())
    number, line = next(lines, (0, ""))
    if not line:
        raise InputError(f"{source}: is empty; give a data set with at least one question")
    if line.lstrip()[0] not in "{[":
        raise InputError(
            f"{source}: holds neither JSON nor Parquet, Arrow or CSV (whose first line names the columns question, "
            f"context and answers), but begins with {excerpt(line.strip())}; save it as SQuAD or MRQA JSON, or as rows "
            "in one of these"
        )
    following = next(lines, None)
    try:
        value = _json(source, line, number)
    except InputError:
        if following is None:
            raise
        return document_items(source, _json(source, text, 1))  # a document on several lines
    if following is None:
        return document_items(source, value)
    if isinstance(value, list) or "data" in value:
        raise InputError(f"{source}: line {following[0]}: text after the end of the JSON document; remove it")
    others = ((number, _json(source, line, number)) for number, line in itertools.chain([following], lines))
    items = others if "header" in value else itertools.chain([(number, value)], others)  # MRQA's first line
    return ((f"line {number}", item) for number, item in items)


def document_items(source: str, document: Any) -> Items:
    """The items of a JSON document: a list, SQuAD's {"data": [...]}, rows as the hub's viewer gives them, or a table in
    one of the forms of pandas (`to_json`, any `orient`) and of `Dataset.to_dict`. Anything else is a row."""
    if isinstance(document, list):
        return numbered(document)
    with as_input_error(f"{source}: malformed table", "write it with orient='records'"):
        if "columns" in document and "data" in document:
            return numbered([dict(zip(document["columns"], row, strict=True)) for row in document["data"]])
        columns = {name: cells for name, cells in document.items() if isinstance(cells, list | dict)}
        if {"question", "context"} <= {column_of(name) for name in columns}:
            cells = [list(cells.values()) if isinstance(cells, dict) else cells for cells in columns.values()]
            return numbered([dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)])
    if "data" in document:
        articles = field(document, "data", list, source)
        return ((f"data[{number}]", article) for number, article in enumerate(articles))
    if isinstance(document.get("rows"), list):
        return numbered(row["row"] if isinstance(row, dict) and "row" in row else row for row in document["rows"])
    if document and all(isinstance(row, dict) for row in document.values()):  # orient="index"
        return numbered(document.values())
    return iter([("line 1", document)])


def _json(source: str, text: str, line: int) -> Any:
    try:
        return parse_json(text, source, unique_keys=False, line=line)
    except InputError as error:
        raise InputError(f"{error}; correct it or fetch the file again") from None
