#!/usr/bin/env bash
# DeepSpeed 0.19.8 with PyTorch 2.13.0, on a CPU and one rank: engine.destroy() frees an engine at ZeRO stage 1, but not
# one at stage 3. When it is destroyed, and the model, the optimizer and the engine are deleted and collected, all of its
# weights, their gradients, the float32 copy and both moments are still there: a second training in the process begins
# with the first one in memory. Two things hold them: FWD_MODULE_STACK, a list in
# deepspeed.runtime.zero.parameter_offload, and the lru_cache of a method of the class PartitionedParameterCoordinator,
# whose keys hold the coordinator. When both are emptied, nothing is left.
# Seen, for 4 MB of weights and three updates of AdamW, in MB:
#   left by stage 1: 0 | by stage 3: 20 | when the list is empty: 20 | when the cache is, too: 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 deepspeed==0.19.8
cat >"$folder/destroy.py" <<'PY'
import gc
import inspect
import os

import torch

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611"}
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import deepspeed.ops
from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # spares a compilation


def train(stage):
    model = torch.nn.Sequential(*(torch.nn.Linear(500, 500, bias=False) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    config = {"train_batch_size": 1, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(3):
        engine.backward(engine(torch.ones(1, 500)).sum())
        engine.step()
    engine.destroy()


def live_megabytes():
    gc.collect()
    tensors = (tracked for tracked in gc.get_objects() if issubclass(type(tracked), torch.Tensor))
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values()) / 1e6


before = live_megabytes()
train(1)
print(f"seen stage 1: {live_megabytes() - before:.0f}")
before = live_megabytes()
train(3)
print(f"seen stage 3: {live_megabytes() - before:.0f}")
FWD_MODULE_STACK.clear()
print(f"seen list emptied: {live_megabytes() - before:.0f}")
cached = PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
inspect.getclosurevars(cached).nonlocals["func"].cache_clear()
print(f"seen cache emptied, too: {live_megabytes() - before:.0f}")
PY
export PATH="$folder/venv/bin:$PATH"
seen=$(python "$folder/destroy.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen stage 1: 0
seen stage 3: 20
seen list emptied: 20
seen cache emptied, too: 0"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
