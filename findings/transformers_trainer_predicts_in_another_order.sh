#!/usr/bin/env bash
# transformers 5.23.0 with accelerate 1.15.0 and PyTorch 2.13.0, on a CPU: train_sampling_strategy="group_by_length",
# which names the order of training, also permutes evaluation. Trainer.predict then returns logits and labels in an
# order that the seed decides, without a warning. A script that looks texts up by the number of the row, as those for
# question answering do to turn positions into answers, scores the answers against other rows.
# Seen, whether predict returns the rows in their order, and the first of its labels, which are the rows' numbers:
#   random True [0, 1, 2, 3 ...], sequential True, group_by_length False [36, 29, 52, 22 ...]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.23.0 accelerate==1.15.0
cat >"$folder/order.py" <<'PY'
import sys

import torch
from transformers import BertConfig, BertForQuestionAnswering, Trainer, TrainingArguments

sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = BertForQuestionAnswering(BertConfig(vocab_size=60, **sizes))
lengths = [5 + 7 * number % 23 for number in range(64)]
rows = [{"input_ids": [number % 50 + 3] * length} for number, length in enumerate(lengths)]
for number, row in enumerate(rows):
    row["start_positions"] = row["end_positions"] = number


def collate(batch):
    width = max(len(row["input_ids"]) for row in batch)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in batch])
    places = torch.tensor([row["start_positions"] for row in batch])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "start_positions": places, "end_positions": places}


for strategy in ("random", "sequential", "group_by_length"):
    options = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    args = TrainingArguments(sys.argv[1], train_sampling_strategy=strategy, **options)
    predicted = Trainer(model=model, args=args, data_collator=collate).predict(rows)
    order = predicted.label_ids[0].tolist()
    assert sorted(order) == list(range(64))
    print("seen", strategy, order == list(range(64)), order[:8])
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1
seen=$(python "$folder/order.py" "$folder/out" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen random True
seen sequential True
seen group_by_length False"
[ "$(sed 's/ \[.*//' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
