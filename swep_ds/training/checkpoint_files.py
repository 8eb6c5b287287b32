"""The names of a run's checkpoints and their manifest `complete.json`: every file with its checksum, so that damage is
noticed, and what a run must share with the checkpoint to resume from it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from swep_ds import ranks
from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import check_content, read_sealed
from swep_ds.common.settings import differences
from swep_ds.evaluation.results import Score
from swep_ds.ranks.environment import is_first_on_node

MANIFEST = "complete.json"
LATEST = "latest"
FOLDERS = "update-" + "[0-9]" * 8  # a pattern: the checkpoints' names, but not `update-00000012-backup`
FIX = "delete that folder, or start a new run with another --output_dir"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainState:
    """Progress over all starts of a run; windows and tokens are sums over the ranks."""

    updates: int = 0
    windows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0  # summed over ranks: CPU seconds of their threads, or seconds of their GPUs
    method: dict[str, float] = field(default_factory=dict)  # `Method.state`


class Manifest(BaseModel):
    """The content of `complete.json`; `Checkpoints` explains the fields."""

    done: TrainState
    setup: dict[str, Any]
    stage: int  # ZeRO's
    batch: dict[str, int]
    scores: dict[int, Score]  # by update
    files: list[dict[str, str]]  # for each rank that wrote: checksums by name

    def check_fits(self, tag: Path, setup: dict[str, Any]) -> None:
        """Raises InputError: a run with this `setup` cannot resume from the checkpoint, whose folder is `tag`."""
        if differing := differences(self.setup, setup, most=5):
            fix = "start with the same settings and files, or start a new run with another --output_dir"
            raise InputError(f"{tag}: the checkpoint does not fit this start ({differing}): {fix}")


def checkpoint_name(update: int) -> str:
    return f"update-{update:08d}"


def list_updates(folder: Path) -> list[int]:
    """The updates of all completed checkpoints, damaged ones included."""
    return sorted(int(file.parent.name[-8:]) for file in folder.glob(f"{FOLDERS}/{MANIFEST}"))


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints to resume from: the one that `latest` names, else the newest whose manifest can be read; then the
    next ones, unread. The list is empty if no checkpoint was ever completed.

    Raises InputError: no manifest can be read.
    """
    tags = [folder / checkpoint_name(update) for update in reversed(list_updates(folder))]
    latest = b""
    if (folder / LATEST).exists():
        latest = (folder / LATEST).read_bytes().strip()
    tags.sort(key=lambda tag: tag.name.encode() != latest)  # stable: the others stay newest first
    if not tags:
        return []
    first, _ = first_undamaged(tags, read_manifest)
    return tags[tags.index(first) :]


def first_undamaged(tags: Sequence[Path], read: Callable[[Path], Manifest]) -> tuple[Path, Manifest]:
    """The first of the checkpoints `tags` that `read` accepts; warns of those before it. Raises InputError: none."""
    for tag in tags[:-1]:
        try:
            return tag, read(tag)
        except InputError as error:
            if is_first_on_node():
                log.warning("%s; the next one is tried", error)
    return tags[-1], read(tags[-1])


def read_manifest(tag: Path, *, check: bool = False) -> Manifest:
    """The manifest of the checkpoint in folder `tag`. With `check` this rank also reads every byte of the files that it
    wrote, or that a rank wrote which is gone. Raises InputError: the checkpoint is not complete, or has changed."""
    if not (tag / MANIFEST).exists():
        raise InputError(f"{tag}: not a complete checkpoint: name one such as checkpoints/update-00001000")
    with as_input_error(f"{tag}: the checkpoint is damaged", FIX):
        manifest = Manifest.model_validate(read_sealed(tag / MANIFEST))
        for written in manifest.files[ranks.rank() :: ranks.world_size()] if check else ():
            for name, checksum in written.items():
                check_content(tag / name, checksum)
    return manifest
