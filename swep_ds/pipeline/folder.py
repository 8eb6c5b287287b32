"""A run's folder: one run at a time, and never over other files."""

import fcntl
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from swep_ds import ranks
from swep_ds.console import warn
from swep_ds.errors import InputError
from swep_ds.files import leftover_of, open_lock, read_json, user_path, write_atomically
from swep_ds.pipeline.examples import tested_on
from swep_ds.ranks.launch import slurm_restarts
from swep_ds.recipe import Recipe
from swep_ds.settings import differences, flatten
from swep_ds.training.checkpoint_files import LATEST, MANIFEST, checkpoint_number, find_checkpoints, read_manifest

# what may change between two starts of the same run
MAY_CHANGE_ON_RESUME = ("data.eval", "eval.batch_size", "tracking", "train.log_every", "train.checkpoint_every")
MAY_CHANGE_ON_RESUME += ("train.keep_checkpoints", "train.on_checkpoint_failure", "train.stall_seconds")
MAY_CHANGE_ON_RESUME += (
    "train.micro_batch_size",
    "train.gradient_accumulation_steps",
)  # their product with the ranks binds: `Batch`
MAY_CHANGE_UNLESS_SELECTING = ("data.max_eval_examples", "eval.n_best", "eval.max_answer_tokens", "eval.beams")
RECIPE, BATCH, LOCK, PRETRAIN, PREDICTIONS = "recipe.yaml", "batch.json", ".lock", "pretrain", "predictions"
# what a run writes into its folder
FILES = (RECIPE, BATCH, "ds_config.json", "metrics.jsonl", "health.jsonl", "wandb_id", "noise.safetensors")
FILES += (".noise.safetensors.unfinished", "results.json", "report.html")
FOLDERS = (PRETRAIN, "checkpoints", PREDICTIONS, "model", ".model.unfinished")
REPLACED = ("model", ".model.unfinished")  # as a whole, so that a link to a folder elsewhere would not do
DEEPEST = "checkpoints/update-00000000/bf16_zero_pp_rank_00000_mp_rank_00_optim_states.pt"  # about; paths have a limit
MOST = 2**31  # windows of an update
MOST_RANKS = 4096  # that are named where another number is needed
# a network file system lets a dead node's lock go after a minute or two: what Slurm starts again waits for that
LOCK_SECONDS, LOCK_SECONDS_OF_A_RESTART, LOCK_EVERY = 4.0, 120.0, 2.0


@dataclass(frozen=True)
class Batch:
    """What an update takes, whatever the number of ranks, and how the recipe of the run's latest start splits it."""

    windows: int  # over all ranks and micro-batches; with train.max_tokens the number of micro-batches
    micro_batch_size: int
    gradient_accumulation_steps: int

    @classmethod
    def read(cls, noted: Any, where: str) -> "Batch":
        """What was noted in a file.

        Raises:
            InputError: it is no batch.
        """
        names = [field.name for field in fields(cls)]
        if (
            isinstance(noted, dict)
            and noted.keys() == set(names)
            and all(type(number) is int and 0 < number <= MOST for number in noted.values())
            and noted["windows"] % noted["gradient_accumulation_steps"] == 0
        ):
            return cls(**noted)
        raise InputError(
            f"{where}: is damaged: it needs {', '.join(names)} as positive whole numbers: correct it, or train anew "
            "with another --output_dir"
        )

    @classmethod
    def of(cls, recipe: Recipe, windows: int) -> "Batch":
        return cls(windows, recipe.train.micro_batch_size, recipe.train.gradient_accumulation_steps)

    def keep(self, recipe: Recipe, world_size: int) -> Recipe:
        """The recipe, with another split where this number of ranks makes its own one another global batch.

        The micro-batch is the largest that divides a rank's windows and is no larger than the recipe's.

        Raises:
            InputError: the recipe itself now asks for another global batch, or the ranks cannot share this one evenly.
        """
        train = recipe.train
        width = 1 if train.max_tokens else train.micro_batch_size
        here = width * train.gradient_accumulation_steps * world_size
        if here == self.windows:
            return recipe
        if Batch.of(recipe, self.windows) != self or self.windows % (width * train.gradient_accumulation_steps):
            raise InputError(
                f"{'' if train.max_tokens else f'train.micro_batch_size {width} x '}train.gradient_accumulation_steps "
                f"{train.gradient_accumulation_steps} x {world_size} rank(s) is a global batch of {here}, and the run "
                f"began with {self.windows}: give factors of that, or train anew with another --output_dir"
            )
        own, left = divmod(self.windows, world_size)
        if left:
            fit = ", ".join(
                str(ranks) for ranks in range(1, min(self.windows, MOST_RANKS) + 1) if self.windows % ranks == 0
            )
            raise InputError(
                f"the run began with a global batch of {self.windows}, which {world_size} ranks cannot share evenly: "
                f"start it on {fit} rank(s), or train anew with another --output_dir"
            )
        micro = next(size for size in range(min(width, own), 0, -1) if own % size == 0)
        split = {"gradient_accumulation_steps": own // micro}
        if not train.max_tokens:
            split["micro_batch_size"] = micro
        return recipe.model_copy(update={"train": train.model_copy(update=split)})


class RunFolder:
    """`recipe.yaml`, `ds_config.json`, `metrics.jsonl`, `checkpoints/`, `model/`, `predictions/`, `results.json`,
    `report.html`.

    `batch.json` beside them is a `Batch`: a run that comes back on other ranks has no other way to know.

    A run of two stages has the folder of the first one, `pretrain/`, in its own.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.results = path / "results.json"
        self.report = path / "report.html"

    def take(self, recipe: Recipe, resume: str) -> list[Path]:
        """Locks the folder for this process; returns the checkpoints to go on from (`Checkpoints.load`), none to
        start anew.

        What could not be written at the end of the run is an error now.

        Args:
            resume: "auto", "never", or the folder of a checkpoint (or of several: the newest is taken).

        Raises:
            InputError: the folder is in use, by another process, another run or other files; or it cannot be written
                to; or no such checkpoint.
        """
        user_path(str(self.path / DEEPEST), "--output_dir")
        self._check_owner(recipe, resume)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open_lock(self.path / LOCK)  # held until the process ends
        except OSError as error:
            raise InputError(f"--output_dir {self.path}: cannot be written to ({error.strerror})") from None
        try:
            _lock(self._lock, self.path)
        except OSError as error:
            raise InputError(
                f"--output_dir {self.path}: its file system has no locks ({error.strerror}): name a folder on another"
            ) from None
        self._check_owner(recipe, resume)  # as another process left it that held the lock until now
        self._clear_leftovers()
        self._check_names([self.path / PREDICTIONS / f"{name}.json" for name in tested_on(recipe)])
        if resume in ("auto", "never"):
            return find_checkpoints(self.checkpoints)
        path = user_path(resume, "--resume")
        if not path.is_dir():
            raise InputError(f"--resume {resume}: no such folder: give auto, never, or a checkpoint's folder")
        path = path.resolve()
        tag = [*find_checkpoints(path), path][0]
        read_manifest(tag)
        return [tag]

    def _check_owner(self, recipe: Recipe, resume: str) -> None:
        """Raises InputError where the folder is not this run's."""
        if not self.path.is_dir():
            if self.path.exists():
                raise InputError(f"--output_dir {self.path}: is a file: name a folder")
            if self.path.is_symlink():
                raise InputError(f"--output_dir {self.path}: is a symbolic link to nothing: name a folder")
            return
        saved = self.path / RECIPE
        if not saved.is_file():
            if foreign := self._foreign(recipe):
                raise InputError(
                    f"--output_dir {self.path}: holds files of no run ({foreign[0]}): name a new or empty folder"
                )
            return
        if resume == "never":
            raise InputError(
                f"--output_dir {self.path}: holds a run already: name another folder, or --resume auto to go on"
            )
        before = resume_fingerprint(Recipe.load(str(saved)))
        if differing := differences(before, resume_fingerprint(recipe)):
            raise InputError(f"--output_dir {self.path}: holds another run ({differing}): name another folder")

    def _foreign(self, recipe: Recipe) -> list[str]:
        """Names of what no start of a run leaves that ended before it wrote its recipe."""
        first = self.path / PRETRAIN
        no_stage = first.is_dir() and all(_is_left(file) for file in _entries(first))
        own = {PRETRAIN, BATCH} if recipe.pretrain or no_stage else set()
        return [file.name for file in _entries(self.path) if not (file.name in own or _is_left(file))]

    def _clear_leftovers(self) -> None:
        """Deletes temporary files of processes that were killed while they wrote; no other process writes here now."""
        tags = [file for file in _entries(self.checkpoints) if checkpoint_number(file.name) is not None]
        holders = {self.path: FILES, self.checkpoints: (LATEST,)} | dict.fromkeys(tags, (MANIFEST,))
        try:
            for folder, names in holders.items():
                for file in _entries(folder):
                    if leftover_of(file.name) in names:
                        file.unlink()
            for file in _entries(self.path / PREDICTIONS):
                if (leftover_of(file.name) or "").endswith(".json"):
                    file.unlink()
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be deleted ({error.strerror}): delete it") from None

    def _check_names(self, answers: Sequence[Path]) -> None:
        """Raises InputError where something lies in the way of what the run is going to write."""
        for file in (*(self.path / name for name in FILES), *answers):
            if os.path.lexists(file) and not file.is_file():
                raise InputError(f"{file}: is no file, and the run writes one there: move it away")
        for name in ("", *FOLDERS):
            folder = self.path / name
            if os.path.lexists(folder) and (not folder.is_dir() or (name in REPLACED and folder.is_symlink())):
                raise InputError(f"{folder}: is no folder, and the run writes one there: move it away")
            if folder.is_dir() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                raise InputError(f"{folder}: cannot be written to (Permission denied): change its permissions")

    def began(self, tags: list[Path]) -> Batch | None:
        """The batch that the run began with; for a new run, that of the run whose checkpoints it resumes from.

        Raises:
            InputError: what was noted is none.
        """
        file = self.path / BATCH
        if os.path.lexists(file):
            return Batch.read(read_json(file), str(file))
        return Batch.read(read_manifest(tags[0]).batch, str(tags[0] / MANIFEST)) if tags else None

    def keep(self, batch: Batch) -> None:
        """Notes what `began` gives."""
        write_atomically(self.path / BATCH, json.dumps(asdict(batch)) + "\n")


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, by name; nothing in one that is not there.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}): change its permissions") from None


def _is_left(path: Path) -> bool:
    """Whether a start of a run that was refused or killed may have left this, with nothing in it that is worth keeping:
    its lock, a temporary file, an empty file or folder of a name that it gives."""
    name = path.name
    if name == LOCK or leftover_of(name) in FILES or re.fullmatch(r"\.preflight-[0-9a-f]{16}-[0-9]+", name):
        return True
    if name in FOLDERS:
        return path.is_dir() and not path.is_symlink() and not _entries(path)
    return name in FILES and name != RECIPE and path.is_file() and path.stat().st_size == 0


def _lock(file: BinaryIO, folder: Path) -> None:
    """Waits a little for another process to let go: one that was killed may still be ending.

    Raises:
        InputError: it does not.
        OSError: the file system has no locks.
    """
    restarted = slurm_restarts() > 0
    seconds = LOCK_SECONDS_OF_A_RESTART if restarted else LOCK_SECONDS
    until, said = time.monotonic() + seconds, False
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise InputError(
                    f"--output_dir {folder}: another process is writing to it: name another folder"
                ) from None
        if not said:
            warn(f"{folder}: another process holds it, waiting up to {seconds:.0f} s")
            said = True
        time.sleep(LOCK_EVERY)


def check_alike(setup: dict[str, Any]) -> None:
    """Raises InputError, on all ranks, where one of them would train otherwise. All ranks call this together."""
    first, *others = ranks.gather(setup)
    for number, other in enumerate(others, 1):
        if differing := differences(first, other, most=5):
            raise InputError(
                f"rank {number} (here, host {ranks.host(number)}) starts otherwise than rank 0 (there, host "
                f"{ranks.host(0)}): {differing}: give all nodes the same recipe, data and ds_config"
            )


def resume_fingerprint(recipe: Recipe) -> dict[str, Any]:
    """The settings by dotted name that a run must keep from its first update to its last.

    Where the run selects its checkpoint, what its scores on the selection data depend on is among them.
    """
    selects = recipe.eval.select_on is not None
    free = MAY_CHANGE_ON_RESUME if selects else MAY_CHANGE_ON_RESUME + MAY_CHANGE_UNLESS_SELECTING
    settings = flatten(recipe.model_dump(mode="json"))
    flat = {
        name: value for name, value in settings.items() if not any(f"{name}.".startswith(f"{one}.") for one in free)
    }
    if selects:
        flat["data.eval, to select on"] = recipe.data.eval.get(recipe.eval.select_on)
    return flat
