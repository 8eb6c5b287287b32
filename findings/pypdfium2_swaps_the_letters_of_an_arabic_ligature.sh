#!/usr/bin/env bash
# pypdfium2 5.15.2 (PDFium in its wheel): in Arabic one glyph is often two letters, as lam and alef are, and the font's
# ToUnicode map gives them in the order in which they are read. The text has them the other way round, from both methods,
# so that salam (peace) becomes salim, another word, and nearly every Arabic page has words that no search finds. The
# letters of a Latin ligature, fi, keep their order.
# Seen, for the word sin, lam + alef (one glyph), mim, and for fi:
#   arabic: sin alef lam mim (should be: sin lam alef mim) | latin: f i
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet pypdfium2==5.15.2
cat >"$folder/read.py" <<'PY'
import importlib.metadata

import pypdfium2

CMAP = (
    "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /Made def 1 begincodespacerange <00> <FF> "
    "endcodespacerange 4 beginbfchar <41> <0633> <42> <06440627> <43> <0645> <44> <00660069> endbfchar endcmap end end"
)
NAMES = {"\u0633": "sin", "\u0644": "lam", "\u0627": "alef", "\u0645": "mim"}


def stream(content: str) -> str:
    return f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"


def pdf(shown: str) -> bytes:
    objects = (
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 100] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >>",
        stream(f"BT /F 12 Tf 10 50 Td ({shown}) Tj ET"),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R >>",
        stream(CMAP),
    )
    content = b"%PDF-1.4\n"
    places = ""
    for number, value in enumerate(objects, 1):
        places += f"{len(content):010d} 00000 n \n"
        content += f"{number} 0 obj\n{value}\nendobj\n".encode()
    table = f"xref\n0 7\n0000000000 65535 f \n{places}trailer << /Size 7 /Root 1 0 R >>\n"
    return content + f"{table}startxref\n{len(content)}\n%%EOF\n".encode()


print("pypdfium2", importlib.metadata.version("pypdfium2"))
for name, shown in (("arabic", "CBA"), ("latin", "D")):  # drawn from left to right: mim, lam + alef, sin
    page = pypdfium2.PdfDocument(pdf(shown))[0].get_textpage()
    for text in (page.get_text_bounded(), page.get_text_range()):
        print("seen", f"{name}:", *(NAMES.get(letter, letter) for letter in text))
PY
seen=$("$folder/venv/bin/python" "$folder/read.py")
echo "$seen"
expected="seen arabic: sin alef lam mim
seen arabic: sin alef lam mim
seen latin: f i
seen latin: f i"
[ "$(grep '^seen' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
