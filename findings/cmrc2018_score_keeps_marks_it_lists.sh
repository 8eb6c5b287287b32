#!/usr/bin/env bash
# CMRC 2018's scorer (cmrc2018 c0eb1b6b, version 5) takes the Chinese marks of a list out of both answers, quotation
# marks and the ellipsis among them, and one would guess that "…", ‘ and ’ make no answer wrong. But the list holds the
# ellipsis as two characters and is asked for one at a time, and it holds ’ without ‘. An exclamation mark is in it only
# in its full width. Blanks go before the marks do: the one inside "《 上海》" stays, and the answer is wrong.
# Seen, exact match of 上海 with: 《上海》 1 | ……上海 0 | 上海’ 1 | ‘上海’ 0 | 上海！ 1 | 上海! 0 | 《 上海》 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
source=ymcui/cmrc2018/c0eb1b6ba219847457e6af3180da722bbeb656af/baseline/cmrc2018_evaluate.py
curl -fsSL "https://raw.githubusercontent.com/$source" >"$folder/cmrc.py"
touch "$folder/nltk.py" # F1 alone splits words with it
cat >"$folder/score.py" <<'PY'
from cmrc import calc_em_score

for prediction in ("《上海》", "……上海", "上海’", "‘上海’", "上海！", "上海!", "《 上海》"):
    print("seen", prediction, calc_em_score(["上海"], prediction))
PY
seen=$(python3 -W ignore "$folder/score.py")
echo "$seen"
expected="seen 《上海》 1
seen ……上海 0
seen 上海’ 1
seen ‘上海’ 0
seen 上海！ 1
seen 上海! 0
seen 《 上海》 0"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
