"""Started under a launcher: loads models for ZeRO-3 as a run does.

`compare FOLDER...` fails if a weight or a buffer is not bit-equal to that of the same model loaded whole.
`memory SMALL LARGE` measures the second model; `LARGE.rank<n>` holds in bytes how much this rank's memory grew at most,
and the sizes of its part and of the whole model.
"""

import gc
import json
import sys
from pathlib import Path

import deepspeed
import torch

from swep_ds import ranks
from swep_ds.training.zero.install import before_initialize
from swep_ds.training.zero.weights import shard
from tests.support import tiny_models

OFF = {"enabled": False}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": OFF, "fp16": OFF}


def load(folder: str, mapped: bool):
    torch.manual_seed(3)
    return tiny_models.load(folder, mapped=mapped)


def compare(folder: str) -> list[str]:
    sharded, whole = load(folder, mapped=True), load(folder, mapped=False)
    differing = []
    shard(sharded, CONFIG)
    expected = dict(whole.named_parameters(remove_duplicate=False))
    for name, parameter in sharded.named_parameters(remove_duplicate=False):
        part = parameter.ds_tensor.numel()
        with deepspeed.zero.GatheredParameters([parameter]):
            if not torch.equal(parameter, expected.pop(name)) or part > parameter.numel() // 2 + 1:
                differing.append(name)
    for (name, buffer), (_, other) in zip(sharded.named_buffers(), whole.named_buffers(), strict=True):
        if buffer.dtype != other.dtype or not torch.equal(buffer, other):
            differing.append(name)
    if len(list(sharded.parameters())) != len(list(whole.parameters())):
        differing.append("tied weights")
    return [*differing, *expected]


def memory(folder: str) -> dict[str, int]:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = status("VmRSS")
    qa = load(folder, mapped=True)
    shard(qa, CONFIG)
    return {
        "grown_by": status("VmHWM") - before,
        "part": sum(p.ds_tensor.nbytes for p in qa.parameters()),
        "whole": sum(4 * p.ds_numel for p in qa.parameters()),
    }


def status(field: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    what, *folders = sys.argv[1:]
    before_initialize()
    with ranks.process_group():
        if what == "compare":
            differing = ranks.gather([f"{folder}: {name}" for folder in folders for name in compare(folder)])
            assert not any(differing), differing
        else:
            small, large = folders
            shard(load(small, mapped=True), CONFIG)  # the first model costs memory of its own
            Path(f"{large}.rank{ranks.rank()}").write_text(json.dumps(memory(large)))
