"""The files of a run's checkpoints: their names, the manifest `complete.json`, and how damage is found.

The manifest lists every file of a checkpoint with its size: one that is missing or cut off is damage. Names and shapes
of the weights are compared when it is loaded (`conversion.find_mismatch`).
"""

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PositiveInt, ValidationError

from swep_ds.common.errors import InputError
from swep_ds.common.files import read_text, write_atomically
from swep_ds.evaluation.results import Checked, Count, SetScore

MANIFEST = "complete.json"
LATEST = "latest"
FIX = "delete that folder to resume from an earlier one, or start a new run with another --output_dir"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainState:
    """Progress over all starts of a run; windows and tokens are sums over the ranks."""

    updates: Count = 0
    windows: Count = 0
    tokens: Count = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    unlogged: dict[str, Any] = field(default_factory=dict)  # `Meter.state` of the updates since the last logged line
    method: dict[str, float] = field(default_factory=dict)  # `Method.state`


class Layout(Checked):
    """How DeepSpeed spreads the state over its files; "zero_optimization" is among the extra fields."""

    model_config = ConfigDict(extra="allow")
    world_size: Annotated[int, Field(ge=1, le=2**20)]
    zero_stage: Literal[0, 1, 2, 3]


class Manifest(Checked):
    """The content of `complete.json`; `Checkpoints` explains the fields."""

    model_config = ConfigDict(extra="forbid")
    done: TrainState
    setup: dict[str, Any]
    layout: Layout
    batch: dict[str, PositiveInt]
    scores: dict[int, SetScore]  # by update
    files: dict[str, Count]  # bytes by name


def checkpoint_name(update: int) -> str:
    return f"update-{update:08d}"


def checkpoint_number(name: str) -> int | None:
    """The update in a checkpoint's name; None if the name is not exactly one, such as `update-00000012-backup`."""
    number = re.fullmatch(r"update-([0-9]{8,18})", name)
    return int(number[1]) if number and checkpoint_name(int(number[1])) == name else None


def list_checkpoints(folder: Path) -> list[Path]:
    """All folders of completed checkpoints from oldest to newest, damaged ones included; links do not count."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    tags = {number: folder / e.name for e in entries if (number := checkpoint_number(e.name)) is not None}
    return [tags[number] for number in sorted(tags) if os.path.lexists(tags[number] / MANIFEST)]


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints to resume from, in the order to try: the one that `latest` names, then from newest to oldest.

    All their files are present in full size. The list is empty if no checkpoint was ever completed.

    Raises:
        InputError: there are completed checkpoints, but all of them are damaged.
    """
    tags = list_checkpoints(folder)[::-1]
    latest = _read_latest(folder / LATEST, [tag.name for tag in tags])
    intact, faults = [], []
    for tag in sorted(tags, key=lambda tag: tag.name != latest):  # stable: the others stay newest first
        try:
            read_manifest(tag)
            intact.append(tag)
        except InputError as error:
            faults.append(str(error))
            if not intact:
                log.warning("%s", error)
    if faults and not intact:
        raise InputError(faults[0])
    return intact


def _read_latest(file: Path, names: list[str]) -> str | None:
    """The one of `names` that the file holds; None if it holds none of them."""
    if not names or not os.path.lexists(file):
        return None
    with suppress(InputError):
        if (name := read_text(file).strip()) in names:
            return name
    log.warning("%s: names no checkpoint of this run: the newest is used", file)
    return None


def read_manifest(tag: Path) -> Manifest:
    """The manifest of the checkpoint in folder `tag`, whose files are all present in their full size.

    Raises:
        InputError: not a checkpoint, not completed, or damaged.
    """
    if not os.path.lexists(tag / MANIFEST):
        raise InputError(
            f"{tag}: not a complete checkpoint (it has no {MANIFEST}): name one such as checkpoints/update-00001000"
        )
    try:
        manifest = Manifest.model_validate_json(read_text(tag / MANIFEST))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise damaged(tag, f"{MANIFEST}: {field}: {first['msg'].lower()}, or another version wrote it") from None
    if checkpoint_number(tag.name) not in (None, manifest.done.updates):
        raise damaged(tag, f"it was saved after update {manifest.done.updates} and renamed")
    for name, size in manifest.files.items():
        file = tag / name
        if not file.is_file() or file.stat().st_size != size:
            state = f"has {file.stat().st_size} bytes" if file.is_file() else "is missing"
            raise damaged(tag, f"{name} {state}, {size} were written")
    if extra := sorted(file.name for file in tag.glob("*.pt") if file.name not in manifest.files):
        raise damaged(tag, f"{extra[0]} does not belong to it")  # DeepSpeed would read it
    return manifest


def damaged(tag: Path, why: str) -> InputError:
    return InputError(f"{tag}: the checkpoint is damaged ({' '.join(why.split())[:300]}): {FIX}")


def write_manifest(tag: Path, content: dict[str, Any]) -> None:
    """Completes a checkpoint; `content` has the fields of `Manifest`."""
    write_atomically(tag / MANIFEST, json.dumps(content, indent=1))
