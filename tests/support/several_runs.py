"""Started under a launcher: makes the runs that a JSON file lists, one after the other in one process group.

A run is {"recipe", "set", "ds_config", "output_dir"}, and if wanted:
    "resume"      as of scripts/train.py
    "fails"       true: ends in an InputError or a WriteFailed, whose message goes to `<output_dir>.error`
    "stop_after"  n: stopped by an exception on all ranks after update n, before that update is saved
    "kill"        [rank, n]: SIGKILL to that rank while it writes the checkpoint of update n, a file of it half done
    "full"        [rank, n]: files of that rank cannot grow beyond 20 kB while update n is saved; n = "model": while
                  the model is exported
    "blocked"     n: a file lies where the folder of the checkpoint of update n should be; a name: a folder lies where
                  the file of that name should be in the run's folder
    "set_on_1"    as "set", for rank 1 alone
    "saves_first" true: what was resumed is saved again before anything else
    "file_bytes"  n: size of the exported model's files
    "kill_between"  true: SIGKILL to every rank when the first of two stages is done
"""

import gc
import json
import os
import resource
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

import swep_ds.pipeline.export
import swep_ds.pipeline.run
from swep_ds import ranks
from swep_ds.errors import InputError, WriteFailed
from swep_ds.recipe import Recipe
from swep_ds.training.checkpoints import Checkpoints
from swep_ds.training.tracking import Tracker


class Stopped(Exception):
    """By "stop_after"."""


@contextmanager
def no_room(here: bool):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def make(one: dict) -> None:
    log, save, write, pretrain = Tracker.log, Checkpoints.save, torch.save, swep_ds.pipeline.run.pretrain
    export, note, load = swep_ds.pipeline.run.export_model, swep_ds.pipeline.run._note_start, Checkpoints.load

    def log_and_stop(self, done, *arguments):
        log(self, done, *arguments)
        if done.updates == one.get("stop_after"):
            raise Stopped

    def save_and_die(self, engine, done, *score):
        if [ranks.rank(), done.updates] == one.get("kill"):
            torch.save = write_half
        if done.updates == one.get("blocked") and ranks.is_main():
            self.tag(done.updates).write_text("")
        with no_room([ranks.rank(), done.updates] == one.get("full")):
            return save(self, engine, done, *score)

    def load_and_save(self, engine, tags):
        found = load(self, engine, tags)
        if one.get("saves_first"):
            self.save(engine, found[1])
        return found

    def note_and_block(folder, *arguments):
        note(folder, *arguments)
        if isinstance(one.get("blocked"), str):
            (folder.path / one["blocked"]).mkdir()

    def export_without_room(*arguments):
        with no_room([ranks.rank(), "model"] == one.get("full")):
            export(*arguments)

    def write_half(state, file, *arguments, **settings):
        write(state, file, *arguments, **settings)
        file.truncate(file.tell() // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    def pretrain_and_die(*arguments):
        folder = pretrain(*arguments)
        if one.get("kill_between"):
            os.kill(os.getpid(), signal.SIGKILL)
        return folder

    with (
        mock.patch.object(Tracker, "log", log_and_stop),
        mock.patch.object(Checkpoints, "save", save_and_die),
        mock.patch.object(Checkpoints, "load", load_and_save),
        mock.patch.object(swep_ds.pipeline.run, "_note_start", note_and_block),
        mock.patch.object(swep_ds.pipeline.run, "pretrain", pretrain_and_die),
        mock.patch.object(swep_ds.pipeline.run, "export_model", export_without_room),
        mock.patch.object(
            swep_ds.pipeline.export, "FILE_BYTES", one.get("file_bytes", swep_ds.pipeline.export.FILE_BYTES)
        ),
    ):
        own = one.get("set_on_1", []) if ranks.rank() == 1 else []
        recipe = Recipe.load(one["recipe"], [*one["set"], *own])
        swep_ds.pipeline.run.run(recipe, one["ds_config"], Path(one["output_dir"]), one.get("resume", "auto"))


if __name__ == "__main__":
    gc.freeze()  # what the imports left behind need not be looked through after every run
    with ranks.process_group():
        for one in json.loads(Path(sys.argv[-1]).read_text()):
            try:
                make(one)
            except Stopped:
                pass
            except (InputError, WriteFailed) as error:
                if not one.get("fails"):
                    raise
                Path(f"{one['output_dir']}.error").write_text(str(error))
            gc.collect()  # a run's folder is locked for as long as its objects live
