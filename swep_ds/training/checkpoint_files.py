"""The folder `checkpoints/`: which names in it are a run's checkpoints, and what their files must hold.

`complete.json` in a checkpoint lists its files, each with its size and a CRC-32 of what is in it, and carries a
checksum of itself. A file that is missing, cut off, changed or taken from elsewhere makes the checkpoint a damaged one.
These checksums find accidents, not forgery: DeepSpeed's files are pickled, and code in them is refused in any case.
"""

import hashlib
import json
import logging
import os
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator

from swep_ds.errors import InputError, reason
from swep_ds.files import parse_json, read_text, write_atomically
from swep_ds.training.saved_state import read_state

MANIFEST = "complete.json"
LATEST = "latest"
FIX = "delete that folder to resume from an earlier one, or train anew with another --output_dir"
Count = Annotated[int, Field(ge=0, lt=2**63)]
Percent = Annotated[float, Field(ge=0, le=100)]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainState:
    """How far a run is, over all its starts; windows and tokens over all ranks."""

    updates: Count = 0
    windows: Count = 0
    tokens: Count = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    unlogged: dict[str, Any] = field(default_factory=dict)  # `Meter.state`: of updates that no line tells of yet


class Checked(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class SavedFile(Checked):
    """The size of a file that `torch.save` wrote, and its `seal`."""

    size: Count
    seal: Count


class SavedScore(Checked):
    exact_match: Percent
    f1: Percent
    total: Count


class Layout(Checked):
    """How DeepSpeed spread the state over its files."""

    model_config = ConfigDict(extra="allow")
    world_size: Annotated[int, Field(ge=1, le=2**20)]
    zero_stage: Literal[0, 1, 2, 3]


class Unlogged(Checked):
    """`TrainState.unlogged`; a statistic other than the loss may be infinite."""

    model_config = ConfigDict(allow_inf_nan=True)
    accumulation: PositiveInt
    counts: dict[str, Annotated[float, Field(gt=0)]]
    sums: dict[str, Annotated[list[float], Field(min_length=1)]]


class Manifest(Checked):
    """`complete.json`; see `Checkpoints`."""

    done: TrainState
    setup: dict[str, Any]
    layout: Layout
    batch: dict[str, PositiveInt]
    scores: dict[int, SavedScore]  # by update
    files: Annotated[dict[Annotated[str, Field(pattern=r"^\w+\.pt$")], SavedFile], Field(min_length=1)]

    @field_validator("done")
    @classmethod
    def _unlogged(cls, done: TrainState) -> TrainState:
        if done.unlogged:
            unlogged = Unlogged.model_validate(done.unlogged)
            if unlogged.counts.keys() != unlogged.sums.keys():
                raise ValueError("unlogged: counts and sums are of other statistics")
        return done


# Names


def checkpoint_name(update: int) -> str:
    return f"update-{update:08d}"


def checkpoint_number(name: str) -> int | None:
    """The update of a checkpoint's name; None where it is no such name, as `update-00000012-backup`."""
    number = re.fullmatch(r"update-([0-9]{8,18})", name)
    return int(number[1]) if number and checkpoint_name(int(number[1])) == name else None


def list_checkpoints(folder: Path) -> list[Path]:
    """The run's checkpoints that were completed, damaged ones among them, in the order of their updates.

    Names that are not exactly a checkpoint's, files and symbolic links are none of the run's.
    """
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    tags = {number: folder / e.name for e in entries if (number := checkpoint_number(e.name)) is not None}
    return [tags[number] for number in sorted(tags) if os.path.lexists(tags[number] / MANIFEST)]


# QAOutput


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints to go on from, the first that can be read: the one `latest` names, then the newest first.

    Their files are all there; none if there never was one.

    Raises:
        InputError: there are complete ones, but all of them are damaged.
    """
    whole, damaged = [], []
    tags = list_checkpoints(folder)[::-1]
    named = _latest(folder) if tags else None
    for tag in sorted(tags, key=lambda tag: tag.name != named):  # stable: the others stay newest first
        try:
            read_manifest(tag)
        except InputError as error:
            if not whole:
                log.warning("%s", error)
            damaged.append(str(error))
            continue
        whole.append(tag)
    if damaged and not whole:
        raise InputError(damaged[0])
    return whole


def _latest(folder: Path) -> str | None:
    """The name that `latest` holds, None where it names none of the checkpoints."""
    file = folder / LATEST
    if not os.path.lexists(file):
        return None
    try:
        name = read_text(file).strip()
    except InputError as error:
        log.warning("%s: the newest checkpoint is taken", error)
        return None
    if name not in [tag.name for tag in list_checkpoints(folder)]:
        log.warning("%s: names no checkpoint of this run: the newest is taken", file)
        return None
    return name


def read_manifest(tag: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there with their sizes, and no other ones of DeepSpeed's.

    Raises:
        InputError: not a checkpoint, never completed, or damaged.
    """
    if not os.path.lexists(tag / MANIFEST):
        raise InputError(
            f"{tag}: not a complete checkpoint (it has no {MANIFEST}): name one such as checkpoints/update-00001000"
        )
    try:
        manifest = _parse(read_text(tag / MANIFEST, MANIFEST))
    except InputError as error:
        raise damaged(tag, str(error)) from None
    update = manifest.done.updates
    if checkpoint_number(tag.name) not in (None, update):
        raise damaged(tag, f"it is that of update {update}, under another name")
    for name, saved in manifest.files.items():
        file = tag / name
        if not file.is_file() or file.stat().st_size != saved.size:
            there = f"has {file.stat().st_size} bytes" if file.is_file() else "is missing"
            raise damaged(tag, f"{name} {there}, {saved.size} were written")
    if more := sorted(file.name for file in tag.glob("*.pt") if file.name not in manifest.files):
        raise damaged(tag, f"{more[0]} was not written with it")  # DeepSpeed would read it
    return manifest


def damaged(tag: Path, why: str) -> InputError:
    return InputError(f"{tag}: the checkpoint is damaged ({' '.join(why.split())[:300]}): {FIX}")


def _parse(text: str) -> Manifest:
    """Raises InputError where it is not what `write_manifest` wrote."""
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
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{MANIFEST}: {where}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def write_manifest(tag: Path, content: dict[str, Any]) -> None:
    """Completes the checkpoint; `content` as in `Manifest`."""
    content = json.loads(json.dumps(content))  # keys as they will be read
    write_atomically(tag / MANIFEST, json.dumps(content | {"checksum": _checksum(content)}, indent=1))


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def seal(file: BinaryIO) -> int:
    """CRC-32 of what a file of `torch.save` holds: of its members' names, sizes and CRC-32s, which it lists at its end.

    Raises:
        BadZipFile, and whatever else `zipfile` does of damaged ones.
    """
    with zipfile.ZipFile(file) as archive:
        members = [(member.filename, member.file_size, member.CRC) for member in archive.infolist()]
    return zlib.crc32(json.dumps(members).encode())


def find_damage(tag: Path, files: dict[str, SavedFile]) -> str | None:
    """What the first damaged file has, None if none is: reads files through, compares their members with the checksums
    that they carry and with `SavedFile.seal`, and sees that they are data alone.

    Raises:
        InputError: naming the first file that holds code.
    """
    for name, saved in files.items():
        try:
            with (tag / name).open("rb") as file:
                same = seal(file) == saved.seal
            with zipfile.ZipFile(tag / name) as archive:
                fault = archive.testzip()
        except Exception as error:  # zipfile raises a dozen kinds, as wrong bytes ask for another compression and so on
            fault, same = reason(error), True
        if fault or not same:
            return str(damaged(tag, f"{name}: {fault or 'holds something else than was written'}"))
        read_state(tag / name)
    return None
