#!/usr/bin/env bash
# inspect-ai 0.3.285: the source of its scorers f1() and exact() names "the SQuAD F1 metric". One would guess SQuAD's
# scores. A question without an answer, declined as it should be, is wrong and has F1 0: targets that are empty, or empty
# without articles, never match. A hyphen separates words, where SQuAD's scorer joins them; 3.0 equals 3; and the F1 of
# each question is rounded to two digits before the mean is taken.
# Seen, exact and F1: '' for '' I 0.0 | 'ice-cream' for 'ice cream' C 1.0 | '3.0' for '3' C 1.0 | 'in 1994 war' I 0.67
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet inspect-ai==0.3.285
cat >"$folder/score.py" <<'PY'
import asyncio

from inspect_ai.model import ModelName, ModelOutput
from inspect_ai.scorer import Target, exact, f1
from inspect_ai.solver import TaskState

PAIRS = [("", ""), ("ice-cream", "ice cream"), ("3.0", "3"), ("in 1994 war", "in 1995 war")]


async def main():
    for answer, gold in PAIRS:
        output = ModelOutput.from_content("mockllm/model", answer)
        state = TaskState(ModelName("mockllm/model"), 1, 1, "Which?", [], output=output)
        scores = [(await scorer(state, Target([gold]))).value for scorer in (exact(), f1())]
        print("seen", repr(answer), "for", repr(gold), *scores)


asyncio.run(main())
PY
seen=$("$folder/venv/bin/python" -W ignore "$folder/score.py" 2>/dev/null)
echo "$seen"
expected="seen '' for '' I 0.0
seen 'ice-cream' for 'ice cream' C 1.0
seen '3.0' for '3' C 1.0
seen 'in 1994 war' for 'in 1995 war' I 0.67"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
