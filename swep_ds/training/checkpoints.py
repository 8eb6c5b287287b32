"""Checkpoints that are whole or not there.

A checkpoint is a folder `update-<n>` that DeepSpeed writes, every rank its part. It counts only once rank 0 has put
`complete.json` (every file with its size, and what the run must have in common with it) into it, after all ranks
were done; only then does `latest` move, by an atomic rename. A folder without `complete.json` is a write that was
cut off: it is passed over. One whose files do not match is damaged.

A checkpoint is read through pickle: resume only from folders that you trust.
"""

import json
import logging
import shutil
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swep_ds import distributed as ranks
from swep_ds.errors import InputError
from swep_ds.evaluation.results import Score
from swep_ds.files import write_atomically

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


class Checkpoints:
    """The checkpoints of one run, and how they scored on validation data where they did.

    The scores travel in the manifests, so that a run that goes on chooses as one that was never stopped.

    Args:
        folder: the run's `checkpoints/`, on a file system that all ranks share.
        keep: how many complete ones to keep.
        setup: what a run must have in common with a checkpoint to continue from it exactly (world size, ZeRO
            stage, precision ...); kept in its manifest and compared by `load`.
    """

    def __init__(self, folder: Path, keep: int, setup: dict[str, Any]):
        self.folder, self.keep, self.setup = folder, keep, setup
        self.scores: dict[int, Score] = {}  # on validation data, by update

    def tag(self, update: int) -> Path:
        return self.folder / f"update-{update:08d}"

    def save(self, engine, done: Done, score: Score | None = None) -> None:
        """Writes the state and moves `latest` to it. All ranks call this together.

        Older ones are deleted, but for the newest `keep` and for the best as of each of them: whichever of them a run
        goes on from, it finds the best one so far.
        """
        tag = self.tag(done.updates)
        if score is not None:
            self.scores[done.updates] = score
        if ranks.is_main() and tag.exists():
            (tag / MANIFEST).unlink(missing_ok=True)  # cut off by an earlier stop, or of an abandoned branch
            shutil.rmtree(tag)
        ranks.gather(None)
        engine.save_checkpoint(str(self.folder), tag=tag.name, save_latest=False)
        ranks.gather(None)  # every rank has written its files
        # each node may see its own files before others' on a network file system: take what any of them sees
        seen = ranks.gather({str(f.relative_to(tag)): f.stat().st_size for f in tag.rglob("*") if f.is_file()})
        if ranks.is_main():
            files = dict(sorted(item for part in seen for item in part.items()))
            manifest = {"done": asdict(done), "setup": self.setup, "scores": self.scores, "files": files}
            write_atomically(tag / MANIFEST, json.dumps(manifest, indent=1))
            write_atomically(self.folder / LATEST, tag.name)
            complete = self._complete()
            # a run that went on from an earlier checkpoint leaves later ones behind: they are of an abandoned branch
            newest = [update for update in complete if update <= done.updates][-self.keep :]
            kept = {*newest, *(self._best(u for u in complete if u <= one) for one in newest)}
            for old in (self.tag(update) for update in complete if update not in kept):
                (old / MANIFEST).unlink()  # first: a half-deleted folder must not look complete
                shutil.rmtree(old)
        ranks.gather(None)

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

    def load(self, engine, tag: Path) -> Done:
        """Goes on from a complete checkpoint; returns how far it is. All ranks call this together.

        Raises:
            InputError: as `restore`.
        """
        manifest = self.restore(engine, tag)
        self.scores = {int(update): score for update, score in manifest.get("scores", {}).items()}
        return Done(**manifest["done"])

    def restore(self, engine, tag: Path) -> dict[str, Any]:
        """Engine and schedule as they were saved; returns the manifest. All ranks call this together.

        Every file is read through once before DeepSpeed opens any: its loading has collectives, in which the other
        ranks would wait for one that found a damaged file.

        Raises:
            InputError: damaged, or written under a set-up from which this run cannot continue exactly.
        """
        manifest = ranks.agree(lambda: read_manifest(tag))
        differing = [
            f"{name} {manifest['setup'].get(name)!r} there, {value!r} here"
            for name, value in self.setup.items()
            if manifest["setup"].get(name) != value
        ]
        if differing:
            raise InputError(
                f"{tag}: the checkpoint does not fit this start ({'; '.join(differing)}): start with the same "
                "number of ranks and settings, or train anew with another --output_dir"
            )
        ranks.agree(lambda: check_contents(tag, sorted(manifest["files"])[ranks.rank() :: ranks.world_size()]))
        engine.load_checkpoint(str(tag.parent), tag=tag.name)
        return manifest


def check_contents(tag: Path, files: list[str]) -> None:
    """Reads PyTorch's files through and compares the checksums (CRC-32) that they carry.

    Raises:
        InputError: naming the first damaged file.
    """
    for name in files:
        if name.endswith(".pt"):
            try:
                with zipfile.ZipFile(tag / name) as archive:
                    damaged = archive.testzip()
            except (zipfile.BadZipFile, OSError, ValueError, EOFError, zlib.error) as error:
                damaged = str(error)
            if damaged:
                raise InputError(f"{tag}: the checkpoint is damaged ({name}: {damaged}): {MEND}")


MEND = "delete that folder to go on from an earlier one, or train anew with another --output_dir"


def find_checkpoint(folder: Path) -> Path | None:
    """The checkpoint to go on from: the one `latest` names, else the newest whole one; None if there never was one.

    Raises:
        InputError: there are complete ones, but all of them are damaged.
    """
    damaged = []
    tags = sorted((f.parent for f in folder.glob(f"update-*/{MANIFEST}")), reverse=True)
    named = folder / (folder / LATEST).read_text() if (folder / LATEST).is_file() else None
    for tag in sorted(tags, key=lambda tag: tag != named):  # stable: the others stay newest first
        try:
            read_manifest(tag)
        except InputError as error:
            log.warning("%s", error)
            damaged.append(str(error))
            continue
        return tag
    if damaged:
        raise InputError(damaged[0])
    return None


def read_manifest(tag: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are all there with their sizes.

    Raises:
        InputError: not a checkpoint, never completed, or damaged.
    """
    try:
        manifest = json.loads((tag / MANIFEST).read_text())
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
