"""Sweep files of tests, and cells that are done."""

from pathlib import Path

import yaml

from swep_ds.sweeps.sweep import Cell

MINIMAL = {"variants": {"MLE": {"method.name": "mle"}}}


def write(folder: Path, **fields) -> str:
    (folder / "mine.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    return str(folder / "mine.yaml")


def finish(cell: Cell) -> None:
    """Leaves what a sweep reads of a run that is done."""
    cell.folder.mkdir(parents=True)
    (cell.folder / "recipe.yaml").write_text(cell.recipe.dump())
    (cell.folder / "results.json").write_text('{"eval": {}, "world_size": 1}')
    (cell.folder / "ds_config.json").write_text('{"zero_optimization": {"stage": 0}}')
