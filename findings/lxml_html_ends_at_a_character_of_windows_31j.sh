#!/usr/bin/env bash
# lxml 6.1.3 (libxml2 2.14.6 in its wheel): a page that names its character set Shift_JIS and holds a circled one, as
# Windows writes it, ends at that character: the paragraph's rest and all that follows is gone, and nothing is raised.
# Browsers read it, because the name means Windows-31J (encoding.spec.whatwg.org); so it is with gb2312 (GBK) and euc-kr
# (Windows-949). A page that keeps to the narrower set is read to its end.
# Seen, the paragraphs of each page:
#   shift_jis, plain: 3 | shift_jis: 2 | gb2312: 2 | euc-kr: 2 (should be 3)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet lxml==6.1.3
cat >"$folder/read.py" <<'PY'
from lxml import etree

print("lxml", etree.__version__, "libxml2", etree.LIBXML_VERSION)
PAGE = '<html><head><meta charset="{}"></head><body><p>first</p><p>{} end</p><p>last</p></body></html>'
CASES = (
    ("shift_jis, plain", "cp932", "\u4e00"),
    ("shift_jis", "cp932", "\u2460"),
    ("gb2312", "gbk", "\u9555"),
    ("euc-kr", "cp949", "\ub620"),
)
for name, written, character in CASES:
    page = PAGE.format(name.split(",")[0], character).encode(written)
    root = etree.fromstring(page, etree.HTMLParser())
    print("seen", f"{name}:", len(root.findall(".//p")), "paragraphs")
PY
seen=$("$folder/venv/bin/python" "$folder/read.py")
echo "$seen"
expected="seen shift_jis, plain: 3 paragraphs
seen shift_jis: 2 paragraphs
seen gb2312: 2 paragraphs
seen euc-kr: 2 paragraphs"
[ "$(grep '^seen' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
