#!/usr/bin/env bash
# DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU and one rank, in float32: weights that engine.module.load_state_dict()
# sets after deepspeed.initialize() are there until the first step, and the loss is computed with them. From ZeRO stage
# 1 on the step then starts from the weights that the model had before, also in float32, where one expects no second
# copy. At stage 3 the same happens to what is written under GatheredParameters(..., modifier_rank=0). Stage 0 keeps the
# loaded weights. Nothing is logged.
# Seen, for a weight of 1 that is set to 3, then one step of 0.125:
#   stage 0: 3, then 2.875 | stages 1, 2, 3: 3, then 0.875
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 deepspeed==0.19.8
cat >"$folder/load.py" <<'PY'
import os
import sys

import torch

stage = int(sys.argv[1])
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}
os.environ["MASTER_PORT"] = str(29650 + stage)
import deepspeed
import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a compilation
model = torch.nn.Linear(4, 1, bias=False)
weight = torch.nn.init.ones_(model.weight)
config = {"train_batch_size": 1, "gradient_clipping": 0.0}
config |= {"zero_allow_untested_optimizer": True, "zero_optimization": {"stage": stage}}
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
values = []
with deepspeed.zero.GatheredParameters([weight], modifier_rank=0, enabled=stage == 3):
    engine.module.load_state_dict({"weight": torch.full((1, 4), 3.0)})
for update in range(2):
    with deepspeed.zero.GatheredParameters([weight], enabled=stage == 3):
        values.append(weight.mean().item())
    if update == 0:
        loss = engine(torch.ones(1, 4)).sum()
        engine.backward(loss)
        engine.step()
print("seen loss", f"{loss.item():g}", "weight", *(f"{value:g}" for value in values))
PY
export PATH="$folder/venv/bin:$PATH"
check() { # STAGE EXPECTED
    local seen
    seen=$(python "$folder/load.py" "$1" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
    echo "stage $1: $seen"
    [ "$seen" = "seen $2" ] || { echo "expected $2"; exit 1; }
}
check 0 "loss 12 weight 3 2.875"
for stage in 1 2 3; do check $stage "loss 12 weight 3 0.875"; done
