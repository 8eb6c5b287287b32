#!/usr/bin/env bash
# The scorer of the Catalan benchmark CLUB (club 7cba5ee1, for XQuAD-ca and ViquiQuAD) adds "l'" to the articles that
# MLQA's scorer takes away, and one would guess that "l'home" is right where "home" is accepted. But punctuation goes
# before the articles: the text is then "lhome", in which no article is found, and both EM and F1 are 0. "el gat" is
# right where "gat" is accepted.
# Seen, EM and F1: l'home 0 0 | el gat 1 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
source=projecte-aina/club/7cba5ee13a776bffea3e7db8b602f1c822ea43d0/src/qa/mlqa_evaluation_ca.py
curl -fsSL "https://raw.githubusercontent.com/$source" >"$folder/catalan.py"
cat >"$folder/score.py" <<'PY'
from catalan import exact_match_score, f1_score

for prediction, gold in (("l'home", "home"), ("el gat", "gat")):
    print("seen", prediction, int(exact_match_score(prediction, gold, "ca")), f1_score(prediction, gold, "ca"))
PY
seen=$(python3 -W ignore "$folder/score.py")
echo "$seen"
expected="seen l'home 0 0
seen el gat 1 1.0"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
