"""Whether a sweep's next runs can start, and train under the same conditions as its finished ones."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json
from swep_ds.common.settings import differences, flatten
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.folder import BATCH, DS_CONFIG, RunFolder, batch_of_rank
from swep_ds.sweeps.sweep import Cell
from swep_ds.training.ds_roles import BY_RECIPE, REPORTS

# ZeRO's sizes, which default to the model's hidden size, and a place on a machine's disk
SIZES = ("_bucket_size", "_param_persistence_threshold", ".nvme_path")


def conditions(folder: Path) -> dict[str, Any]:
    """What a run's ds_config decides for all runs of a table, flat.
    Raises InputError: the run's `ds_config.json` is missing or is not JSON."""
    return _decided(read_json(folder / DS_CONFIG))


def _decided(config: dict[str, Any]) -> dict[str, Any]:
    decided = flatten({name: value for name, value in config.items() if name not in (*BY_RECIPE, *REPORTS)})
    return {f"ds_config {name}": value for name, value in decided.items() if not name.endswith(SIZES)}


def check_conditions(cells: Sequence[Cell], ds_config: str, ranks: int | None) -> None:
    """Raises InputError if a finished run trained under another ds_config or global batch than unfinished ones will.

    A table would leave out the runs of one side.

    Args:
        ds_config: as in `resolve_ds_config`.
        ranks: of each run; None = not known, and global batches are not compared.
    """
    results = {cell.name: cell.results() for cell in cells}
    waiting = [cell.folder for cell in cells if results[cell.name] is None]
    if len(waiting) in (0, len(cells)):
        return
    from swep_ds.pipeline.prepare import resolve_ds_config  # imports DeepSpeed, for seconds

    new = any(not (folder / BATCH).is_file() for folder in waiting)  # others keep the batch that they began with
    for cell in cells:
        done = results[cell.name]
        if done is None:
            continue
        world = done.get("world_size", 1)
        there = conditions(cell.folder)
        # sizes of the model and of micro-steps are not compared
        here = _decided(
            resolve_ds_config(ds_config, cell.recipe, world_size=world, micro_steps=1, hidden_size=1, on_cpu=False)
        )
        if new and ranks is not None:
            there["global batch"] = RunFolder(cell.folder).global_batch(cell.recipe, world)
            here["global batch"] = batch_of_rank(cell.recipe) * ranks
        if differing := differences(there, here, most=3):
            raise InputError(
                f"{cell.folder}: is done, under other conditions than this start's ({differing}): start with the same "
                "--ds_config and --ranks, or name another --output_dir (--table shows what is done)"
            )


def check_ds_config(cells: Sequence[Cell], ds_config: str, ranks: int | None, *, on_cpu: bool) -> None:
    """Raises InputError if the ds_config cannot be read, or contradicts the recipe of a run that has not begun.

    Args:
        ranks: of each run; None = not known, and the ds_config is only read.
    """
    waiting = [cell for cell in cells if not cell.folder.exists()]  # others began with a ds_config that fits
    if not waiting:
        return
    # these import DeepSpeed, for seconds
    from swep_ds.pipeline import prepare
    from swep_ds.training.ds_config import read_ds_config

    read_ds_config(ds_config)
    for cell in waiting if ranks else ():
        with _named(cell):
            prepare.check_ds_config(cell.recipe, ds_config, cell.folder, ranks, on_cpu=on_cpu)


def check_data(cells: Sequence[Cell]) -> None:
    """Raises InputError if the data of an unfinished cell cannot be read: its run would fail, and so would all others
    that read it. Data that several cells name is read once."""
    read = []
    for cell in cells:
        if cell.results() is not None:
            continue
        stages = [cell.recipe]
        if cell.recipe.pretrain:
            stages.append(cell.recipe.first_stage())
        for recipe in stages:
            whole = recipe.data.model_copy(update={"train_fraction": 1.0, "max_train_examples": None})
            if (recipe.training_source, whole) not in read:
                read.append((recipe.training_source, whole))
                with _named(cell):
                    load_examples(recipe)


@contextmanager
def _named(cell: Cell) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{cell.name}: {error}") from None
