"""What a file holds: recognises its format by its content, and gives its items.

A file has articles {title, paragraphs} as SQuAD has them, paragraphs {context, qas} (simpletransformers, MRQA) or rows.
"""

import csv
import gzip
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from swep_ds.common.errors import InputError, as_input_error, excerpt
from swep_ds.common.spreadsheets import ERRORS, sheet_rows
from swep_ds.data.annotations import tool_of
from swep_ds.data.answers import field
from swep_ds.data.columns import EXPORTS, Columns, check_names, column_names
from swep_ds.ranks.environment import warn_once

Items = Iterator[tuple[str, Any]]  # articles, paragraphs or rows, each with its place, such as "row 7"

ARROW = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")  # first bytes of Parquet, an Arrow file and an Arrow stream
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ROWS_AT_A_TIME = 100  # converted to Python objects at once: many rows may repeat one long context

_POINT_ZERO = re.compile(r"(0|[1-9]\d{0,14})\.0")


def file_items(path: Path, columns: Columns, sheet: str | None = None) -> Items:
    """The items of a file, `sheet` as in `sheet_rows`. Raises InputError: it is empty, damaged or of another format."""
    content = path.read_bytes()
    if content.startswith(b"version https://git-lfs"):
        raise InputError("a pointer of Git LFS, not the data: run `git lfs pull` in its repository")
    if content.startswith(b"\x1f\x8b"):
        with as_input_error("damaged gzip file", "fetch it again"):
            content = gzip.decompress(content)
    if content.startswith(ARROW):
        yield from numbered(table_rows(_arrow_table(content), columns))
        return
    if content.startswith(b"PK\3\4"):

        def is_header(names: list[str]) -> bool:
            return "question" in column_names(tuple(names), columns)

        for number, row in sheet_rows(content, sheet, is_header, lambda text: warn_once(f"{path.name}: {text}")):
            for name in column_names(tuple(row), columns).values():
                if row[name] in ERRORS:
                    raise InputError(f"row {number}: {name} shows the error {row[name]}: correct it in the spreadsheet")
            yield f"row {number}", row
        return
    fix = "save text as UTF-8, and a workbook as .xlsx without a password"
    with as_input_error("is neither Parquet nor Arrow nor UTF-8 text", fix):
        text = content.decode("utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    text = re.sub(r"\Asep=[,;\t]\r?\n", "", text)  # a hint for Excel
    if not text.strip():
        raise InputError("is empty; fetch it again")
    header = re.match(r"\s*([^\r\n]*)", text)[1]
    delimiter = max(",;\t", key=header.count)
    if header.startswith(("{", "[")):
        yield from json_items(text, columns)
    elif delimiter in header or ".csv" in path.suffixes or "question" in column_names((header,), columns):
        yield from _csv_rows(text, delimiter, columns)
    else:
        raise InputError(
            f"holds neither JSON nor Parquet, Arrow or CSV (whose first line names the columns question, context and "
            f"answers), but begins with {excerpt(header)}; save it as SQuAD or MRQA JSON, or as rows in one of these; "
            f"{EXPORTS}"
        )


def numbered(rows: Iterable[Any]) -> Items:
    return ((f"row {number}", row) for number, row in enumerate(rows))


def json_items(text: str, columns: Columns) -> Items:
    """The items of a JSON document, or of JSON lines, whose places are the lines."""
    fix = "correct it or fetch the file again"
    begun = text.lstrip()
    with as_input_error("not JSON", fix):
        document, end = json.JSONDecoder().raw_decode(begun)
    if not begun[end:].strip():
        yield from document_items(document, columns)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            with as_input_error(f"line {number} is not JSON", fix):
                value = json.loads(line)
            if not (isinstance(value, dict) and "header" in value):  # MRQA's first line
                yield f"line {number}", value


def document_items(document: Any, columns: Columns = ()) -> Items:
    """The items of a JSON document: a list, SQuAD's {"data": [...]}, rows as the hub's viewer gives them, or a table in
    one of the forms of pandas (`to_json`, any `orient`) and of `Dataset.to_dict`. Anything else is a row."""
    if isinstance(document, list):
        return numbered(document)
    if "columns" in document and "data" in document:
        return numbered(dict(zip(document["columns"], row, strict=True)) for row in document["data"])
    table = {name: cells for name, cells in document.items() if isinstance(cells, list | dict)}
    if "question" in column_names(tuple(table), columns):
        cells = [list(cells.values()) if isinstance(cells, dict) else cells for cells in table.values()]
        return numbered(dict(zip(table, row, strict=True)) for row in zip(*cells, strict=True))
    if "data" in document and tool_of(document) is None:  # no task of Label Studio, whose data is a row
        return ((f"data[{number}]", article) for number, article in enumerate(field(document, "data", list)))
    if isinstance(document.get("rows"), list):
        return numbered(row.get("row", row) for row in document["rows"])
    if document and all(isinstance(row, dict) for row in document.values()):  # orient="index"
        return numbered(document.values())
    return iter([("line 1", document)])


def _arrow_table(content: bytes) -> pa.Table:
    with as_input_error("damaged data file", "fetch it or save it again"):
        if content.startswith(b"PAR1"):
            return pq.ParquetFile(pa.BufferReader(content)).read()
        if content.startswith(b"ARROW1"):
            return pa.ipc.open_file(content).read_all()
        if not content.endswith(END_OF_STREAM):  # pyarrow would take the end of the file for that of the stream
            raise ValueError("it is cut off")
        return pa.ipc.open_stream(content).read_all()


def table_rows(table: pa.Table, columns: Columns) -> Iterator[dict[str, Any]]:
    """The rows of a table, with the columns that stand for `COLUMNS`. Raises InputError: as `column_names`."""
    known = column_names(tuple(table.column_names), columns)
    decode = dict
    if any("arrow.json" in str(kind) for kind in table.schema.types):  # as `datasets` keeps texts and numbers, mixed
        from datasets import Features

        decode = Features.from_arrow_schema(table.schema).decode_example
    is_export = any(tool_of(decode(row)) for row in table.slice(0, 1).to_pylist())
    if known.keys() >= {"question", "context"} and not is_export:  # or else a message names all columns
        table = table.select(list(known.values()))
    for batch in table.to_batches(ROWS_AT_A_TIME):
        yield from map(decode, batch.to_pylist())


def _csv_rows(text: str, delimiter: str, columns: Columns) -> Items:
    """The rows of a text table with a header, without empty ones. They are counted as a spreadsheet does, from the
    header on, which is row 1. A cell such as 7.0 is a number: pandas writes whole ones of a column with gaps so.
    Raises InputError: it is malformed, or has only a header, without a question."""
    csv.field_size_limit(sys.maxsize)  # a context may be long
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    row: dict[str, Any] = {}
    number = 0
    try:
        for number, cells in enumerate(reader, 1):
            if not any(cells):
                continue
            if not header:
                header = cells
                names = column_names(tuple(header), columns)
                texts = {names.get("question"), names.get("context")}
                continue
            if len(cells) != len(header) and "question" in names:  # else the row is refused for what it lacks
                raise InputError(f"row {number} has {len(cells)} cells, and the header {len(header)}: correct it")
            row = dict(zip(header, cells, strict=False))
            for name in row.keys() - texts:
                if _POINT_ZERO.fullmatch(row[name]):
                    row[name] = float(row[name])
            yield f"row {number}", row
    except csv.Error as error:
        raise InputError(
            f"malformed table of text after row {number} ({error}): put a text with quotation marks in quotation "
            "marks and double its own"
        ) from None
    if header and not row:
        check_names(tuple(header), columns)  # says what it lacks: this may be no table
