"""Whether a sweep's next runs can start, and train under the same conditions as its finished ones."""

from collections.abc import Sequence
from typing import Any

from swep_ds.common.errors import InputError, at
from swep_ds.common.files import read_json
from swep_ds.common.settings import differences, flatten
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.folder import BATCH, DS_CONFIG, RunFolder, batch_of_rank, check_files
from swep_ds.sweeps.sweep import Cell
from swep_ds.training.settings import BY_RECIPE, REPORTS

# ZeRO's sizes, which default to the model's hidden size, and a place on a machine's disk
SIZES = ("_bucket_size", "_param_persistence_threshold", ".nvme_path")


def conditions(config: dict[str, Any]) -> dict[str, Any]:
    """What a run's resolved ds_config decides for all runs of a table, flat."""
    decided = flatten({name: value for name, value in config.items() if name not in (*BY_RECIPE, *REPORTS)})
    return {f"ds_config {name}": value for name, value in decided.items() if not name.endswith(SIZES)}


def check_start(
    cells: Sequence[Cell], chosen: Sequence[Cell], ds_config: str, ranks: int | None, *, on_cpu: bool = False
) -> None:
    """Raises InputError if the `chosen` cells cannot start: the ds_config cannot be read or contradicts the recipe of a
    run that has not begun, or a finished run trained under another ds_config or global batch than unfinished ones will.
    A table would leave out the runs of one side. Where the `ranks` of each run are not known (None), global batches are
    not compared, nor recipes with the ds_config.
    """
    # these import DeepSpeed, for seconds
    from swep_ds.pipeline.checks import check_ds_config
    from swep_ds.training.ds_config import complete_ds_config, read_ds_config

    read_ds_config(ds_config)
    results = [(cell, cell.results()) for cell in cells]
    waiting = [cell.folder for cell, done in results if done is None]
    # others keep the batch that they began with
    compares_batches = ranks is not None and not all((folder / BATCH).is_file() for folder in waiting)
    for cell, done in results:
        if done is None or not waiting:
            continue
        world = done.get("world_size", 1)
        there = conditions(read_json(cell.folder / DS_CONFIG))
        # sizes of the model and of micro-batches are not compared
        here = conditions(complete_ds_config(ds_config, cell.recipe.train, world_size=world, on_cpu=False))
        if compares_batches:
            there["global batch"] = RunFolder(cell.folder).global_batch(cell.recipe, world)
            here["global batch"] = batch_of_rank(cell.recipe) * ranks
        if differing := differences(there, here, most=3):
            raise InputError(
                f"{cell.folder}: is done, under other conditions than this start's ({differing}): start with the same "
                "--ds_config and --ranks, or name another --output_dir (--table shows what is done)"
            )
    for cell in chosen:
        if ranks is None or cell.folder.exists():  # what has begun began with a ds_config that fits
            continue
        with at(cell.name):
            check_ds_config(cell.recipe, ds_config, cell.folder, ranks, on_cpu=on_cpu)


def check_runs(cells: Sequence[Cell]) -> None:
    """Raises InputError if an unfinished cell would be refused: for its folder, for its model, which is built without
    weights, or for its data. What several cells name is built and read once."""
    cells = [cell for cell in cells if cell.results() is None]
    for cell in cells:
        with at(cell.name):
            check_files(cell.recipe, cell.folder)
    from swep_ds.pipeline.checks import check_model  # imports PyTorch

    built, read = [], []
    for cell in cells:
        model = cell.recipe.model_copy(update={"seed": 0})  # no seed makes another model
        with at(cell.name):
            if model not in built:
                built.append(model)
                check_model(cell.recipe)
            for recipe in cell.recipe.stages:
                whole = recipe.data.model_copy(update={"train_fraction": 1.0, "max_train_examples": None})
                if whole not in read:
                    read.append(whole)
                    load_examples(recipe, [])
