#!/usr/bin/env bash
# KLUE-MRC's scorer (KLUE-baseline 8a03c944) compiles a pattern of the marks that KorQuAD's scorer takes for blanks, and
# one would guess that it does the same. But the brackets of the pattern's set close before the last four marks, so that
# it asks for a mark followed by all of ()‘’. Marks beyond ASCII therefore stay, and an answer in 《》 is wrong.
# Its ROUGE-W is the longest common run as difflib finds it. In an accepted answer of 200 characters or more, difflib
# takes every character that makes up more than 1 % for junk at which no run begins: a prediction that is a part of the
# answer gets 0, and the same part of a shorter answer does not.
# Seen, exact match and ROUGE-W: 《한강》 for 한강: 0.0 0.667 | 120 of 220 characters: 0.0 0.0 | 120 of 180: 0.0 0.8
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.2.6
source=KLUE-benchmark/KLUE-baseline/8a03c9447e4c225e806877a84242aea11258c790/klue_baseline/metrics/utils.py
curl -fsSL "https://raw.githubusercontent.com/$source" >"$folder/klue.py"
cat >"$folder/score.py" <<'PY'
from klue import compute_em_and_rouge_w_score_for_klue_mrc as score
from klue import normalize_answer_for_klue_mrc as normalize

for prediction, gold in (("《한강》", "한강"), ("나가" * 60, "가나" * 110), ("나가" * 60, "가나" * 90)):
    print("seen", *(round(value, 3) for value in score(normalize(prediction), [normalize(gold)])))
PY
seen=$("$folder/venv/bin/python" -W ignore "$folder/score.py")
echo "$seen"
expected="seen 0.0 0.667
seen 0.0 0.0
seen 0.0 0.8"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
