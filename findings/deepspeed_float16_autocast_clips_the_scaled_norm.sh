#!/usr/bin/env bash
# DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU and one rank: torch_autocast with dtype float16 scales the loss by
# 65536. At ZeRO stages 1 to 3 gradient_clipping is compared with the norm of the scaled gradient. An update that
# reaches the limit is 65536 times too small. get_global_grad_norm() gives the scaled norm, too. Where the scaled
# gradient overflows, the update is left out, and the scale is never lowered: the run goes on and never trains. Stage
# 0 is right in both.
# Seen, the weight after 4 updates with SGD and a learning rate of 1, for 16 weights:
#   gradients of 0.25 (norm 1), gradient_clipping 0.25: stage 0: -0.25 | stages 1 to 3: -3.81e-06
#   gradients of 2, no clipping: stage 0: -4 (its first 2 updates only lower the scale) | stages 1 to 3: 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 deepspeed==0.19.8
cat >"$folder/scaled.py" <<'PY'
import os
import sys

import torch

stage, feature, clipping = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}
os.environ["MASTER_PORT"] = str(29630 + stage)
import deepspeed
import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a compilation
model = torch.nn.Linear(16, 1, bias=False)
weight = torch.nn.init.zeros_(model.weight)
config = {"train_batch_size": 1, "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": stage}}
config |= {"torch_autocast": {"enabled": True, "dtype": "float16"}, "gradient_clipping": clipping}
optimizer = torch.optim.SGD(model.parameters(), lr=1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for _ in range(4):
    engine.backward(0.25 * engine(torch.full((1, 16), feature)).float().sum())
    engine.step()
with deepspeed.zero.GatheredParameters([weight], enabled=stage == 3):
    print("seen", f"{weight.mean().item():.3g}")
PY
export PATH="$folder/venv/bin:$PATH"
check() { # STAGE FEATURE CLIPPING EXPECTED
    local seen
    seen=$(python "$folder/scaled.py" "${@:1:3}" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
    echo "stage $1, gradients of $2 / 4, clipping $3: $seen"
    [ "$seen" = "seen $4" ] || { echo "expected $4"; exit 1; }
}
check 0 1 0.25 -0.25
check 0 8 0 -4
for stage in 1 2 3; do
    check $stage 1 0.25 -3.81e-06
    check $stage 8 0 0
done
