"""The files of a run's checkpoints: their names and the manifest `complete.json`.

The manifest lists every file of a checkpoint with its size: one that is missing or cut off is damage. It also holds
what a run must share with the checkpoint to resume from it, such as the names and shapes of the weights.
"""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from swep_ds.common.errors import InputError, reason
from swep_ds.common.files import read_text
from swep_ds.evaluation.results import Score

MANIFEST = "complete.json"
LATEST = "latest"
FIX = "delete that folder to resume from an earlier one, or start a new run with another --output_dir"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainState:
    """Progress over all starts of a run; windows and tokens are sums over the ranks."""

    updates: int = 0
    windows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    unlogged: dict[str, Any] = field(default_factory=dict)  # `Meter.state` of the updates since the last logged line
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


def checkpoint_number(name: str) -> int | None:
    """The update in a checkpoint's name; None if the name is not exactly one, such as `update-00000012-backup`."""
    number = re.fullmatch(r"update-([0-9]{8,})", name)
    return int(number[1]) if number else None


def list_checkpoints(folder: Path) -> list[Path]:
    """All folders of completed checkpoints from oldest to newest, damaged ones included."""
    tags = [file.parent for file in folder.glob(f"update-*/{MANIFEST}")]
    numbered = [tag for tag in tags if checkpoint_number(tag.name) is not None]
    return sorted(numbered, key=lambda tag: checkpoint_number(tag.name))


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints to resume from, in the order to try: the one that `latest` names, then from newest to oldest.

    All their files are present in full size. The list is empty if no checkpoint was ever completed.

    Raises:
        InputError: there are completed checkpoints, but all of them are damaged.
    """
    tags = list_checkpoints(folder)[::-1]
    latest = read_text(folder / LATEST).strip() if (folder / LATEST).exists() else None
    intact, faults = [], []
    for tag in sorted(tags, key=lambda tag: tag.name != latest):  # stable: the others stay newest first
        try:
            read_manifest(tag)
            intact.append(tag)
        except InputError as error:
            faults.append(error)
            if not intact:
                log.warning("%s", error)
    if faults and not intact:
        raise faults[0]
    return intact


def read_manifest(tag: Path) -> Manifest:
    """The manifest of the checkpoint in folder `tag`, whose files are all present in their full size.

    Raises:
        InputError: not a checkpoint, not completed, or damaged.
    """
    if not (tag / MANIFEST).exists():
        raise InputError(
            f"{tag}: not a complete checkpoint (it has no {MANIFEST}): name one such as checkpoints/update-00001000"
        )
    try:
        manifest = Manifest.model_validate_json(read_text(tag / MANIFEST))
    except ValidationError as error:
        raise damaged(tag, f"{MANIFEST}, or another version wrote it: {reason(error)}") from None
    for name, size in manifest.files.items():
        file = tag / name
        if not file.is_file():
            raise damaged(tag, f"{name} is missing")
        if file.stat().st_size != size:
            raise damaged(tag, f"{name} has {file.stat().st_size} bytes, {size} were written")
    return manifest


def damaged(tag: Path, why: str) -> InputError:
    return InputError(f"{tag}: the checkpoint is damaged ({why}): {FIX}")
