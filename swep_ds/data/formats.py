"""What a file holds: recognises its format by its content, and makes an `Example` of each of its questions.

A file has articles {title, paragraphs} as SQuAD has them, paragraphs {context, qas} (simpletransformers, MRQA) or rows.
"""

import csv
import gzip
import io
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from swep_ds.common.errors import InputError, as_input_error, at, excerpt
from swep_ds.data.annotations import TEXTS_NOT_READ, annotated_rows, is_export, not_read, tool_of
from swep_ds.data.answers import (
    MRQA_COLUMN,
    TRUE,
    answer_pairs,
    field,
    is_missing,
    text_field,
    training_span,
)
from swep_ds.data.example import Example

log = logging.getLogger(__name__)

Items = Iterator[tuple[str, Any]]  # articles, paragraphs or rows, each with its place, such as "row 7"

ARROW = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")  # first bytes of Parquet, an Arrow file and an Arrow stream
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ROWS_AT_A_TIME = 100  # converted to Python objects at once: many rows may repeat one long context
MAX_NAMED = 100  # faulty questions of a file that a message names

MRQA_MARKER = re.compile(r"\[(?:TLE|PAR|DOC|SEP)\]")  # several of its sets put [SEP] after titles
COLUMNS = (
    "id",
    "title",
    "question",
    "context",
    "answers",
    "answer",
    "answer_start",
    "start",
    "is_impossible",
    MRQA_COLUMN,
)
ANSWERED = {"answers", "answer", "is_impossible"}
COLUMNS += ("stratum",)  # of a question that was suggested for labelling (`analysis/labelled.py`)


def file_items(path: Path) -> Items:
    """The items of a file. Raises InputError: it is empty, damaged, of another format, or a table without a column."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        with as_input_error("damaged gzip file", "fetch it again"):
            content = gzip.decompress(content)
    if content.startswith(ARROW):
        yield from numbered(table_rows(_arrow_table(content)))
        return
    fix = "save text as UTF-8, save a workbook of Excel or LibreOffice as CSV UTF-8, and unpack an archive"
    with as_input_error("is neither Parquet nor Arrow nor UTF-8 text", fix):
        text = content.decode("utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    text = re.sub(r"\Asep=[,;\t]\r?\n", "", text)  # a hint for Excel
    header = re.match(r"\s*([^\r\n]*)", text)[1]
    delimiter = max(",;\t", key=header.count)
    for begin, tool in TEXTS_NOT_READ.items():
        if re.match(begin, header):
            raise not_read(tool)
    if header.startswith(("{", "[")):
        yield from _json_items(text)
    elif delimiter in header or column_of(header) == "question":
        yield from _csv_rows(text, delimiter)
    else:
        raise InputError(
            f"holds neither JSON nor Parquet, Arrow or CSV (whose first line names the columns question, context and "
            f"answers), but begins with {excerpt(header)}; save it as SQuAD or MRQA JSON, or as rows in one of these"
        )


def numbered(rows: Iterable[Any]) -> Items:
    return ((f"row {number}", row) for number, row in enumerate(rows))


def _json_items(text: str) -> Items:
    """The items of a JSON document, or of JSON lines, whose places are the lines."""
    fix = "correct it or fetch the file again"
    begun = text.lstrip()
    with as_input_error("not JSON", fix):
        document, end = json.JSONDecoder().raw_decode(begun)
    if not begun[end:].strip():
        yield from document_items(document)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            with as_input_error(f"line {number} is not JSON", fix):
                value = json.loads(line)
            if not (isinstance(value, dict) and "header" in value):  # MRQA's first line
                yield f"line {number}", value


def document_items(document: Any) -> Items:
    """The items of a JSON document: a list, SQuAD's {"data": [...]}, rows as the hub's viewer gives them, or a table in
    one of the forms of pandas (`to_json`, any `orient`) and of `Dataset.to_dict`. Anything else is a row."""
    if isinstance(document, list):
        return numbered(document)
    if "columns" in document and "data" in document:
        return numbered(dict(zip(document["columns"], row, strict=True)) for row in document["data"])
    columns = {name: cells for name, cells in document.items() if isinstance(cells, list | dict)}
    if "question" in map(column_of, columns):
        cells = [list(cells.values()) if isinstance(cells, dict) else cells for cells in columns.values()]
        return numbered(dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True))
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


def table_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table, with the columns among `COLUMNS`. Raises InputError: as `known_names`."""
    known = known_names(tuple(table.column_names))
    # where there is no context, a message names them all
    every = "context" not in known or is_export(known)
    chosen = [number for number, name in enumerate(known) if every or name in COLUMNS]
    for batch in table.select(chosen).to_batches(ROWS_AT_A_TIME):
        yield from batch.to_pylist()


def _csv_rows(text: str, delimiter: str) -> Items:
    """The rows of a text table with a header, without empty ones. They are counted as a spreadsheet does, from the
    header on, which is row 1."""
    csv.field_size_limit(sys.maxsize)  # a context may be long
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: tuple[str, ...] = ()
    number = 0
    try:
        for number, cells in enumerate(reader, 1):
            if not any(cells):
                continue
            if not header:
                header = known_names(tuple(cells))
                continue
            if len(cells) != len(header):
                raise InputError(f"row {number} has {len(cells)} cells, and the header {len(header)}: correct it")
            row = dict(zip(header, cells, strict=True))
            if "id" in row:
                row["id"] = re.sub(r"^(\d+)\.0$", r"\1", row["id"])  # as in `_name`
            yield f"row {number}", row
    except csv.Error as error:
        raise InputError(
            f"malformed table of text after row {number} ({error}): put a text with quotation marks in quotation "
            "marks and double its own"
        ) from None


def column_of(name: str) -> str:
    """The one of `COLUMNS` that a name stands for, in any case and with spaces or a byte-order mark; else the name."""
    column = str(name).strip(" \t\ufeff").lower()
    return column if column in COLUMNS else name


@lru_cache(256)  # the rows of a file have the same names
def known_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """`column_of` each name of a row or table. Raises InputError: two names stand for one column, none for the
    question, or the rows are MRQA's."""
    columns = tuple(map(column_of, names))
    for column in COLUMNS:
        if columns.count(column) > 1:
            raise InputError(f"has the column {column!r} {columns.count(column)} times; keep one")
    if "question" not in columns:
        raise InputError(f"has no column question (found: {excerpt(list(names))}): rename yours")
    if MRQA_COLUMN in columns:
        raise InputError(
            "has MRQA's column detected_answers; MRQA's contexts may have markers such as [SEP], which are no text: "
            "name the file of the shared task (.jsonl.gz)"
        )
    return columns


def read_items(source: str, items: Items, **wanted: bool | None) -> Iterator[Example]:
    """The questions of a file's items. `wanted` are the options of `read_examples`. A missing id is made of the last
    part of `source` and the numbers of the question's place. Raises InputError: for all faulty questions of a file."""
    message = ""
    faulty: list[str] = []  # ids
    reasons: Counter[str] = Counter()
    items = annotated_rows(
        items,
        rename=lambda row: {column_of(name): value for name, value in row.items()},
        remark=lambda id_, reason, left_out: reasons.update([reason]),
        labels=bool(wanted["labels"]),
    )
    for place, fields in _rows(source, items, wanted["labels"]):
        id_ = _name(fields.get("id")) or f"{Path(source).name}-{'.'.join(re.findall('[0-9]+', place))}"
        try:
            yield _example(id_, fields, **wanted)
        except InputError as error:
            message = message or f"question {excerpt(id_)}: {error}"
            faulty.append(excerpt(id_))
    if len(faulty) > 1:
        message += f"; {len(faulty) - 1} more of this file's questions have faults: {', '.join(faulty[1:MAX_NAMED])}"
    if message:
        raise InputError(message)
    for reason, count in reasons.items():
        log.warning("%s: %d questions: %s", source, count, reason)


def _rows(source: str, items: Items, labels: bool | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the unchecked fields of each question."""
    untitled: dict[str, str] = {}  # first context of an article without a title -> the article's name
    for place, item in items:
        if not isinstance(item, dict):
            raise InputError(f"{place}: expected an object, found {excerpt(item)}")
        title = _name(item.get("title"))
        if "paragraphs" in item:
            with at(place):
                paragraphs = field(item, "paragraphs", list)
            for number, paragraph in enumerate(paragraphs):
                of_paragraph = f"{place}.paragraphs[{number}]"
                with at(of_paragraph):
                    title = title or untitled.setdefault(text_field(paragraph, "context"), f"{source}: {place}")
                yield from _paragraph_rows(of_paragraph, paragraph, title)
        elif "qas" in item:
            yield from _paragraph_rows(place, item, title)
        else:
            with at(place):
                names = known_names(tuple(item))
                if labels and "context" not in names:
                    raise InputError(f"has no column context (found: {excerpt(list(item))}): rename yours")
            fields = dict(zip(names, item.values(), strict=True))
            if isinstance(fields.get("context"), str):
                fields["context"] = sys.intern(fields["context"])  # rows repeat their paragraph
            yield place, fields


def _paragraph_rows(place: str, paragraph: dict[str, Any], title: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The questions about one context. MRQA's have a `qid`."""
    with at(place):
        context = text_field(paragraph, "context")
        qas = field(paragraph, "qas", list)
    if any("qid" in qa or MRQA_COLUMN in qa for qa in qas):
        # as many blanks as the marker has characters, so that every offset holds
        context = MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), context)
    for number, qa in enumerate(qas):
        fields = {**qa, "context": context, "title": title}
        fields["id"] = qa.get("qid", qa.get("id"))
        yield f"{place}.qas[{number}]", fields


def _name(value: Any) -> str:
    """An id or a title, which may be a number; "" for none. pandas makes 7.0 of the number 7 in a column with gaps."""
    if is_missing(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def _example(
    id_: str, fields: dict[str, Any], *, training: bool, unanswerable: bool, repeated: bool, labels: bool | None
) -> Example:
    if labels is None:
        labels = not ANSWERED.isdisjoint(fields)
        says_so = isinstance(fields.get("answers"), list | dict) or str(fields.get("is_impossible")).lower() in TRUE
        unanswerable = unanswerable or says_so
    question = text_field(fields, "question")
    context = text_field(fields, "context") if labels or fields.get("context") else ""
    with as_input_error("holds half of a surrogate pair, which is not text", "remove or complete it"):
        f"{id_}{question}{context}".encode()  # a run would end where it writes its predictions
    article = _name(fields.get("title")) or context
    if not labels:
        return Example(id_, question, context, (), None, article)
    pairs = answer_pairs(fields, context)
    if not pairs and not unanswerable:
        raise InputError("has no answer; give it, or set data.unanswerable to drop such questions or to train on them")
    span = None
    if pairs and training:
        span = training_span(fields, context, *pairs[0], repeated=repeated)
    return Example(id_, question, context, tuple(text for text, _ in pairs), span, article)
