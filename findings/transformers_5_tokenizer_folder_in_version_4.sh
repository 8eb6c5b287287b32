#!/usr/bin/env bash
# transformers 5.23.0 against 4.57.6: a folder that PreTrainedTokenizerFast.save_pretrained of version 5 writes does not
# name that class, but TokenizersBackend. AutoTokenizer of version 4 refuses it: "Tokenizer class TokenizersBackend does
# not exist or is not currently imported." The files themselves are fine: with PreTrainedTokenizerFast written in the
# place of that name the same folder loads in both versions.
# Seen: saved by 5.23.0 as TokenizersBackend, 4.57.6 raises ValueError | renamed, both give the ids 1 2 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 4.57.6 5.23.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/python" -m pip install --quiet transformers==$version
done
cat >"$folder/save.py" <<'PY'
import json
import sys

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

words = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
words.pre_tokenizer = Whitespace()
for folder in sys.argv[1:]:
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
path = f"{folder}/tokenizer_config.json"
with open(path) as file:
    config = json.load(file)
print("seen saved as", config["tokenizer_class"])
with open(path, "w") as file:
    json.dump(config | {"tokenizer_class": "PreTrainedTokenizerFast"}, file)
PY
cat >"$folder/load.py" <<'PY'
import sys

import transformers

try:
    ids = transformers.AutoTokenizer.from_pretrained(sys.argv[1])("a b c")["input_ids"]
    print("seen in", transformers.__version__, *ids)
except ValueError as error:
    print("seen in", transformers.__version__, "ValueError:", error)
PY
export HF_HUB_OFFLINE=1
seen=$(
    "$folder/5.23.0/bin/python" "$folder/save.py" "$folder/written" "$folder/renamed" 2>"$folder/stderr"
    for name in written renamed; do
        for version in 4.57.6 5.23.0; do
            echo "$name $("$folder/$version/bin/python" "$folder/load.py" "$folder/$name" 2>>"$folder/stderr")"
        done
    done
) || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen saved as TokenizersBackend
written seen in 4.57.6 ValueError: Tokenizer class TokenizersBackend does not exist or is not currently imported.
written seen in 5.23.0 1 2 0
renamed seen in 4.57.6 1 2 0
renamed seen in 5.23.0 1 2 0"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
