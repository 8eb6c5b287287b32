"""Started under a launcher: measures what updates send, where the loop's time goes and where it reads tensors, as JSON.

Arguments: the output file, a recipe, a ds_config.
"""

import json
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from swep_ds import ranks
from swep_ds.cost.breakdown import break_down
from swep_ds.cost.candidates import engine_update
from swep_ds.cost.traffic import watch_traffic
from swep_ds.pipeline.prepare import prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.training import loop
from swep_ds.training.engine import build_engine
from tests.support.engine_memory import make_config, make_objective
from tests.support.tiny_batches import batch

READS = ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__")
NAMES = ("swep_ds", "kernels", "transformers", "deepspeed")
UPDATES = 5
CASES = [(0, "swep:split"), (1, "swep:split"), (2, "swep:split"), (2, "swep:joint")]
CASES += [(2, "swep:split, coalesced"), (3, "swep:split, coalesced")]
CASES += [(3, "mle"), (3, "swep:split"), (3, "swep:joint"), (3, "mle", 1)]


def traffic(stage: int, schedule: str, live: int | None = None) -> list:
    way, coalesces, _ = schedule.partition(", coalesced")
    method, _, execution = way.partition(":")
    settings = ["train.micro_batch_size=1", f"method.name={method}", f"train.coalesce_grad_reduction={bool(coalesces)}"]
    recipe = Recipe.load("quickstart", settings)
    objective = make_objective("bert", recipe)
    config = make_config(recipe, stage, micro_steps=len(objective.parts(execution)))
    if live:
        config["zero_optimization"] |= {"stage3_max_live_parameters": live, "stage3_max_reuse_distance": live}
    engine = build_engine(objective, config, recipe.train, 100)
    engine.train()
    update, windows = engine_update(engine, execution), batch((4,), dtype=torch.float32)
    for number in range(3):  # at ZeRO-3 DeepSpeed records the first ones
        update(windows, number)
    with watch_traffic() as watched:
        update(windows, 3)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in objective.parameters())
    engine.destroy()
    return [stage, schedule, live, parameters, dict(watched.bytes), dict(watched.calls)]


class Reads(TorchFunctionMode):
    """Counts, by update, file and line, the reads of tensor values by this package or transformers, not DeepSpeed."""

    def __init__(self):
        super().__init__()
        self.update, self.lines = 0, Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in READS:
            frame = sys._getframe(1)
            while not any(name in frame.f_code.co_filename for name in NAMES):
                frame = frame.f_back
            if "deepspeed" not in frame.f_code.co_filename:
                self.lines[self.update, Path(frame.f_code.co_filename).name, frame.f_lineno] += 1
        return func(*args, **(kwargs or {}))


def training(recipe: Recipe, ds_config: str) -> dict:
    job = prepare(recipe, ds_config)
    engine = build_engine(job.objective, job.config, recipe.train, job.batches.updates)
    seed = loop.seed_dropout

    def note(number, update):
        reads.update = update
        seed(number, update)

    with (
        Reads() as reads,
        mock.patch.object(loop, "seed_dropout", note),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        figures = break_down(engine, job.batches, recipe, UPDATES)
    waits = [
        w.filename for w in caught if "synchroniz" in str(w.message) and re.search("/(swep_ds|kernels)/", w.filename)
    ]
    engine.destroy()
    lines = [[*key, count] for key, count in reads.lines.items()]
    return figures | {"reads": lines, "waits": waits, "device": ranks.device().type}


if __name__ == "__main__":
    out, recipe, ds_config = sys.argv[-3:]
    few = [f"train.log_every={10 * UPDATES}", "train.checkpoint_every=1000"]
    with ranks.process_group():
        figures = {"loop": training(Recipe.load(recipe, few), ds_config)}
        if ranks.world_size() > 1:
            figures["traffic"] = [traffic(*case) for case in CASES]
        if ranks.is_main():
            Path(out).write_text(json.dumps(figures))
