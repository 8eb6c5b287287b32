"""Started under a launcher: makes the runs that a JSON file lists, one after the other in one process group.

Each run is {"recipe", "set", "ds_config", "output_dir"}, and if wanted:
    "resume"      as of scripts/train.py
    "fails"       true: ends in an InputError or a WriteFailed, whose message goes to `<output_dir>.error`
    "stop_after"  n: stopped by an exception on all ranks after update n is logged, before it is saved
    "kill"        [rank, n]: SIGKILL to that rank while it writes the checkpoint of update n, a file of it half done
    "full"        [rank, n]: files of that rank cannot grow beyond 20 kB while update n is saved; n = "model": while
                  the model is exported
    "set_on_1"    as "set", for rank 1 only
    "saves_first" true: what was resumed is saved again before anything else
    "file_bytes"  n: size of the exported model's files
    "graphs"      true: by CUDA graphs, whose stand-in captures a shape when it first comes
    "kill_between"  true: SIGKILL to every rank when the first of two stages is done
"""

import gc
import json
import os
import resource
import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import torch

import swep_ds.pipeline.export
from swep_ds import ranks
from swep_ds.common.errors import InputError, WriteFailed
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.run import run
from swep_ds.ranks import group
from swep_ds.training.checkpoints import Checkpoints
from tests.support.graph_stand_in import stand_in_graphs

FILE_BYTES = swep_ds.pipeline.export.FILE_BYTES
UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)


class Stopped(Exception):
    pass


def meet_faults(asked: dict, step: str, progress=group.progress) -> None:
    """What a run meets at a step, in the place of `ranks.progress`."""
    progress(step)
    set_room(UNLIMITED[0])
    stop = asked.get("stop_after")
    if stop and step in (f"update {stop}, checkpoint", f"update {stop + 1}, data"):
        raise Stopped
    if step == "second stage" and asked.get("kill_between"):
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.get("full") == [ranks.rank(), "model"] and step == "export":
        set_room(20_000)
    for fault in ("full", "kill"):
        rank, update = asked.get(fault, (None, None))
        if rank == ranks.rank() and step == f"update {update}, checkpoint":
            if fault == "full":
                set_room(20_000)
            else:
                torch.save = write_half


def set_room(file_bytes: int) -> None:
    """Limits the size of files that this process writes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, UNLIMITED[1]))


def write_half(state, file, save=torch.save) -> None:
    save(state, file)
    file.truncate(file.tell() // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def load_and_save(self: Checkpoints, engine, tags, load=Checkpoints.load):
    loaded = load(self, engine, tags)
    self.save(engine, loaded[1])
    return loaded


def make(asked: dict) -> None:
    overrides = asked["set"] + (asked.get("set_on_1", []) if ranks.rank() == 1 else [])
    recipe = Recipe.load(asked["recipe"], overrides)
    swep_ds.pipeline.export.FILE_BYTES = asked.get("file_bytes", FILE_BYTES)
    load = load_and_save if asked.get("saves_first") else Checkpoints.load
    group.progress = partial(meet_faults, asked)
    try:
        graphs = stand_in_graphs(1) if asked.get("graphs") else nullcontext()
        with mock.patch.object(Checkpoints, "load", load), graphs:
            run(recipe, asked["ds_config"], Path(asked["output_dir"]), asked.get("resume", "auto"))
    finally:
        set_room(UNLIMITED[0])


if __name__ == "__main__":
    gc.freeze()  # what the imports left behind need not be looked through after every run
    with ranks.process_group():
        for asked in json.loads(Path(sys.argv[-1]).read_text()):
            try:
                make(asked)
            except Stopped:
                pass
            except (InputError, WriteFailed) as error:
                if not asked.get("fails"):
                    raise
                Path(f"{asked['output_dir']}.error").write_text(str(error))
            gc.collect()  # a run's folder is locked for as long as its objects live
