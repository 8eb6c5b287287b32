"""The rows of a spreadsheet, .xlsx or .ods, with every cell as the sheet shows it."""

import io
import os
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from xml.etree import ElementTree

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import user_path
from swep_ds.common.number_formats import shown

SUFFIXES = (".xlsx", ".ods")
ERRORS = ("#N/A", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")  # what a formula may show
NO_RESULT = "the formula in {} has no stored result: open the workbook in Excel and save it"
# the row's number in the sheet, whether it is hidden, its cells and, by place of each merged one, its last row
Rows = Iterator[tuple[int, bool, list[str], dict[int, int]]]
Say = Callable[[str], None]

_OFFICE, _STYLE, _TABLE, _TEXT = (
    f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("office", "style", "table", "text")
)


def split_sheet(source: str | os.PathLike) -> tuple[Path, str | None]:
    """The path that a source names and, in `FILE.xlsx#SHEET`, the sheet."""
    path = user_path(source)
    file, _, sheet = str(path).rpartition("#")
    if file.lower().endswith(SUFFIXES) and not path.exists():
        return Path(file), sheet
    return path, None


def sheet_rows(
    content: bytes, sheet: str | None, is_header: Callable[[list[str]], bool], say: Say
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows below the header that are not empty, by its names, each with its number in the sheet. The text
    of a merged cell is repeated in each of its rows.

    `sheet` is its name; None = the first visible one. The header is the first row that `is_header`, as a title may
    stand above it, or else the first row. `say` is called about other sheets, hidden rows and doubtful number formats.
    Raises InputError: a damaged workbook, no such sheet, no openpyxl, or a formula without a result.
    """
    with as_input_error("is neither a workbook nor data", "save it as .xlsx, or unpack the archive"):
        files = zipfile.ZipFile(io.BytesIO(content)).namelist()
    if "xl/workbook.xml" in files:
        read = _xlsx_rows
    elif "content.xml" in files:
        read = _ods_rows
    else:
        raise InputError("is neither .xlsx nor .ods: save a workbook as .xlsx, or unpack the archive")
    merged: dict[int, tuple[int, str]] = {}  # by place: the last row of a merged cell, and its text
    rows = []
    hidden = 0
    for number, is_hidden, cells, last_rows in read(content, sheet, say):
        if not any(cells):
            continue
        texts = defaultdict(str, enumerate(cells))
        merged |= {place: (last, texts[place]) for place, last in last_rows.items()}
        texts |= {place: text for place, (last, text) in merged.items() if number <= last}
        rows.append((number, [texts[place] for place in range(max(texts) + 1)]))
        hidden += is_hidden
    first = next((place for place, (_, cells) in enumerate(rows) if is_header(cells)), 0)
    if hidden:
        say(f"{hidden} hidden rows are read, too")
    for number, cells in rows[first + 1 :]:
        yield number, dict(zip(rows[first][1], chain(cells, repeat("")), strict=False))


def _chosen(visible: dict[str, bool], wanted: str | None, say: Say) -> str:
    """The name of the sheet to read, of those in `visible`."""
    names = ", ".join(name if visible[name] else f"{name} (hidden)" for name in visible)
    chosen = max(visible, key=visible.get) if wanted is None else wanted  # the first visible one
    if chosen not in visible:
        raise InputError(f"has no sheet {chosen!r}: name one of {names}")
    if wanted is None and len(visible) > 1:
        say(f"the sheet {chosen!r} is read, of {names}: FILE#SHEET names another one")
    elif not visible[chosen]:
        say(f"the sheet {chosen!r} is hidden")
    return chosen


def _xlsx_rows(content: bytes, wanted: str | None, say: Say) -> Rows:
    with as_input_error("is a workbook", "pip install '.[documents]' to read it"):
        import openpyxl  # takes 0.3 s
        from openpyxl.cell.read_only import EMPTY_CELL
    with (
        as_input_error("is a workbook that openpyxl cannot read", "copy its cells into a new one"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # they are about what is not text
        book = openpyxl.load_workbook(io.BytesIO(content))  # with formulas in place of their results
        results = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    name = _chosen({sheet.title: sheet.sheet_state == "visible" for sheet in book.worksheets}, wanted, say)
    hidden = {number for number, row in book[name].row_dimensions.items() if row.hidden}
    last_rows = defaultdict(dict)  # by row, what `Rows` says of merged cells
    for area in book[name].merged_cells.ranges:
        last_rows[area.min_row][area.min_col - 1] = area.max_row
    results[name].reset_dimensions()  # else all rows are as long as the longest
    for number, cells in enumerate(results[name].iter_rows(), 1):
        for cell in cells:
            if cell.value is None and cell is not EMPTY_CELL and book[name][cell.coordinate].data_type == "f":
                raise InputError(NO_RESULT.format(f"cell {cell.coordinate}"))
        # openpyxl leaves a carriage return as it is escaped
        texts = [shown(cell.value, cell.number_format, say).replace("_x000D_", "\r") for cell in cells]
        yield number, number in hidden, texts, last_rows.get(number, {})


def _ods_rows(content: bytes, wanted: str | None, say: Say) -> Rows:
    with as_input_error("is a damaged workbook, or has a password", "save it again, without one"):
        document = ElementTree.fromstring(zipfile.ZipFile(io.BytesIO(content)).read("content.xml"))
    for mark in ("s", "tab", "line-break"):
        for node in document.iter(_TEXT + mark):
            node.text = " "
    styles = document.iterfind(f".//{_STYLE}table-properties[@{_TABLE}display='false']/..")
    hidden = {style.get(_STYLE + "name") for style in styles}
    sheets = {sheet.get(_TABLE + "name"): sheet for sheet in document.iter(_TABLE + "table")}
    visible = {name: sheet.get(_TABLE + "style-name") not in hidden for name, sheet in sheets.items()}
    number = 1
    for node in sheets[_chosen(visible, wanted, say)].iter(_TABLE + "table-row"):
        row: list[str] = []
        last_rows = {}
        for cell in node:
            text = "\n".join("".join(paragraph.itertext()) for paragraph in cell.findall(_TEXT + "p"))
            if not text and cell.get(_TABLE + "formula") and not cell.get(_OFFICE + "value-type"):
                raise InputError(NO_RESULT.format(f"row {number}, column {len(row) + 1}"))
            if (spanned := int(cell.get(_TABLE + "number-rows-spanned", 1))) > 1:
                last_rows[len(row)] = number + spanned - 1
            row += [text] * int(cell.get(_TABLE + "number-columns-repeated", 1))
        repeated = int(node.get(_TABLE + "number-rows-repeated", 1))
        if any(row):
            for offset in range(repeated):
                yield number + offset, bool(node.get(_TABLE + "visibility")), row, last_rows
        number += repeated
