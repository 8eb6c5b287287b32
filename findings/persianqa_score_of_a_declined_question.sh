#!/usr/bin/env bash
# PersianQA is made like SQuAD v2.0: three of ten test questions have no answer. Its scorer (PersianQA ba4806eb,
# src/evaluation.py, "Method Two") accepts "" for them, so one would guess that a model which declines them all gets 100
# for them, as by SQuAD v2.0's script. It gets EM 100 and F1 0: no character is shared, and the line of v2.0's script
# that compares two empty answers is missing. A model that is right on every question has an F1 of 70.
# Seen, of one question without an answer that is declined: {'exact_match': 100.0, 'f1': 0.0}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
source=sajjjadayobi/PersianQA/ba4806eb7894b1e78e214e16e7e717840c129450/src/evaluation.py
curl -fsSL "https://raw.githubusercontent.com/$source" >"$folder/evaluation.py"
cat >"$folder/score.py" <<'PY'
import re
import sys
from collections import Counter

script = open(sys.argv[1]).read()  # it loads a model that the user names: only its functions run here
functions = re.findall(r"^def .*?(?=^\S|\Z)", script, re.DOTALL | re.MULTILINE)
scope = {"re": re, "Counter": Counter}
exec("\n".join(functions), scope)
print("seen", scope["evaluate"]([[""]], [""]))
PY
seen=$(python3 -W ignore "$folder/score.py" "$folder/evaluation.py")
echo "$seen"
expected="seen {'exact_match': 100.0, 'f1': 0.0}"
[ "$seen" = "$expected" ] || { echo "expected: $expected"; exit 1; }
