"""Checkpoints that are whole or not there.

A checkpoint is a folder `update-<n>` that DeepSpeed writes, every rank its part. It counts only once rank 0 has put
`complete.json` (every file with its size, and what the run must have in common with it) into it, after all ranks
were done; only then does `latest` move, by an atomic rename. A folder without `complete.json` is a write that was
cut off: it is passed over. One whose files do not match is damaged: a run that finds its own checkpoints by itself
goes on from the one before.

A run goes on from it with the same global batch, data, method and precision. On the same number of ranks at the same
ZeRO stage that is exact to the last bit; on others the state is converted (`training.conversion`), and losses agree to
rounding. Dropout, which draws from (seed, update, rank), has other masks on another number of ranks.

A checkpoint is resumed from the run's own folder alone, or from one that is named. DeepSpeed's files are pickled; they
are read as tensors, plain values and a few classes of DeepSpeed, and code that is pickled in them is refused.
"""

import functools
import json
import logging
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

from swep_ds import distributed as ranks
from swep_ds.errors import InputError, WriteFailed
from swep_ds.evaluation.results import Score
from swep_ds.files import write_atomically
from swep_ds.recipe import differences
from swep_ds.training.conversion import convert, read_state, refresh_weights
from swep_ds.writing import on_main, write_together

MANIFEST = "complete.json"
LATEST = "latest"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """How far a run is, over all its starts; windows and tokens over all ranks."""

    updates: int = 0
    windows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    unlogged: dict[str, Any] = field(default_factory=dict)  # `Meter.state`: of updates that no line tells of yet


class Checkpoints:
    """The checkpoints of one run, and how they scored on validation data where they did.

    The scores travel in the manifests, so that a run that goes on chooses as one that was never stopped.

    Args:
        folder: the run's `checkpoints/`, on a file system that all ranks share.
        keep: how many complete ones to keep.
        setup: what a run must have in common with a checkpoint to continue from it (global batch, data, precision
            ...); kept in its manifest and compared by `load`.
        layout: how DeepSpeed spreads the state: "world_size", "zero_stage" and all else that decides what a rank's
            files hold. A checkpoint of another layout is converted.
        batch: what `swep_ds.run_folder.Batch` keeps of the run, for runs in other folders that go on from here.
        on_failure: whether a checkpoint that cannot be written ends the run.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        setup: dict[str, Any],
        layout: dict[str, Any],
        batch: dict[str, int],
        on_failure: Literal["stop", "go_on"] = "stop",
    ):
        self.folder, self.keep, self.setup, self.layout = folder, keep, setup, layout
        self.batch, self.on_failure = batch, on_failure
        self.scores: dict[int, Score] = {}  # on validation data, by update

    def tag(self, update: int) -> Path:
        return self.folder / f"update-{update:08d}"

    def save(self, engine, done: Done, score: Score | None = None) -> bool:
        """Writes the state and moves `latest` to it; returns whether it is there. All ranks call this together.

        Older ones are deleted, but for the newest `keep` and for the best as of each of them: whichever of them a run
        goes on from, it finds the best one so far. Where the disk is full or the like, what was written of this one
        is deleted, and all others stay.

        Raises:
            WriteFailed: on all ranks, if failures are to stop the run.
        """
        tag = self.tag(done.updates)
        if score is not None:
            self.scores[done.updates] = score
        try:
            write_together(on_main(lambda: self._clear(tag)), tag)
            write_together(lambda: self._write(engine, tag), tag)
            # each node may see its own files before others' on a network file system: take what any of them sees
            seen = ranks.gather({str(f.relative_to(tag)): f.stat().st_size for f in tag.rglob("*") if f.is_file()})
            files = dict(sorted(item for part in seen for item in part.items()))
            write_together(on_main(lambda: self._complete_with(tag, files, done)), tag)
        except WriteFailed as error:
            if ranks.is_main():
                with suppress(OSError):  # as much as can be
                    (tag / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(tag, ignore_errors=True)
            self._fail(f"the checkpoint of update {done.updates} is lost, earlier ones stay: {error}")
            return False
        try:
            write_together(on_main(lambda: self._prune(done)), self.folder)
        except WriteFailed as error:
            self._fail(f"the checkpoint of update {done.updates} is there, but an older one cannot be deleted: {error}")
        return True

    def _fail(self, message: str) -> None:
        if self.on_failure == "stop":
            raise WriteFailed(f"{message}: mend that and start again, or set train.on_checkpoint_failure to go_on")
        if ranks.is_main():
            log.warning("%s", message)

    def _clear(self, tag: Path) -> None:
        if tag.exists():
            (tag / MANIFEST).unlink(missing_ok=True)  # cut off by an earlier stop, or of an abandoned branch
            shutil.rmtree(tag)

    def _write(self, engine, tag: Path) -> None:
        engine.save_checkpoint(str(self.folder), tag=tag.name, save_latest=False)
        engine.checkpoint_engine.raise_fault()

    def _complete_with(self, tag: Path, files: dict[str, int], done: Done) -> None:
        manifest = {
            "done": asdict(done),
            "setup": self.setup,
            "layout": self.layout,
            "batch": self.batch,
            "scores": self.scores,
            "files": files,
        }
        write_atomically(tag / MANIFEST, json.dumps(manifest, indent=1))
        write_atomically(self.folder / LATEST, tag.name)

    def _prune(self, done: Done) -> None:
        complete = self._complete()
        # a run that went on from an earlier checkpoint leaves later ones behind: they are of an abandoned branch
        newest = [update for update in complete if update <= done.updates][-self.keep :]
        kept = {*newest, *(self._best(u for u in complete if u <= one) for one in newest)}
        for old in (self.tag(update) for update in complete if update not in kept):
            (old / MANIFEST).unlink()  # first: a half-deleted folder must not look complete
            shutil.rmtree(old)

    def best(self) -> int | None:
        """The update whose checkpoint scored best: by F1, then EM, then the earlier one; None if none has a score.

        Of this folder's own: a run that went on from another run's checkpoint knows that one's scores, but does not
        have its files. All ranks call this together.
        """
        return ranks.gather(self._best(self._complete()))[0]

    def _best(self, updates: Iterable[int]) -> int | None:
        scored = [update for update in updates if update in self.scores]
        return max(scored, key=lambda u: (self.scores[u]["f1"], self.scores[u]["exact_match"], -u), default=None)

    def _complete(self) -> list[int]:
        return sorted(int(f.parent.name.removeprefix("update-")) for f in self.folder.glob(f"update-*/{MANIFEST}"))

    def load(self, engine, tags: Sequence[Path]) -> tuple[Path, Done]:
        """Goes on from the first of complete checkpoints that is not damaged; returns it and how far it is.

        All ranks call this together, with the same.

        Raises:
            InputError: as `restore`.
        """
        tag, manifest = self._undamaged(tags)
        self._restore(engine, tag, manifest["layout"])
        self.scores = {int(update): score for update, score in manifest.get("scores", {}).items()}
        return tag, Done(**manifest["done"])

    def restore(self, engine, tag: Path) -> None:
        """Engine and schedule as they were saved. All ranks call this together.

        Raises:
            InputError: damaged, or written under a set-up from which this run cannot go on.
        """
        tag, manifest = self._undamaged([tag])
        self._restore(engine, tag, manifest["layout"])

    def _undamaged(self, tags: Sequence[Path]) -> tuple[Path, dict[str, Any]]:
        """The first checkpoint that no rank finds damaged, and its manifest.

        Every file is read through once before DeepSpeed opens any: its loading has collectives, in which the other
        ranks would wait for one that found a damaged file.
        """
        faults = []
        for tag in tags:
            manifest = ranks.agree(lambda tag=tag: self._fitting(tag))
            own = sorted(manifest["files"])[ranks.rank() :: ranks.world_size()]
            found = ranks.gather(ranks.agree(lambda tag=tag, own=own: find_damage(tag, own)))
            if not any(found):
                return tag, manifest
            faults += filter(None, found)
            if ranks.is_main() and tag != tags[-1]:
                log.warning("%s", faults[-1])
        raise InputError(faults[0])

    def _fitting(self, tag: Path) -> dict[str, Any]:
        """The manifest of a checkpoint from which this rank can go on."""
        manifest = read_manifest(tag)
        if "layout" not in manifest:
            raise InputError(f"{tag}: an earlier version of swep-ds wrote this checkpoint: go on with that version")
        if differing := differences(manifest["setup"], self.setup):
            raise InputError(
                f"{tag}: the checkpoint does not fit this start ({differing}): start with the same settings, or train "
                "anew with another --output_dir"
            )
        return manifest

    def _restore(self, engine, tag: Path, there: dict[str, Any]) -> None:
        # at ZeRO-0 rank 0 writes all there is, whatever their number
        if there == self.layout or there["zero_stage"] == self.layout["zero_stage"] == 0:
            engine.load_checkpoint(str(tag.parent), tag=tag.name)
        else:
            ranks.agree(lambda: convert(engine, tag, there["zero_stage"], there["world_size"]))
            refresh_weights(engine)


class Writer(TorchCheckpointEngine):
    """Writes an engine's files as DeepSpeed does, but keeps a fault for later instead of raising it; reads data alone.

    Saving has collectives, in which the other ranks would wait for one that met a full disk. After a fault nothing
    more is written until `raise_fault`.
    """

    def __init__(self, engine):
        super().__init__(engine._config)
        self._fault: OSError | None = None

    def raise_fault(self) -> None:
        """Raises what went wrong since the last call, if anything did."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def keeping_fault(self, step: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(step)
        def attempt(*arguments, **settings) -> None:
            try:
                if self._fault is None:
                    step(*arguments, **settings)
            except OSError as error:
                self._fault = error

        return attempt

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.keeping_fault(os.makedirs)(path, exist_ok=exist_ok)

    def save(self, state_dict: dict[str, Any], path: str) -> None:
        self.keeping_fault(_save)(state_dict, path)

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]:
        return read_state(Path(path), mapped=False)


def _save(state: dict[str, Any], path: str) -> None:
    """`torch.save`, with the system's reason where a file cannot be written: PyTorch gives its own position in it."""
    try:
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())  # the manifest says that all is there: it must not outlive a power cut alone
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise OSError(cause.errno, cause.strerror, path) from None


def find_damage(tag: Path, files: list[str]) -> str | None:
    """What the first damaged file has, None if none is: reads PyTorch's files through, compares the checksums (CRC-32)
    that they carry and sees that they are data alone.

    Raises:
        InputError: naming the first file that holds code.
    """
    for name in files:
        if name.endswith(".pt"):
            try:
                with zipfile.ZipFile(tag / name) as archive:
                    damaged = archive.testzip()
            # RuntimeError: where the wrong bytes ask for another compression, or a password
            except (zipfile.BadZipFile, OSError, ValueError, EOFError, zlib.error, RuntimeError) as error:
                damaged = str(error)
            if damaged:
                return f"{tag}: the checkpoint is damaged ({name}: {damaged}): {MEND}"
            read_state(tag / name)
    return None


MEND = "delete that folder to go on from an earlier one, or train anew with another --output_dir"


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints to go on from, the first that can be read: the one `latest` names, then the newest first.

    Their files are all there; none if there never was one.

    Raises:
        InputError: there are complete ones, but all of them are damaged.
    """
    whole, damaged = [], []
    tags = sorted((f.parent for f in folder.glob(f"update-*/{MANIFEST}")), reverse=True)
    named = folder / (folder / LATEST).read_text(encoding="utf-8") if (folder / LATEST).is_file() else None
    for tag in sorted(tags, key=lambda tag: tag != named):  # stable: the others stay newest first
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


def read_manifest(tag: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are all there with their sizes.

    Raises:
        InputError: not a checkpoint, never completed, or damaged.
    """
    try:
        manifest = json.loads((tag / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
    except FileNotFoundError:
        raise InputError(
            f"{tag}: not a complete checkpoint (it has no {MANIFEST}): name one such as checkpoints/update-00001000"
        ) from None
    except (ValueError, KeyError):
        raise InputError(f"{tag}: the checkpoint is damaged ({MANIFEST} cannot be read): {MEND}") from None
    for name, size in files.items():
        file = tag / name
        if not file.is_file() or file.stat().st_size != size:
            found = f"has {file.stat().st_size} bytes" if file.is_file() else "is missing"
            raise InputError(f"{tag}: the checkpoint is damaged ({name} {found}, {size} were written): {MEND}")
    return manifest
