#!/usr/bin/env bash
# DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU and one rank, ZeRO stages 1 to 3: once an engine with torch_autocast
# has existed, later engines of the process that do not ask for it are changed, although the first was destroyed.
# After one with bfloat16 they ignore communication_data_type. After one with float16 they multiply the loss by 65536
# and divide by it nowhere in the norm: get_global_grad_norm() is 65536 times too large, and gradient_clipping
# therefore makes the update 65536 times too small. Nothing is logged.
# Seen, for a layer of 16 weights whose gradients are all 1.003, SGD with a learning rate of 1:
#   communication_data_type bf16: norm 4, step -1 | after torch_autocast in bfloat16: norm 4.012, step -1.003
#   gradient_clipping 1: norm 4.012, step -0.25 | after torch_autocast in float16: norm 262930, step -3.815e-06
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 deepspeed==0.19.8
cat >"$folder/later.py" <<'PY'
import os
import sys

import torch

stage, dtype = int(sys.argv[1]), sys.argv[2]
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}
os.environ["MASTER_PORT"] = str(29620 + stage)
import deepspeed
import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a compilation


def one_update(blocks):
    model = torch.nn.Linear(16, 1, bias=False)
    weight = torch.nn.init.zeros_(model.weight)
    config = {"train_batch_size": 1, "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": stage}}
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config | blocks)
    engine.backward(engine(torch.full((1, 16), 1.003)).float().sum())
    engine.step()
    with deepspeed.zero.GatheredParameters([weight], enabled=stage == 3):
        numbers = f"{float(engine.get_global_grad_norm()):.6g} {weight.mean().item():.4g}"
    engine.destroy()
    return numbers


blocks = {"gradient_clipping": 1.0}
if dtype == "bfloat16":
    blocks = {"gradient_clipping": 0.0, "communication_data_type": "bf16"}
alone = one_update(blocks)
one_update({"torch_autocast": {"enabled": True, "dtype": dtype}})
print("seen alone", alone, "after", one_update(blocks))
PY
export PATH="$folder/venv/bin:$PATH"
check() { # STAGE DTYPE EXPECTED
    local seen
    seen=$(python "$folder/later.py" "$1" "$2" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
    echo "stage $1, $2: $seen"
    [ "$seen" = "seen $3" ] || { echo "expected $3"; exit 1; }
}
for stage in 1 2 3; do
    check $stage bfloat16 "alone 4 -1 after 4.012 -1.003"
    check $stage float16 "alone 4.012 -0.25 after 262930 -3.815e-06"
done
