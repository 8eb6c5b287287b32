"""The rows of a spreadsheet, .xlsx or .ods, with every cell as the sheet shows it."""

import io
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from xml.etree import ElementTree

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import user_path
from swep_ds.common.number_formats import shown

SUFFIXES = (".xlsx", ".ods")
ERRORS = ("#N/A", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")  # what a formula may show
Rows = Iterator[tuple[int, bool, list[str]]]  # the row's number in the sheet, whether it is hidden, its cells
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
    """The rows below the header that are not empty, by its names, each with its number in the sheet. A merged cell's
    text stands in each of its rows.

    `sheet` is its name; None = the first visible one. The header is the first row that `is_header`, as a title may
    stand above it, or else the first row. `say` is called about other sheets, hidden rows and doubtful number formats.
    Raises InputError: a damaged workbook, no such sheet, no openpyxl, or a formula without a result.
    """
    with as_input_error("is neither a workbook nor data", "save it as .xlsx, or unpack the archive"):
        files = zipfile.ZipFile(io.BytesIO(content)).namelist()
    if not {"xl/workbook.xml", "content.xml"} & set(files):
        raise InputError("is neither .xlsx nor .ods: save a workbook as .xlsx, or unpack the archive")
    read = _xlsx_rows if "xl/workbook.xml" in files else _ods_rows
    rows = [row for row in read(content, sheet, say) if any(row[2])]
    first = next((place for place, (_, _, cells) in enumerate(rows) if is_header(cells)), 0)
    if hidden := sum(is_hidden for _, is_hidden, _ in rows):
        say(f"{hidden} hidden rows are read, too")
    for number, _, cells in rows[first + 1 :]:
        yield number, dict(zip(rows[first][2], chain(cells, repeat("")), strict=False))


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


def _no_result(place: str) -> InputError:
    return InputError(f"the formula in {place} has no stored result: open the workbook in Excel and save it")


def _xlsx_rows(content: bytes, wanted: str | None, say: Say) -> Rows:
    with as_input_error("is a workbook", "pip install '.[documents]' to read it"):
        import openpyxl  # takes 0.3 s
    with (
        as_input_error("is a workbook that openpyxl cannot read", "copy its cells into a new one"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # they are about what is not text
        results = openpyxl.load_workbook(io.BytesIO(content), data_only=True)
        formulas = openpyxl.load_workbook(io.BytesIO(content))
    name = _chosen({sheet.title: sheet.sheet_state == "visible" for sheet in results.worksheets}, wanted, say)
    merged = {}  # the first column of each merged area
    for area in results[name].merged_cells.ranges:
        merged |= dict.fromkeys((row[0] for row in area.rows), area.start_cell)
    for number, cells in enumerate(results[name].iter_rows(), 1):
        row = []
        for cell in cells:
            cell = merged.get((number, cell.column), cell)
            has_none = cell.value is None and cell.data_type == "n"
            if has_none and formulas[name][cell.coordinate].data_type == "f":
                raise _no_result(f"cell {cell.coordinate}")
            # openpyxl leaves a carriage return as it is escaped
            row.append(shown(cell.value, cell.number_format, say).replace("_x000D_", "\r"))
        yield number, results[name].row_dimensions[number].hidden, row


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
    merged: dict[int, tuple[int, str]] = {}  # by column: the last row of a merged area, and its text
    for node in sheets[_chosen(visible, wanted, say)].iter(_TABLE + "table-row"):
        row: list[str] = []
        for cell in node:
            text = "\n".join("".join(paragraph.itertext()) for paragraph in cell.findall(_TEXT + "p"))
            if not text and cell.get(_TABLE + "formula") and not cell.get(_OFFICE + "value-type"):
                raise _no_result(f"row {number}, column {len(row) + 1}")
            end, text_above = merged.get(len(row), (0, ""))
            if number <= end:
                text = text_above
            merged[len(row)] = max(end, number + int(cell.get(_TABLE + "number-rows-spanned", 1)) - 1), text
            row += [text] * int(cell.get(_TABLE + "number-columns-repeated", 1))
        repeated = int(node.get(_TABLE + "number-rows-repeated", 1))
        for offset in range(repeated if any(row) else 0):
            yield number + offset, bool(node.get(_TABLE + "visibility")), list(row)
        number += repeated
