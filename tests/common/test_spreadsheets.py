import io
import zipfile

import openpyxl
import pytest

from swep_ds.common.errors import InputError
from swep_ds.common.spreadsheets import sheet_rows, split_sheet

PREFIXES = {name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "style", "table", "text")}


def ods(sheets: str, styles: str = "") -> bytes:
    names = " ".join(f'xmlns:{name}="{address}"' for name, address in PREFIXES.items())
    body = f"<office:body><office:spreadsheet>{sheets}</office:spreadsheet></office:body>"
    return packed({"content.xml": f"<office:document-content {names}>{styles}{body}</office:document-content>"})


def packed(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def xlsx(book: openpyxl.Workbook) -> bytes:
    content = io.BytesIO()
    book.save(content)
    return content.getvalue()


def read(content: bytes, sheet: str | None = None) -> tuple[list, list[str]]:
    """The rows below the letters a, b, and what is said."""
    said: list[str] = []
    return list(sheet_rows(content, sheet, lambda names: names[:2] == ["a", "b"], said.append)), said


def refused(content: bytes, sheet: str | None = None) -> str:
    with pytest.raises(InputError) as error:
        read(content, sheet)
    return str(error.value)


def test_a_workbook_of_excel():
    book = openpyxl.Workbook()
    book.active.title = "Old"
    book.active.sheet_state = "hidden"
    table = book.create_sheet("Pairs")
    table.append(["A title"])
    table.append(["a", "b", None])
    table.append([0.125, "x_x000D_\ny", 1])
    table["A3"].number_format = "0.0%"
    table["A4"] = True
    table.merge_cells("B3:C4")
    table.row_dimensions[4].hidden = True
    table["E9"].number_format = "0"  # empty rows and columns follow
    rows = [(3, {"a": "12.5%", "b": "x\r\ny"}), (4, {"a": "TRUE", "b": "x\r\ny"})]
    names = "Old (hidden), Pairs"
    first = f"the sheet 'Pairs' is read, of {names}: FILE#SHEET names another one"
    assert read(xlsx(book)) == (rows, [first, "1 hidden rows are read, too"])
    assert read(xlsx(book), "Pairs") == (rows, ["1 hidden rows are read, too"])
    assert read(xlsx(book), "Old") == ([], ["the sheet 'Old' is hidden"])
    assert refused(xlsx(book), "pairs") == f"has no sheet 'pairs': name one of {names}"
    table["B7"] = "=A3*2"
    assert refused(xlsx(book)).startswith("the formula in cell B7 has no stored result: open the workbook in Excel")
    table["B7"] = "#N/A"
    assert read(xlsx(book))[0][-1] == (7, {"a": "", "b": "#N/A"})


def test_a_workbook_of_libreoffice_has_the_shown_texts():
    """A row that is repeated, a merged cell, blanks and line breaks, a note, a hidden row and a hidden sheet."""
    row = "<table:table-row{}>{}</table:table-row>".format
    cell = "<table:table-cell{}>{}</table:table-cell>".format
    note = "<office:annotation><text:p>note</text:p></office:annotation>"
    percent = cell(' office:value-type="percentage" office:value="0.125"', f"{note}<text:p>12.5%</text:p>")
    merged = cell(' table:number-rows-spanned="2"', "<text:p>a<text:s/>b</text:p><text:p>c</text:p>")
    table = row("", cell("", "<text:p>a</text:p>") + cell("", "<text:p>b</text:p>"))
    table += row("", percent + merged + cell(' table:number-columns-repeated="2"', ""))
    table += row(' table:visibility="collapse"', cell("", "<text:p>d</text:p>") + "<table:covered-table-cell/>")
    table += row(' table:number-rows-repeated="3"', cell("", ""))
    table += row(' table:number-rows-repeated="2"', cell(' table:number-columns-repeated="2"', "<text:p>e</text:p>"))
    sheets = f'<table:table table:name="A" table:style-name="x"/><table:table table:name="B">{table}</table:table>'
    styles = '<style:style style:name="x"><style:table-properties table:display="false"/></style:style>'
    texts = {2: ("12.5%", "a b\nc"), 3: ("d", "a b\nc"), 7: ("e", "e"), 8: ("e", "e")}
    rows = [(number, {"a": first, "b": second}) for number, (first, second) in texts.items()]
    said = ["the sheet 'B' is read, of A (hidden), B: FILE#SHEET names another one", "1 hidden rows are read, too"]
    assert read(ods(sheets, styles)) == (rows, said)
    formula = cell(' table:formula="of:=A1"', "")
    assert "in row 1, column 1 has no stored" in refused(
        ods(f'<table:table table:name="A">{row("", formula)}</table:table>')
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\3\4 cut off", "is neither a workbook nor data (BadZipFile: "),
        (packed({"xl/workbook.bin": ""}), "is neither .xlsx nor .ods: save a workbook as .xlsx, or unpack the archive"),
        (packed({"xl/workbook.xml": ""}), "is a workbook that openpyxl cannot read ("),
        (packed({"content.xml": "encrypted"}), "is a damaged workbook, or has a password ("),
    ],
)
def test_what_cannot_be_read(content, said):
    assert refused(content).startswith(said)


def test_without_openpyxl_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    assert refused(packed({"xl/workbook.xml": ""})).endswith("pip install '.[documents]' to read it")


def test_the_sheet_of_a_source(tmp_path):
    assert split_sheet("a/b.XLSX#My sheet") == (tmp_path.__class__("a/b.XLSX"), "My sheet")
    for name in ("a.csv#b", "a.xlsx"):
        assert split_sheet(name)[1] is None
    (tmp_path / "a.ods#b").touch()
    assert split_sheet(tmp_path / "a.ods#b") == (tmp_path / "a.ods#b", None)
