#!/usr/bin/env bash
# DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU and one rank: load_checkpoint(folder, load_module_only=True) is there
# to load "only the model weights", and does so at ZeRO stages 1 and 2. At stage 3 it loads none: the weights stay as
# they were drawn, and only buffers are read. It returns the checkpoint's path, as after a success, and nothing is
# logged, so that a warm start trains from random weights. With load_optimizer_states=False as well, it loads them.
# Seen, the weight and the buffer of a new model after loading a checkpoint in which both are 3 (they begin at 1):
#   stages 1, 2: 3 and 3 | stage 3: 1 and 3 | stage 3, without optimizer states: 3 and 3
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
os.environ["MASTER_PORT"] = str(29610 + stage)
import deepspeed
import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a compilation


class Scale(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), value))
        self.register_buffer("count", torch.full((1,), value))

    def forward(self, inputs):
        return (self.weight * inputs).sum()


def engine(value):
    model = Scale(value)
    config = {"train_batch_size": 1, "zero_allow_untested_optimizer": True}
    config["zero_optimization"] = {"stage": stage, "stage3_param_persistence_threshold": 0}
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)[0]


engine(3.0).save_checkpoint(sys.argv[2], tag="last")
for options in ({}, {"load_optimizer_states": False}):
    new = engine(1.0)
    path, _ = new.load_checkpoint(sys.argv[2], load_module_only=True, **options)
    assert path.startswith(sys.argv[2])
    with deepspeed.zero.GatheredParameters([new.module.weight], enabled=stage == 3):
        weight = new.module.weight[0].item()
    print("seen", *options, f"{weight:g} {new.module.count.item():g}")
PY
export PATH="$folder/venv/bin:$PATH"
check() { # STAGE EXPECTED
    local seen
    seen=$(python "$folder/load.py" "$1" "$folder/stage$1" 2>"$folder/stderr" | grep '^seen') ||
        { cat "$folder/stderr"; exit 1; }
    echo "stage $1:"; echo "$seen"
    [ "$seen" = "$2" ] || { echo "stage $1: expected"; echo "$2"; exit 1; }
}
for stage in 1 2; do check $stage $'seen 3 3\nseen load_optimizer_states 3 3'; done
check 3 $'seen 1 3\nseen load_optimizer_states 3 3'
