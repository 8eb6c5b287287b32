#!/usr/bin/env bash
# transformers 5.23.0 with PyTorch 2.13.0, on a CPU: model.save_pretrained(folder, state_dict=state) removes every
# weight from the caller's dictionary. A second call with that dictionary, such as weights kept from the best epoch,
# raises nothing and writes a folder without weights.
# Seen, the weights in the dictionary and the files of each folder:
#   before 39, after 0 | first: config.json, model.safetensors | second: config.json
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.23.0
cat >"$folder/save.py" <<'PY'
import sys
from pathlib import Path

from transformers import BertConfig, BertForQuestionAnswering

sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
model = BertForQuestionAnswering(BertConfig(vocab_size=60, **sizes))
state = {name: weight.clone() for name, weight in model.state_dict().items()}
before = len(state)
folders = [Path(sys.argv[1], name) for name in ("first", "second")]
for folder in folders:
    model.save_pretrained(folder, state_dict=state)
print("seen before", before, "after", len(state))
for folder in folders:
    print("seen", folder.name, *sorted(file.name for file in folder.iterdir()))
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1
seen=$(python "$folder/save.py" "$folder" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen before 39 after 0
seen first config.json model.safetensors
seen second config.json"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
