#!/usr/bin/env bash
# DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU and one rank: the first engine at ZeRO stage 3 puts a function of its
# own in the place of torch.nn.functional.linear. It stays there after engine.destroy(), for every module of the
# process, and nothing is logged. It adds the bias to a product that is already rounded, where PyTorch's adds it
# before it rounds. So a plain torch.nn.Linear in bfloat16, which DeepSpeed has never seen, gives another number than
# before. Forward-mode differentiation through it no longer works. An engine at stage 1 leaves nothing behind.
# Seen, for a layer with the weights 256 and 1 and the bias 1, on ones (256 + 1 + 1):
#   before, and after an engine at stage 1: 258, and jvp works | after one at stage 3: 256, and jvp raises
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 deepspeed==0.19.8
cat >"$folder/linear.py" <<'PY'
import os

import torch

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29610"}
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a compilation
layer = torch.nn.Linear(2, 1, dtype=torch.bfloat16)
with torch.no_grad():
    layer.weight.copy_(torch.tensor([[256.0, 1.0]]))
    layer.bias.fill_(1)
ones = torch.ones(1, 1, 2, dtype=torch.bfloat16)  # batch, position, feature


def show(when):
    try:
        torch.func.jvp(layer, (ones,), (ones,))
        forward_mode = "works"
    except NotImplementedError:
        forward_mode = "raises"
    print("seen", when, f"{layer(ones).item():g}", forward_mode)


def engine_at(stage):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"train_batch_size": 1, "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": stage}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
    engine.destroy()


show("before")
engine_at(1)
show("after stage 1")
engine_at(3)
show("after stage 3")
PY
export PATH="$folder/venv/bin:$PATH"
seen=$(python "$folder/linear.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen before 258 works
seen after stage 1 258 works
seen after stage 3 256 raises"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
