#!/usr/bin/env bash
# The notebook that scores JaQuAD's baseline (JaQuAD 23f5d72c, the source of the figures in its README) prints F1 over
# characters and "Exact Match". One would guess that the latter compares texts. It asks whether F1 is 1, and F1 is of
# bags of characters: the 3rd of January is an exact match of the 1st of March, and Kyoto of a word that no one uses.
# Seen, F1 == 1 of 3月1日 for 1月3日: True | of 都京 for 京都: True | of 京都。 for 京都: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
source=SkelterLabsInc/JaQuAD/23f5d72cc273c49b35e2d9efe0f51757aa1770bd/JaQuAD.ipynb
curl -fsSL "https://raw.githubusercontent.com/$source" >"$folder/notebook.json"
cat >"$folder/score.py" <<'PY'
import json
import sys
from typing import List

cells = ["".join(cell["source"]) for cell in json.load(open(sys.argv[1]))["cells"]]
[functions] = [cell for cell in cells if "def char_f1_score" in cell]
[loop] = [cell for cell in cells if "char_f1_score(" in cell and "def " not in cell]
assert "em.append(f1 == 1.)" in loop
scope = {"List": List}
exec(functions, scope)
for prediction, gold in (("3月1日", "1月3日"), ("都京", "京都"), ("京都。", "京都")):
    print("seen", prediction, scope["char_f1_score"](prediction, gold) == 1.0)
PY
seen=$(python3 -W ignore "$folder/score.py" "$folder/notebook.json")
echo "$seen"
expected="seen 3月1日 True
seen 都京 True
seen 京都。 False"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
