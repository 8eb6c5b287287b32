"""Rows of Arrow and Parquet files, of data sets saved by `datasets`, of CSV text, and of tables in memory.

Unchecked offsets of a damaged file can crash the process. So every batch of rows is validated in full before it is
read, and pyarrow handles a file only inside `as_input_error`.
"""

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from swep_ds.data.fields import excerpt
from swep_ds.errors import InputError, as_input_error
from swep_ds.files import parse_json, read_bytes, read_json

COLUMNS = ("id", "title", "question", "context", "answers", "answer", "answer_start", "is_impossible")
COLUMNS += ("detected_answers",)  # tells MRQA's rows
LABELS = {"answers", "answer", "is_impossible", "detected_answers"}
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ROWS_AT_A_TIME = 32  # converted to Python objects at once: many rows may repeat one long context
LARGE, RATIO = 2**28, 100  # `most_unpacked`
BEGINS_SO = ": give an answer that itself begins with [ or { in a column `answer`, or in a JSON list of texts"
MAX_HEADER, MAX_DIGITS = 4096, 19  # characters of a text table's first line, and of an offset

Rows = Iterator[tuple[str, dict[str, Any]]]  # each with its place, "row 7"


def is_table(content: bytes) -> bool:
    """Whether the bytes begin like Parquet, an Arrow file or an Arrow stream."""
    return content[:4] in (b"PAR1", b"\xff\xff\xff\xff") or content[:6] == b"ARROW1"


def most_unpacked(packed: int) -> int:
    """The most bytes that a file of `packed` bytes may unpack to; more is an accident or an attack on the memory."""
    return max(LARGE, RATIO * packed)


def table_rows(source: str, contents: Iterable[bytes], *, labels: bool) -> Rows:
    """The rows of the files with these bytes, one after the other. `labels`: whether they must have answers.

    Raises InputError: a file is damaged, lacks a column or has one twice, or claims more rows than it can hold.
    """
    return _rows(source, (batch for content in contents for batch in _batches(source, content, labels)))


def memory_rows(source: str, table: pa.Table, *, labels: bool) -> Rows:
    """The rows of a table that `datasets` loaded. Otherwise as `table_rows`."""
    return _rows(source, iter(table.select(_columns(source, table.schema.names, labels)).to_batches()))


def csv_delimiter(text: str) -> str | None:
    """What separates the columns of a text table: a comma, a semicolon or a tab. None: its first line names neither the
    column question nor the column context, or the text is JSON."""
    if text.lstrip()[:1] in ("{", "["):
        return None
    header = text[:MAX_HEADER].partition("\n")[0]
    for delimiter in ",;\t":
        if {"question", "context"} & {name.strip(' "\r') for name in header.split(delimiter)}:
            return delimiter
    return None


def csv_rows(source: str, text: str, delimiter: str, *, labels: bool) -> Rows:
    """The rows of a text table with a header. An empty cell is None; see `csv_answers`.

    Args:
        labels: whether they must have answers.

    Raises InputError: a quoted text is not closed or is followed by more text, as one with quotes that are not doubled;
    a row has more or fewer cells than the header; or the header lacks a column or has one twice.
    """
    csv.field_size_limit(sys.maxsize)  # a context may be long
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    fix = "give every row the header's columns; put a text with quotation marks in quotation marks and double its own"
    places: dict[str, int] = {}  # column -> the place of its cell in a row
    width, number = 0, 0
    while True:
        with as_input_error(f"{source}: malformed table of text from line {reader.line_num + 1} on", fix):
            cells = next(reader, None)
            if cells and places and len(cells) != width:
                raise ValueError(f"it has {len(cells)} cells, and the header {width}")
        if cells is None:
            return
        if not places:
            names = [name.strip() for name in cells]
            places, width = {name: names.index(name) for name in _columns(source, names, labels)}, len(names)
        elif cells:  # the line is not empty
            yield f"row {number}", {name: cells[place] or None for name, place in places.items()}
            number += 1


def csv_answers(where: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row of `csv_rows` with its answers as other rows have them. `answers` is one text or JSON, a list or an object;
    `answer_start` is a number or a list in JSON. Raises InputError: it is neither."""
    row = dict(row)
    for name in ("answers", "answer_start"):
        if (text := row.get(name)) and text.lstrip()[:1] in ("[", "{"):
            try:
                row[name] = parse_json(text, f"{where}: {name}", unique_keys=False)
            except InputError as error:
                raise InputError(f"{error}{BEGINS_SO if name == 'answers' else ''}") from None
            texts = row[name] if name == "answers" and isinstance(row[name], list) else []
            if not all(isinstance(answer, str) for answer in texts):
                raise InputError(f"{where}: answers {excerpt(text)}: is not a list of texts{BEGINS_SO}")
        elif name == "answers" and name in row:
            row[name] = [text] if text else []
        elif text and text.isdecimal() and len(text) < MAX_DIGITS:
            row[name] = int(text)
    return row


def _rows(source: str, batches: Iterator[pa.RecordBatch]) -> Rows:
    number = 0
    for batch in batches:
        with _reading(source):
            batch.validate(full=True)
        for at in range(0, batch.num_rows, ROWS_AT_A_TIME):
            with _reading(source):
                rows = batch.slice(at, ROWS_AT_A_TIME).to_pylist()
            for row in rows:
                yield f"row {number}", row
                number += 1


def _reading(source: str) -> AbstractContextManager[None]:
    return as_input_error(f"{source}: damaged data file", "fetch it or save it again")


def _batches(source: str, content: bytes, labels: bool) -> Iterator[pa.RecordBatch]:
    """Record batches of `COLUMNS`, not validated."""
    with _reading(source):
        if content[:4] == b"PAR1":
            batches = _parquet(source, content, labels)
        elif content[:6] == b"ARROW1":
            file = pa.ipc.open_file(content)
            batches = (file.get_batch(i) for i in range(file.num_record_batches))
        else:
            batches = _stream(content)
    while True:
        with _reading(source):
            batch = next(batches, None)
            if batch is None:
                return
            batch = batch.select(_columns(source, batch.schema.names, labels))
        # a null column has no bytes, so a small file can claim any number of rows
        if batch.num_rows > len(content):
            raise InputError(f"{source}: claims {batch.num_rows} rows in {len(content)} bytes; save it again")
        yield batch


def _stream(content: bytes) -> Iterator[pa.RecordBatch]:
    file = pa.BufferReader(content)
    yield from pa.ipc.open_stream(file)
    # pyarrow takes the end of the file for the end of the stream, so a file that was cut off would lose its rest
    if content[file.tell() - len(END_OF_STREAM) : file.tell()] != END_OF_STREAM:
        raise ValueError("it is cut off")


def _parquet(source: str, content: bytes, labels: bool) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(pa.BufferReader(content))
    facts = file.metadata
    unpacked = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
    if facts.num_rows > len(content) or unpacked > most_unpacked(len(content)):
        raise InputError(
            f"{source}: claims {facts.num_rows} rows of {unpacked} bytes in a file of {len(content)} bytes; save it "
            "without compression if that is right"
        )
    return file.iter_batches(batch_size=1024, columns=_columns(source, file.schema_arrow.names, labels))


def _columns(source: str, names: Sequence[str], labels: bool) -> list[str]:
    """The names that are in COLUMNS. Raises InputError: one of them occurs twice, or a needed one is missing."""
    for name in COLUMNS:
        if names.count(name) > 1:
            raise InputError(f"{source}: has the column {name!r} {names.count(name)} times; keep one")
    missing = [name for name in ("question", "context") if name not in names]
    if labels and not LABELS.intersection(names):
        missing.append("answers")
    if missing:
        raise InputError(
            f"{source}: has no column {' and no column '.join(missing)} (there: {excerpt(list(names))}): rename yours"
        )
    return [name for name in COLUMNS if name in names]


def saved_splits(folder: Path) -> dict[str, Path] | None:
    """The folder of each split that `DatasetDict.save_to_disk` wrote; None if `Dataset.save_to_disk` wrote the folder.
    Raises InputError: its dataset_dict.json is damaged."""
    if (folder / "state.json").is_file():
        return None
    file = folder / "dataset_dict.json"
    document = read_json(file)
    names = document.get("splits") if isinstance(document, dict) else None
    if not isinstance(names, list) or not all(map(_is_name, names)):
        raise InputError(f"{file}: damaged: no list of names in its field 'splits'; save the data set again")
    return {name: folder / name for name in names}


def saved_contents(folder: Path) -> Iterator[bytes]:
    """The bytes of the Arrow files that `Dataset.save_to_disk` wrote into a folder, in order.

    Raises:
        InputError: its state.json is damaged, names a file outside the folder or omits one, or a file cannot be read.
    """
    file = folder / "state.json"
    state = read_json(file)
    entries = state.get("_data_files") if isinstance(state, dict) else None
    entries = entries if isinstance(entries, list) else []
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if not names or not all(map(_is_name, names)) or len(set(names)) < len(names):
        raise InputError(
            f"{file}: damaged: its field '_data_files' is not a list of different file names; save the data set again"
        )
    for other in sorted(folder.glob("data-*.arrow")):
        if other.name not in names:
            raise InputError(f"{file}: damaged: it does not name {other.name} beside it; save the data set again")
    for name in names:
        yield read_bytes(folder / name)


def _is_name(value: Any) -> bool:
    """Whether this names a file in the same folder."""
    return isinstance(value, str) and value not in ("", ".", "..") and "\0" not in value and "/" not in value
