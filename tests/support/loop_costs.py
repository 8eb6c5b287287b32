"""Started under a launcher: measures what updates send, and where the training loop reads tensors, as JSON.

Arguments: the output file, a recipe, a ds_config.
"""

import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from deepspeed.comm import comm
from torch.overrides import TorchFunctionMode

from benchmarks.training.updates import EngineUpdate
from swep_ds import ranks
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.run import run
from swep_ds.training import loop
from swep_ds.training.engine import build_engine
from tests.support.engine_memory import make_config, make_objective
from tests.support.tiny_batches import batch

READS = ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__")
NAMES = ("swep_ds", "kernels", "transformers", "deepspeed")
UPDATES = 6
# collective -> position and name of the argument that is as large as all ranks' parts together
COLLECTIVES = {
    "all_reduce": (0, "tensor"),
    "reduce_scatter_tensor": (1, "input_tensor"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "all_gather_coalesced": (0, "output_tensors"),
}


class Traffic:
    """DeepSpeed's backend of collectives; counts the bytes of the whole tensors by collective."""

    def __init__(self, backend):
        self.backend, self.bytes = backend, Counter()

    def __getattr__(self, name: str):
        attribute = getattr(self.backend, name)
        return partial(self._call, name, attribute) if name in COLLECTIVES else attribute

    def _call(self, name: str, collective, *args, **kwargs):
        position, argument = COLLECTIVES[name]
        whole = kwargs[argument] if argument in kwargs else args[position]
        self.bytes[name] += sum(part.nbytes for part in ([whole] if isinstance(whole, torch.Tensor) else whole))
        return collective(*args, **kwargs)


def sent(stage: int, way: str, coalesces: bool, live: int | None) -> list:
    """[parameters, bytes by collective] of an update; `live` is how many weights may stay gathered at ZeRO-3."""
    method, _, execution = way.partition(":")
    settings = ["train.micro_batch_size=1", f"method.name={method}", f"train.coalesce_grad_reduction={coalesces}"]
    recipe = Recipe.load("quickstart", [*settings, f"train.execution={execution or 'split'}"])
    objective = make_objective("bert", recipe)
    config = make_config(recipe, stage, backwards=len(objective.parts(execution)))
    if live:
        config["zero_optimization"] |= {"stage3_max_live_parameters": live, "stage3_max_reuse_distance": live}
    engine = build_engine(objective, config, recipe.train, 100)
    update, windows = EngineUpdate(engine), batch((4,), dtype=torch.float32)
    for number in range(3):  # at ZeRO-3 DeepSpeed records the first ones
        update(windows, number)
    with mock.patch.object(comm, "cdb", Traffic(comm.cdb)) as traffic:
        update(windows, 3)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in objective.parameters())
    engine.destroy()
    return [parameters, dict(traffic.bytes)]


class Reads(TorchFunctionMode):
    """The files, by update, in which this package or transformers, not DeepSpeed, reads a tensor's value."""

    def __init__(self):
        super().__init__()
        self.update, self.files = 0, set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in READS:
            frame = sys._getframe(1)
            while not any(name in frame.f_code.co_filename for name in NAMES):
                frame = frame.f_back
            if "deepspeed" not in frame.f_code.co_filename:
                self.files.add((self.update, Path(frame.f_code.co_filename).name))
        return func(*args, **(kwargs or {}))


def training(recipe: str, ds_config: str) -> dict:
    """Where a run reads tensors and waits for a GPU between its first and its last update, which are logged."""
    sets = [f"train.log_every={10 * UPDATES}", "train.checkpoint_every=1000", f"train.max_updates={UPDATES}"]
    seed, waits = loop.seed_dropout, []

    def note(number, update):
        reads.update = update
        if update in (1, UPDATES - 1):
            waits[:] = [] if update == 1 else [warning.filename for warning in caught]
            caught.clear()
        seed(number, update)

    with (
        Reads() as reads,
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(loop, "seed_dropout", note),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        run(Recipe.load(recipe, [*sets, "data.eval={}"]), ds_config, ranks.from_rank0(lambda: Path(folder)), "never")
    between = {file for update, file in reads.files if 0 < update < UPDATES - 1}
    logged = {file for update, file in reads.files if update in (0, UPDATES - 1)}
    waits = [file for file in waits if re.search("/(swep_ds|kernels)/", file)]
    return {"between": sorted(between), "logged": sorted(logged), "waits": waits, "device": ranks.device().type}


if __name__ == "__main__":
    out, cases, recipe, ds_config = sys.argv[-4:]
    with ranks.process_group():
        figures = {"loop": training(recipe, ds_config), "sent": [sent(*case) for case in json.loads(cases)]}
        if ranks.is_main():
            Path(out).write_text(json.dumps(figures))
