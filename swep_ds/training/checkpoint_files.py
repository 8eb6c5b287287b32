"""The names of a run's checkpoints and their manifest `complete.json`: every file with its size (one that is missing or
cut off is damage), and what a run must share with the checkpoint to resume from it."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import read_text
from swep_ds.evaluation.results import Score

MANIFEST = "complete.json"
LATEST = "latest"
FOLDERS = "update-" + "[0-9]" * 8  # a pattern: the checkpoints' names, but not `update-00000012-backup`
FIX = "delete that folder to resume from an earlier one, or start a new run with another --output_dir"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainState:
    """Progress over all starts of a run; windows and tokens are sums over the ranks."""

    updates: int = 0
    windows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0  # of all ranks: CPU seconds of their threads, or seconds of their GPUs
    method: dict[str, float] = field(default_factory=dict)  # `Method.state`


class Manifest(BaseModel):
    """The content of `complete.json`; `Checkpoints` explains the fields."""

    done: TrainState
    setup: dict[str, Any]
    layout: dict[str, Any]
    batch: dict[str, int]
    scores: dict[int, Score]  # by update
    files: dict[str, int]  # bytes by name


def checkpoint_name(update: int) -> str:
    return f"update-{update:08d}"


def list_updates(folder: Path) -> list[int]:
    """The updates of all completed checkpoints, damaged ones included."""
    return sorted(int(file.parent.name[-8:]) for file in folder.glob(f"{FOLDERS}/{MANIFEST}"))


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoint to resume from, in a list: the one that `latest` names, else the newest, if its files are all
    there in full size. The list is empty if no checkpoint was ever completed.

    Raises InputError: all checkpoints are damaged.
    """
    tags = [folder / checkpoint_name(update) for update in reversed(list_updates(folder))]
    latest = read_text(folder / LATEST).strip() if (folder / LATEST).exists() else None
    fault = None
    for tag in sorted(tags, key=lambda tag: tag.name != latest):  # stable: the others stay newest first
        try:
            read_manifest(tag)
            return [tag]
        except InputError as error:
            log.warning("%s", error)
            fault = error
    if fault:
        raise fault
    return []


def read_manifest(tag: Path) -> Manifest:
    """The manifest of the checkpoint in folder `tag`. Raises InputError: not completed, or a file is cut off."""
    if not (tag / MANIFEST).exists():
        raise InputError(f"{tag}: not a complete checkpoint: name one such as checkpoints/update-00001000")
    with as_input_error(f"{tag / MANIFEST}: another version wrote this checkpoint", FIX):
        manifest = Manifest.model_validate_json(read_text(tag / MANIFEST))
    for name, size in manifest.files.items():
        file = tag / name
        present = file.stat().st_size if file.is_file() else 0
        if present != size:
            raise InputError(f"{tag}: the checkpoint is damaged ({name} has {present} of {size} bytes): {FIX}")
    return manifest
