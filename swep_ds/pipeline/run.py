"""A run, from recipe to report: `run`, for each stage `Stage.run` in stage.py.

A recipe with `pretrain` goes through twice: first on that data, as a separate run in the folder `pretrain/`.
"""

import gc
import logging
import shlex
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from deepspeed.accelerator import get_accelerator

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError, at, reason
from swep_ds.common.files import PACKAGE, content_checksum, shipped
from swep_ds.evaluation.results import versions
from swep_ds.pipeline.checks import FIRST_STAGE, read_and_check
from swep_ds.pipeline.examples import warn_of_known
from swep_ds.pipeline.folder import PRETRAIN, GlobalBatch, RunFolder
from swep_ds.pipeline.inputs import check_unchanged
from swep_ds.pipeline.prepare import prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.resume import check_alike, check_setup
from swep_ds.pipeline.stage import Say, Stage
from swep_ds.ranks.accelerator import machine
from swep_ds.ranks.writing import check_shared, write_on_rank0
from swep_ds.training.tracking import Table, Tracker, check_wandb

log = logging.getLogger(__name__)
MakeReport = Callable[[Path], tuple[str, Mapping[str, Table]]]  # from a run's folder: the page, and its tables by name


def run(recipe: Recipe, ds_config: str, output_dir: Path, resume: str, report: MakeReport | None = None) -> None:
    """A whole run: train or resume, evaluate, export, write the results. Collective.

    `ds_config` is the name of a shipped one or the path of a file, `resume` as in `RunFolder.take`, and `report` writes
    the report of the finished run, on rank 0. Raises a `RunExit` on all ranks: InputError, TrainingDiverged (loss or
    weights are no longer finite), WriteFailed or Stopped.
    """
    say = Console(quiet=not ranks.is_main()).print
    with RunFolder(output_dir) as folder:
        tags, split = _take(folder, recipe, resume)
        check_shared(output_dir)
        start = recipe.model.name
        if not tags:
            ranks.from_rank0(lambda: check_wandb(recipe.tracking))
            if ranks.from_rank0(folder.results.is_file):
                raise InputError(
                    f"{folder.path}: its run is finished, and without checkpoints it would be trained again: test its "
                    f"model with `swep-ds evaluate`, or delete {folder.results}"
                )
            if recipe.pretrain:
                start = str(_pretrain(recipe, split, ds_config, folder, resume, say))
        tracker = Stage(recipe, prepare(read_and_check(split, ds_config), start), folder, say).run(tags)
        if report:
            _report(report, folder, tracker, say)
        else:
            tracker.finish()


def preflight(recipe: Recipe, ds_config: str, output_dir: Path, resume: str) -> None:
    """Does all that a start does before it builds the engine, compares versions and this package's code as well, and
    leaves nothing in the folder. Collective. Arguments as `run`'s. Raises InputError: on all ranks, as a start would,
    or where ranks differ."""
    say = Console(quiet=not ranks.is_main()).print
    code = [file for folder in (PACKAGE, shipped("kernels")) for file in sorted(folder.rglob("*.py"))]
    seen = versions() | {"code of this package": content_checksum(code)}
    for line in dict.fromkeys(ranks.gather(f"{socket.gethostname()}: {machine()}")):
        say(line)
    say(", ".join(f"{name} {value}" for name, value in seen.items()))
    check_alike(seen)
    with RunFolder(output_dir) as folder:
        tags, split = _take(folder, recipe, resume)
        check_shared(output_dir)
        check_setup(recipe, prepare(read_and_check(split, ds_config)), tags)
        if recipe.pretrain:
            with RunFolder(folder.path / PRETRAIN) as first_folder, at(FIRST_STAGE):
                first = recipe.first_stage()
                tags, split = _take(first_folder, first, "auto")
                check_setup(first, prepare(read_and_check(split, ds_config)), tags)
    say(f"preflight: {ranks.world_size()} rank(s) can start, and see the same")


def _take(folder: RunFolder, recipe: Recipe, resume: str) -> tuple[list[Path], Recipe]:
    """The checkpoints to resume from, and the recipe with its global batch split over these ranks."""
    tags = ranks.from_rank0(lambda: folder.take(recipe, resume))
    began = ranks.from_rank0(lambda: folder.read_batch(tags))
    if began:
        recipe = ranks.on_all_ranks(lambda: began.split(recipe, ranks.world_size()))
    return tags, recipe


def _pretrain(recipe: Recipe, split: Recipe, ds_config: str, folder: RunFolder, resume: str, say: Say) -> Path:
    """Trains the first stage, unless that is done; returns the folder of its model. `split` is for the second stage."""
    first = recipe.first_stage()
    with RunFolder(folder.path / PRETRAIN) as first_folder:
        if resume != "never":  # a checkpoint that it names is of the second stage
            resume = "auto"
        tags, first_split = _take(first_folder, first, resume)
        if ranks.from_rank0(first_folder.results.is_file):
            with at(FIRST_STAGE):
                ranks.from_rank0(lambda: check_unchanged(first, first_folder.path))
        else:
            second = prepare(read_and_check(split, ds_config))  # an error of the second stage must not show hours later
            batch = GlobalBatch.of(recipe, second.batches.global_batch)
            tests = {test.name: test.examples for test in second.tests}
            del second
            with at(FIRST_STAGE):
                checked = read_and_check(first_split, ds_config)
                warn_of_known(first, checked.training, tests)
                prepared = prepare(checked)
                del checked
            say(f"first stage, in {first_folder.path}:")
            write_on_rank0(lambda: folder.write_batch(batch), folder.path)
            Stage(first, prepared, first_folder, say, keep_fp32=True).run(tags).finish()
            del prepared
            gc.collect()  # the engine's reference cycles hold the device's memory
            get_accelerator().empty_cache()
            get_accelerator().reset_peak_memory_stats()
    ranks.progress("second stage")
    say(f"second stage, from {first_folder.model}:")
    return first_folder.model


def _report(report: MakeReport, folder: RunFolder, tracker: Tracker, say: Say) -> None:
    """Writes the report on rank 0 when the engine is gone; the other ranks wait. A failure only warns."""
    gc.collect()
    get_accelerator().empty_cache()  # frees the engine's memory: the report loads the model
    ranks.progress("report")
    if not ranks.is_main():
        return
    try:
        page, tables = report(folder.path)
    except Exception as error:
        again = f"swep-ds report {shlex.quote(str(folder.path))}"
        log.warning("no report.html (%s); the run is done, and `%s` makes it", reason(error), again)
        tracker.finish()
    else:
        say(f"report in {folder.report}")
        tracker.finish(page, tables)
