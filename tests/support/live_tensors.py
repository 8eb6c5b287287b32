"""Makes runs one after the other in this process, and writes how many tensors each of them leaves behind.

Arguments: the recipe, the data of a first stage, a folder for the runs, and a ds_config for each ZeRO stage from 0 on.
Afterwards `left.json` in the folder has these numbers, and `prepared.json` how many tensors there are when a run with
two stages prepares the second one to check it, the first one, and the second one to train it.
"""

import gc
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from unittest import mock

import torch

import swep_ds as sd
import swep_ds.pipeline.run
from swep_ds.methods.objective import Objective
from swep_ds.pipeline.prepare import prepare

TRAIN = {"checkpoint_every": 1}


def count_tensors() -> int:
    return sum(issubclass(type(tracked), torch.Tensor) for tracked in gc.get_objects())


def make(recipe: str, config: str, folder: Path, updates: int = 1, **sections) -> int:
    """How many tensors a run leaves."""
    gc.collect()
    before = count_tensors()
    with suppress(ZeroDivisionError):
        sd.train(recipe, ds_config=config, train=TRAIN | {"max_updates": updates}, output_dir=folder, **sections)
    gc.collect()
    return count_tensors() - before


def fail(self, batch, step):
    outcome = loss(self, batch, step)
    return outcome if step.update == 0 else 1 / 0


if __name__ == "__main__":
    recipe, first_data, folder, *configs = sys.argv[1:]
    loss = Objective.loss
    with mock.patch("swep_ds.analysis.report.write_report", return_value=("", {})):  # has tests of its own
        make(recipe, configs[0], Path(folder, "imports"))  # some modules that are imported late make tensors
        left = {}
        for stage, config in enumerate(configs[:3]):
            left[f"stage {stage}"] = make(recipe, config, Path(folder, f"run-{stage}"))
        with mock.patch.object(Objective, "loss", fail):
            left["error at stage 3"] = make(recipe, configs[3], Path(folder, "error"), updates=2)
        at_start = []

        def note(*arguments, **options):
            gc.collect()
            at_start.append(count_tensors())
            return prepare(*arguments, **options)

        with mock.patch.object(swep_ds.pipeline.run, "prepare", note):
            pretrain = {"train": first_data, "max_updates": 1}
            left["twice at stage 3"] = make(recipe, configs[3], Path(folder, "two"), pretrain=pretrain)
    Path(folder, "left.json").write_text(json.dumps(left))
    Path(folder, "prepared.json").write_text(json.dumps(at_start))
    os._exit(0)
