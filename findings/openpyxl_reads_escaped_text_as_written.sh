#!/usr/bin/env bash
# openpyxl 3.1.5: what a workbook escapes in a text is not read back. A carriage return, which Excel and XlsxWriter store
# as _x000D_, stays these seven letters, so that a cell with a line break of Windows reads "one_x000D_\ntwo"; the text
# _x000D_ itself, which is stored as _x005F_x000D_, reads the same. And x005F_ is dropped wherever it stands, also from a
# text without any escape: "max005F_y" reads "may". pandas.read_excel reads with openpyxl by default.
# Seen: what XlsxWriter wrote, and what openpyxl reads
#   'one\r\ntwo' is read as 'one_x000D_\ntwo' | 'a_x000D_b' as 'a_x000D_b' | 'max005F_y' as 'may'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet openpyxl==3.1.5 xlsxwriter==3.3.1
cat >"$folder/read.py" <<'PY'
import importlib.metadata
import sys

import openpyxl
import xlsxwriter

print("openpyxl", importlib.metadata.version("openpyxl"), "XlsxWriter", importlib.metadata.version("xlsxwriter"))
texts = ["one\r\ntwo", "a_x000D_b", "max005F_y"]
with xlsxwriter.Workbook(sys.argv[1]) as book:
    book.add_worksheet().write_column(0, 0, texts)
cells = openpyxl.load_workbook(sys.argv[1]).active["A"]
for text, cell in zip(texts, cells):
    print("seen", f"{text!r} is read as {cell.value!r}")
PY
seen=$("$folder/venv/bin/python" "$folder/read.py" "$folder/texts.xlsx")
echo "$seen"
expected="seen 'one\r\ntwo' is read as 'one_x000D_\ntwo'
seen 'a_x000D_b' is read as 'a_x000D_b'
seen 'max005F_y' is read as 'may'"
[ "$(grep '^seen' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
