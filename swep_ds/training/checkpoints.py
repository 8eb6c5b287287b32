"""Checkpoints that are whole or not there.

A checkpoint is a folder `update-<n>` that DeepSpeed writes, every rank its part. It counts only once rank 0 has put
`complete.json` (every file with its size and checksum, and what the run must have in common with it) into it, after all
ranks were done; only then does `latest` move, by an atomic rename. A folder without `complete.json` is a write that was
cut off: it is passed over. One whose files do not match is damaged: a run that finds its own checkpoints by itself
resumes from the one before (`training.checkpoint_files`).

A run goes on from it with the same global batch, data, method and precision. On the same number of ranks at the same
ZeRO stage that is exact to the last bit; on others the state is converted (`training.conversion`), and losses agree to
rounding. Dropout, which draws from (seed, update, rank), has other masks on another number of ranks.

A checkpoint is resumed from the run's own folder alone, or from one that is named. DeepSpeed's files are pickled; they
are read as tensors, plain values and a few classes of DeepSpeed, and code that is pickled in them is refused.
"""

import errno
import functools
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

from swep_ds import ranks
from swep_ds.errors import NOT_OF_THE_INPUT, InputError, WriteFailed, parsing
from swep_ds.evaluation.results import Score
from swep_ds.files import write_atomically
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0
from swep_ds.settings import differences
from swep_ds.training.checkpoint_files import (
    FIX,
    LATEST,
    MANIFEST,
    Manifest,
    TrainState,
    checkpoint_name,
    checkpoint_number,
    find_damage,
    list_checkpoints,
    read_manifest,
    seal,
    write_manifest,
)
from swep_ds.training.conversion import convert, find_fault, refresh_weights
from swep_ds.training.saved_state import read_state

SHOWN = 5  # settings that differ, in a message
log = logging.getLogger(__name__)


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
        batch: what `swep_ds.pipeline.folder.Batch` keeps of the run, for runs in other folders that go on from here.
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
        return self.folder / checkpoint_name(update)

    def save(self, engine, done: TrainState, score: Score | None = None) -> bool:
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
        cleared = False
        try:
            write_on_rank0(lambda: self._clear(tag), tag)
            cleared = True
            written = ranks.gather(write_on_all_ranks(lambda: self._write(engine, tag), tag))
            files = dict(sorted(item for part in written for item in part.items()))
            write_on_rank0(lambda: self._complete_with(tag, files, done), tag)
        except WriteFailed as error:
            if cleared and ranks.is_main():
                with suppress(OSError):  # as much as can be
                    (tag / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(tag, ignore_errors=True)
            self._fail(f"the checkpoint of update {done.updates} is lost, earlier ones stay: {error}")
            return False
        try:
            write_on_rank0(lambda: self._prune(done), self.folder)
        except WriteFailed as error:
            self._fail(f"the checkpoint of update {done.updates} is there, but an older one cannot be deleted: {error}")
        return True

    def _fail(self, message: str) -> None:
        if self.on_failure == "stop":
            raise WriteFailed(f"{message}: fix that and start again, or set train.on_checkpoint_failure to go_on")
        if ranks.is_main():
            log.warning("%s", message)

    def _clear(self, tag: Path) -> None:
        if tag.is_symlink() or (tag.exists() and not tag.is_dir()):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(tag))  # and not the run's to delete
        if tag.exists():
            (tag / MANIFEST).unlink(missing_ok=True)  # cut off by an earlier stop, or of an abandoned branch
            shutil.rmtree(tag)

    def _write(self, engine, tag: Path) -> dict[str, dict[str, int]]:
        """Writes this rank's files; returns what the manifest says of them."""
        engine.save_checkpoint(str(self.folder), tag=tag.name, save_latest=False)
        return engine.checkpoint_engine.finish()

    def _complete_with(self, tag: Path, files: dict[str, dict[str, int]], done: TrainState) -> None:
        manifest = {
            "done": asdict(done),
            "setup": self.setup,
            "layout": self.layout,
            "batch": self.batch,
            "scores": self.scores,
            "files": files,
        }
        write_manifest(tag, manifest)
        write_atomically(self.folder / LATEST, tag.name)

    def _prune(self, done: TrainState) -> None:
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
        return ranks.gather(self._best(self._complete()) if ranks.is_main() else None)[0]

    def _best(self, updates: Iterable[int]) -> int | None:
        scored = [update for update in updates if update in self.scores]
        return max(scored, key=lambda u: (self.scores[u]["f1"], self.scores[u]["exact_match"], -u), default=None)

    def _complete(self) -> list[int]:
        """The updates of whole checkpoints; damaged ones are neither kept in place of whole ones nor deleted."""
        updates = []
        for tag in list_checkpoints(self.folder):
            with suppress(InputError):
                updates.append(read_manifest(tag).done.updates)
        return updates

    def check_names(self, before: int, last: int, every: int) -> None:
        """Raises InputError where something else has the name of a checkpoint that is going to be saved: after every so
        many updates from `before` on, and after the `last`."""
        for path in self.folder.iterdir() if self.folder.is_dir() else []:
            number = checkpoint_number(path.name)
            if number is None or not before < number <= last or not (number % every == 0 or number == last):
                continue
            if path.is_symlink() or not path.is_dir():
                raise InputError(f"{path}: is no folder, and a checkpoint is to be written there: move it away")

    def load(self, engine, tags: Sequence[Path]) -> tuple[Path, TrainState]:
        """Goes on from the first of complete checkpoints that is not damaged; returns it and how far it is.

        All ranks call this together, with the same.

        Raises:
            InputError: as `restore`.
        """
        tag, manifest = self._undamaged(engine, tags)
        self._restore(engine, tag, manifest)
        self.scores = {update: score.model_dump() for update, score in manifest.scores.items()}
        return tag, manifest.done

    def restore(self, engine, tag: Path) -> None:
        """Engine and schedule as they were saved. All ranks call this together.

        Raises:
            InputError: damaged, or written under a set-up from which this run cannot go on.
        """
        self._restore(engine, *self._undamaged(engine, [tag]))

    def _undamaged(self, engine, tags: Sequence[Path]) -> tuple[Path, Manifest]:
        """The first checkpoint that no rank finds damaged, and its manifest.

        Every file is read through once before DeepSpeed opens any: its loading has collectives, in which the other
        ranks would wait for one that found a damaged file.
        """
        faults = []
        for tag in tags:
            manifest = ranks.on_all_ranks(lambda tag=tag: self._fitting(tag))

            def look(tag: Path = tag, manifest: Manifest = manifest) -> str | None:
                mine = sorted(manifest.files)[ranks.rank() :: ranks.world_size()]
                return find_damage(tag, {name: manifest.files[name] for name in mine})

            def look_inside(tag: Path = tag, manifest: Manifest = manifest) -> str | None:
                return find_fault(engine, tag, manifest, same_layout=self._is_same(manifest))

            faulty = ranks.gather(ranks.on_all_ranks(look))
            if not any(faulty):  # on any rank: only then is every file known to be whole
                faulty = ranks.gather(ranks.on_all_ranks(look_inside))
            if not any(faulty):
                return tag, manifest
            faults += filter(None, faulty)
            if ranks.is_main() and tag != tags[-1]:
                log.warning("%s", faults[-1])
        raise InputError(faults[0])

    def _fitting(self, tag: Path) -> Manifest:
        """The manifest of a checkpoint from which this rank can go on."""
        manifest = read_manifest(tag)
        if differing := differences(manifest.setup, self.setup, most=SHOWN):
            raise InputError(
                f"{tag}: the checkpoint does not fit this start ({differing}): start with the same settings, or train "
                "anew with another --output_dir"
            )
        return manifest

    def _is_same(self, manifest: Manifest) -> bool:
        """Whether DeepSpeed reads this state as it is; at ZeRO-0 rank 0 writes all there is, whatever their number."""
        there = manifest.layout.model_dump()
        return there == self.layout or there["zero_stage"] == self.layout["zero_stage"] == 0

    def _restore(self, engine, tag: Path, manifest: Manifest) -> None:
        if self._is_same(manifest):
            with parsing(f"{tag}: the checkpoint is damaged", FIX, but=NOT_OF_THE_INPUT):
                engine.load_checkpoint(str(tag.parent), tag=tag.name)
        else:
            ranks.on_all_ranks(lambda: convert(engine, tag, manifest))
            refresh_weights(engine)


class Writer(TorchCheckpointEngine):
    """Writes an engine's files as DeepSpeed does, but keeps a fault for later instead of raising it; reads data alone.

    Saving has collectives, in which the other ranks would wait for one that met a full disk. After a fault nothing
    more is written until `finish`.
    """

    def __init__(self, engine):
        super().__init__(engine._config)
        self._fault: OSError | None = None
        self._written: dict[str, dict[str, int]] = {}

    def finish(self) -> dict[str, dict[str, int]]:
        """The files written since the last call by name, as `SavedFile`.

        Raises:
            OSError: what went wrong, if anything did.
        """
        (fault, self._fault), (written, self._written) = (self._fault, None), (self._written, {})
        if fault is not None:
            raise fault
        return written

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
        self.keeping_fault(self._save)(state_dict, path)

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]:
        return read_state(Path(path), mapped=False)

    def _save(self, state: dict[str, Any], path: str) -> None:
        """`torch.save`, with the system's reason where a file cannot be written: PyTorch gives its position in it."""
        try:
            with open(path, "w+b") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())  # the manifest says that all is there: it must not outlive a power cut alone
                self._written[Path(path).name] = {"size": file.seek(0, os.SEEK_END), "seal": seal(file)}
        except (OSError, RuntimeError) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror, path) from None
