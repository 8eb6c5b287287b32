#!/usr/bin/env bash
# DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU and one rank, in float32: zero_grad() between two micro-batches of an
# update (gradient_accumulation_steps 2), as one would throw away a bad one, clears the gradient by ZeRO stage only. At
# stages 0 and 1 both engine.zero_grad() and engine.optimizer.zero_grad() clear it. At stage 2 neither does. At stage 3
# only the optimizer's does. Nothing is logged; the first micro-batch is in the update all the same.
# Seen, the step of SGD with a learning rate of 1, for micro-batches of gradient 3 and 1 (2 if both count, 0.5 if one):
#   engine.zero_grad(): stages 0, 1: 0.5 | stages 2, 3: 2
#   engine.optimizer.zero_grad(): stages 0, 1, 3: 0.5 | stage 2: 2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 deepspeed==0.19.8
cat >"$folder/clear.py" <<'PY'
import os
import sys

import torch

stage, who = int(sys.argv[1]), sys.argv[2]
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}
os.environ["MASTER_PORT"] = str(29640 + stage)
import deepspeed
import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a compilation
model = torch.nn.Linear(4, 1, bias=False)
weight = torch.nn.init.zeros_(model.weight)
config = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0}
config |= {"zero_allow_untested_optimizer": True, "zero_optimization": {"stage": stage}}
optimizer = torch.optim.SGD(model.parameters(), lr=1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for gradient in (3.0, 1.0):
    engine.backward(engine(torch.full((1, 4), gradient)).sum())
    engine.step()
    if gradient == 3:
        (engine if who == "engine" else engine.optimizer).zero_grad()
with deepspeed.zero.GatheredParameters([weight], enabled=stage == 3):
    print("seen", f"{-weight.mean().item():g}")
PY
export PATH="$folder/venv/bin:$PATH"
check() { # STAGE WHO EXPECTED
    local seen
    seen=$(python "$folder/clear.py" "$1" "$2" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
    echo "stage $1, $2: $seen"
    [ "$seen" = "seen $3" ] || { echo "expected $3"; exit 1; }
}
for stage in 0 1; do check $stage engine 0.5; done
for stage in 2 3; do check $stage engine 2; done
for stage in 0 1 3; do check $stage optimizer 0.5; done
check 2 optimizer 2
