#!/usr/bin/env bash
# transformers 5.23.0, Accelerate 1.15.0 and DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU: a Trainer without
# `deepspeed`, made after one with it in the same process, trains by DeepSpeed as well, with the first one's
# configuration. transformers takes its environment variable back, but Accelerate's state is shared and stays.
# Seen, what each of three Trainers trained by:
#   1, without deepspeed: DistributedDataParallel | 2, with: DeepSpeedEngine | 3, without: DeepSpeedEngine
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet \
    torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 deepspeed==0.19.8 setuptools
cat >"$folder/train.py" <<'PY'
import os
import sys

import torch
from transformers import BertConfig, BertForQuestionAnswering, Trainer, TrainingArguments

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
os.environ["LOCAL_RANK"] = "0"
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
ROWS = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "start_positions": 1, "end_positions": 2}] * 4
BATCH = dict.fromkeys(["train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"], "auto")
DEEPSPEED = {"zero_optimization": {"stage": 1}} | BATCH

for number, more in ((1, {}), (2, {"deepspeed": DEEPSPEED}), (3, {})):
    model = BertForQuestionAnswering(BertConfig(vocab_size=60, **SIZES))
    fixed = {"max_steps": 1, "report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
    args = TrainingArguments(f"{sys.argv[1]}/{number}", **fixed, **more)
    trainer = Trainer(model, args, train_dataset=ROWS)
    trainer.train()
    print("seen", number, "with" if args.deepspeed else "without", type(trainer.model_wrapped).__name__, flush=True)
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1 DS_ACCELERATOR=cpu
seen=$(python -W ignore "$folder/train.py" "$folder/out" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen 1 without DistributedDataParallel
seen 2 with DeepSpeedEngine
seen 3 without DeepSpeedEngine"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
