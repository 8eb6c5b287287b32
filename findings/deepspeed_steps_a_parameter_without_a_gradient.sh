#!/usr/bin/env bash
# DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU and one rank: a parameter that an update does not use is stepped all the
# same. PyTorch's AdamW skips a parameter whose gradient is None: neither momentum nor weight decay moves it. Under
# DeepSpeed the same AdamW moves it by both, at every ZeRO stage, stage 0 included: at stages 0 to 2 as with a gradient of
# 0, at stage 3 with the gradient of the last update that used it. Nothing is logged.
# Seen, for a weight of 1 that the first of three updates uses (learning rate 0.1, weight decay 0.1):
#   PyTorch 0.89 0.89 0.89 | stages 0, 1, 2: 0.89 0.8141 0.7542 | stage 3: 0.89 0.7811 0.6733
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 deepspeed==0.19.8
cat >"$folder/steps.py" <<'PY'
import os
import sys

import torch

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always = torch.nn.Parameter(torch.ones(4))
        self.at_first = torch.nn.Parameter(torch.ones(4))

    def forward(self, uses_both):
        loss = self.always.sum()
        return loss + self.at_first.sum() if uses_both else loss


model = Two()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
values = []
if sys.argv[1] == "torch":
    for update in range(3):
        optimizer.zero_grad()
        model(update == 0).backward()
        optimizer.step()
        values.append(model.at_first[0].item())
else:
    stage = int(sys.argv[1])
    os.environ["MASTER_PORT"] = str(29600 + stage)
    import deepspeed
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a compilation
    config = {"train_batch_size": 1, "zero_allow_untested_optimizer": True}
    config["zero_optimization"] = {"stage": stage, "stage3_param_persistence_threshold": 0}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for update in range(3):
        engine.backward(engine(update == 0))
        engine.step()
        with deepspeed.zero.GatheredParameters([model.at_first], enabled=stage == 3):
            values.append(model.at_first[0].item())
print("seen", *(f"{value:.4g}" for value in values))
PY
export PATH="$folder/venv/bin:$PATH"
check() { # LOOP EXPECTED
    local seen
    seen=$(python "$folder/steps.py" "$1" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
    echo "$1: $seen"
    [ "$seen" = "seen $2" ] || { echo "$1: expected $2"; exit 1; }
}
check torch "0.89 0.89 0.89"
for stage in 0 1 2; do check $stage "0.89 0.8141 0.7542"; done
check 3 "0.89 0.7811 0.6733"
