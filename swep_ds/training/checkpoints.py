"""Checkpoints that are complete or do not count: folders `update-<n>` to which DeepSpeed writes a part for every rank.

One counts once rank 0 has added the manifest `complete.json`, after all ranks were done; then `latest` moves to it by
an atomic rename. A folder without the manifest is an interrupted write: it is ignored, and deleted with the next one.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from swep_ds import ranks
from swep_ds.common.errors import WriteFailed
from swep_ds.common.files import folder_bytes, sealed, write_atomically
from swep_ds.evaluation.results import Score
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0
from swep_ds.training.average import WeightAverage
from swep_ds.training.checkpoint_files import (
    FOLDERS,
    LATEST,
    MANIFEST,
    TrainState,
    checkpoint_name,
    first_undamaged,
    list_updates,
    read_manifest,
)
from swep_ds.training.zero.conversion import load
from swep_ds.training.zero.weights import refresh_weights


@dataclass
class Checkpoints:
    """The checkpoints of one run and their validation scores, which a resumed run finds in the manifests."""

    folder: Path  # the run's `checkpoints/`, on a file system that all ranks share
    keep: int  # number of complete checkpoints to keep
    setup: dict[str, Any]  # flat settings that a run must share with a checkpoint to resume from it
    batch: dict[str, int]  # `pipeline.folder.GlobalBatch`, for runs in other folders that resume from here
    average: WeightAverage | None = None  # is saved and loaded with the engine
    scores: dict[int, Score] = field(default_factory=dict)  # by update

    def tag(self, update: int) -> Path:
        return self.folder / checkpoint_name(update)

    def save(self, engine, done: TrainState, score: Score | None = None) -> None:
        """Saves the engine, moves `latest` and deletes old checkpoints. Collective.

        The newest `keep` stay and, for each of them, the best one up to it, so that a run that resumes from any of them
        finds its best so far.

        Raises WriteFailed on every rank: then the unfinished checkpoint is deleted, and all others stay.
        """
        tag = self.tag(done.updates)
        if score is not None:
            self.scores[done.updates] = score
        try:
            with ranks.step(f"update {done.updates}, checkpoint", lambda: folder_bytes(tag)):
                self._write(engine, tag, done)
        except WriteFailed as error:
            if ranks.is_main():
                with suppress(OSError):
                    _delete(tag)
            raise WriteFailed(f"the checkpoint of update {done.updates} is lost, earlier ones stay: {error}") from None
        write_on_rank0(lambda: self._prune(done), self.folder)

    def _write(self, engine, tag: Path, done: TrainState) -> None:
        def write() -> dict[str, str]:
            options = {"save_latest": False, "exclude_frozen_parameters": True}  # a start gets those from its model
            engine.deepspeed.save_checkpoint(str(self.folder), tag.name, **options)
            if self.average:
                self.average.save(tag)
            return engine.writer.finish()

        def clear() -> None:
            _delete(tag)  # what an interrupted write or an abandoned branch left there
            tag.mkdir(parents=True)

        write_on_rank0(clear, tag)
        manifest = {"done": asdict(done), "setup": self.setup, "batch": self.batch, "scores": self.scores}
        manifest |= {"stage": engine.stage, "files": ranks.gather(write_on_all_ranks(write, tag))}

        def complete() -> None:
            write_atomically(tag / MANIFEST, sealed(json.dumps(manifest, indent=1)))
            write_atomically(self.folder / LATEST, tag.name)

        write_on_rank0(complete, tag)

    def _prune(self, done: TrainState) -> None:
        updates = list_updates(self.folder)
        # later checkpoints belong to a branch that was abandoned by resuming from an earlier one
        newest = [update for update in updates if update <= done.updates][-self.keep :]
        kept = set(newest)
        for last in newest:
            kept.add(self._best(update for update in updates if update <= last))
        names = {checkpoint_name(update) for update in kept - {None}}
        for tag in self.folder.glob(FOLDERS):  # also what a start left that was killed while it wrote or deleted it
            if tag.name not in names:
                _delete(tag)

    def best(self) -> int | None:
        """The update of the best checkpoint in this folder: by F1, then EM, then the earlier one; None if none has a
        score. Collective."""
        return ranks.from_rank0(lambda: self._best(list_updates(self.folder)))

    def _best(self, updates: Iterable[int]) -> int | None:
        scored = [update for update in updates if update in self.scores]
        return max(scored, key=lambda u: (self.scores[u]["f1"], self.scores[u]["exact_match"], -u), default=None)

    def load(self, engine, tags: Sequence[Path]) -> tuple[Path, TrainState]:
        """Loads the first of some complete checkpoints that is not damaged, and returns its folder. Collective.

        Raises InputError on every rank: all are damaged, or this run's settings are not those it was saved under.
        """
        with ranks.step("loading a checkpoint", lambda: folder_bytes(tag)):
            tag, manifest = first_undamaged(tags, lambda at: ranks.on_all_ranks(lambda: read_manifest(at, check=True)))
            manifest.check_fits(tag, self.setup)  # all ranks have the same setup
            names = [name for written in manifest.files for name in written]
            ranks.on_all_ranks(lambda: load(engine.deepspeed, tag, manifest.stage, names))
            refresh_weights(engine.deepspeed)
            if self.average:
                ranks.on_all_ranks(lambda: self.average.load(tag, names))
        self.scores = manifest.scores | self.scores
        return tag, manifest.done


def _delete(tag: Path) -> None:
    """Deletes a checkpoint, if there is one; of a link only the link. Raises OSError: a file is there."""
    if tag.is_symlink():
        tag.unlink()
    elif tag.exists():
        (tag / MANIFEST).unlink(missing_ok=True)  # first: a half-deleted folder must not look complete
        shutil.rmtree(tag)
