"""The files of a run's checkpoints: their names, the manifest `complete.json`, and how damage is found.

The manifest lists every file of a checkpoint with its size and a checksum of its content, and ends in a checksum of
itself. A checkpoint is damaged if a file is missing, truncated, changed or taken from another checkpoint. The checksums
find accidents, not forgery; `saved_state.read_state` runs no pickled code in any case.
"""

import hashlib
import json
import logging
import os
import re
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import ConfigDict, Field, PositiveInt, ValidationError, field_validator

from swep_ds.errors import InputError, reason
from swep_ds.evaluation.results import Checked, Count, SetScore
from swep_ds.files import parse_json, read_text, write_atomically

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


class Unlogged(Checked):
    """`TrainState.unlogged`; a statistic other than the loss may be infinite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=True)
    accumulation: PositiveInt
    counts: dict[str, Annotated[float, Field(gt=0)]]
    sums: dict[str, Annotated[list[float], Field(min_length=1)]]


class SavedFile(Checked):
    """A file that `torch.save` wrote: its size in bytes and its `seal`."""

    size: Count
    seal: Count


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
    files: Annotated[dict[Annotated[str, Field(pattern=r"^\w+\.pt$")], SavedFile], Field(min_length=1)]

    @field_validator("done")
    @classmethod
    def _check_unlogged(cls, done: TrainState) -> TrainState:
        if done.unlogged and (unlogged := Unlogged.model_validate(done.unlogged)).counts.keys() != unlogged.sums.keys():
            raise ValueError("unlogged: counts and sums name different statistics")
        return done


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
        manifest = _parse(read_text(tag / MANIFEST))
    except InputError as error:
        raise damaged(tag, str(error)) from None
    if checkpoint_number(tag.name) not in (None, manifest.done.updates):
        raise damaged(tag, f"it was saved after update {manifest.done.updates} and renamed")
    for name, saved in manifest.files.items():
        file = tag / name
        if not file.is_file() or file.stat().st_size != saved.size:
            state = f"has {file.stat().st_size} bytes" if file.is_file() else "is missing"
            raise damaged(tag, f"{name} {state}, {saved.size} were written")
    if extra := sorted(file.name for file in tag.glob("*.pt") if file.name not in manifest.files):
        raise damaged(tag, f"{extra[0]} does not belong to it")  # DeepSpeed would read it
    return manifest


def damaged(tag: Path, why: str) -> InputError:
    return InputError(f"{tag}: the checkpoint is damaged ({' '.join(why.split())[:300]}): {FIX}")


def _parse(text: str) -> Manifest:
    content = parse_json(text, MANIFEST)
    checksum = content.pop("checksum", None) if isinstance(content, dict) else None
    if checksum is None:
        raise InputError(f"{MANIFEST} has no checksum: another version of swep-ds wrote it, or none")
    if checksum != _checksum(content):
        raise InputError(f"{MANIFEST} was changed after it was written")
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{MANIFEST}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None


def write_manifest(tag: Path, content: dict[str, Any]) -> None:
    """Completes a checkpoint; `content` has the fields of `Manifest`."""
    content = json.loads(json.dumps(content))  # keys as they will be read
    write_atomically(tag / MANIFEST, json.dumps(content | {"checksum": _checksum(content)}, indent=1))


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def seal(file: BinaryIO | Path) -> int:
    """CRC-32 of what a file of `torch.save` lists at its end: names, sizes and CRC-32s of its members.

    Raises:
        BadZipFile: the file is damaged; `zipfile` may raise other exceptions as well.
    """
    with zipfile.ZipFile(file) as archive:
        members = [(member.filename, member.file_size, member.CRC) for member in archive.infolist()]
    return zlib.crc32(json.dumps(members).encode())


def find_damage(tag: Path, files: dict[str, SavedFile]) -> str | None:
    """Reads `files` of a checkpoint through and compares them with their checksums.

    Returns:
        An error message about the first damaged file, None if there is none.
    """
    for name, saved in files.items():
        try:
            with zipfile.ZipFile(tag / name) as archive:
                member = archive.testzip()
            fault = member and f"wrong bytes in {member}"
            if not fault and seal(tag / name) != saved.seal:
                fault = "differs from what was written"
        except Exception as error:  # zipfile raises a dozen kinds, as wrong bytes ask for another compression and so on
            fault = reason(error)
        if fault:
            return str(damaged(tag, f"{name}: {fault}"))
    return None
