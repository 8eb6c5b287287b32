"""A run's folder: only one process writes to it, and no files of others are ever overwritten."""

import fcntl
import json
import os
import re
import shlex
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from swep_ds import ranks
from swep_ds.console import say_on_stderr
from swep_ds.errors import InputError
from swep_ds.evaluation.results import BY_TEST, RESULTS
from swep_ds.files import leftover_of, open_lock, read_json, user_path, write_atomically
from swep_ds.ranks.launch import slurm_restarts
from swep_ds.recipe import NEUTRAL, Recipe
from swep_ds.settings import differences, flatten, without
from swep_ds.training.checkpoint_files import LATEST, MANIFEST, checkpoint_number, find_checkpoints, read_manifest

# settings that may change between two starts of a run; `GlobalBatch` binds the product of the last two with the ranks
MAY_CHANGE_ON_RESUME = (*NEUTRAL, "data.eval", "eval.batch_size", "train.checkpoint_every")
MAY_CHANGE_ON_RESUME += ("train.coalesce_grad_reduction", "train.micro_batch_size", "train.gradient_accumulation_steps")
MAY_CHANGE_UNLESS_SELECTING = ("data.max_eval_examples", "eval.n_best", "eval.max_answer_tokens", "eval.beams")
MAY_CHANGE_UNLESS_SELECTING += ("eval.scorer", "eval.language")
RECIPE, DS_CONFIG, BATCH, LOCK, REPORT = "recipe.yaml", "ds_config.json", "batch.json", ".lock", "report.html"
METRICS_FILE, HEALTH_FILE = "metrics.jsonl", "health.jsonl"
PRETRAIN, UNAVERAGED = "pretrain", "unaveraged"  # folders in a run's folder that are those of runs
# what a run writes into its folder
FILES = (RECIPE, BATCH, DS_CONFIG, METRICS_FILE, HEALTH_FILE, "wandb_id", "noise.safetensors")
FILES += (".noise.safetensors.unfinished", RESULTS, REPORT)
REPLACED = ("model", ".model.unfinished", ".model.old")  # as a whole
FOLDERS = (PRETRAIN, UNAVERAGED, "checkpoints", *BY_TEST, *REPLACED)
LONGEST_PATH = "checkpoints/update-00000000/bf16_zero_pp_rank_00000_mp_rank_00_optim_states.pt"  # the longest path
MAX_RANKS_LISTED = 4096  # up to which a message lists numbers of ranks
# A network file system may hold a dead node's lock for a minute or two; a run that Slurm restarts waits for that.
LOCK_SECONDS, LOCK_SECONDS_OF_A_RESTART, LOCK_EVERY = 4.0, 120.0, 2.0
Number = Annotated[int, Field(gt=0, le=2**31)]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class GlobalBatch:
    """The global batch of a run, on whatever number of ranks, and how the recipe of its latest start splits it."""

    windows: Number  # over all ranks and micro-batches; with train.max_tokens the number of micro-batches
    micro_batch_size: Number
    gradient_accumulation_steps: Number

    @classmethod
    def read(cls, content: Any, where: str) -> "GlobalBatch":
        """A batch from JSON `content`; raises InputError if it is not one."""
        try:
            batch = cls(**content)
            if batch.windows % batch.gradient_accumulation_steps == 0:
                return batch
        except (TypeError, ValueError):
            pass
        raise InputError(
            f"{where}: is damaged: it needs {', '.join(cls.__dataclass_fields__)} as positive whole numbers: correct "
            "it, or start a new run with another --output_dir"
        )

    @classmethod
    def of(cls, recipe: Recipe, windows: int) -> "GlobalBatch":
        return cls(windows, recipe.train.micro_batch_size, recipe.train.gradient_accumulation_steps)

    def split(self, recipe: Recipe, world_size: int) -> Recipe:
        """The recipe, with a new split if its own makes another global batch on this number of ranks.

        The new micro-batch is the largest that divides a rank's windows and is not larger than the recipe's.

        Raises:
            InputError: the recipe itself now asks for another global batch, or the ranks cannot share it evenly.
        """
        train = recipe.train
        width = 1 if train.max_tokens else train.micro_batch_size
        asked = batch_of_rank(recipe) * world_size
        if asked == self.windows:
            return recipe
        if GlobalBatch.of(recipe, self.windows) != self or self.windows % batch_of_rank(recipe):
            raise InputError(
                f"{'' if train.max_tokens else f'train.micro_batch_size {width} x '}train.gradient_accumulation_steps "
                f"{train.gradient_accumulation_steps} x {world_size} rank(s) is a global batch of {asked}, and the run "
                f"began with {self.windows}: choose values with that product, or start a new "
                "run with another --output_dir"
            )
        share, rest = divmod(self.windows, world_size)
        if rest:
            fit = [str(n) for n in range(1, min(self.windows, MAX_RANKS_LISTED) + 1) if self.windows % n == 0]
            raise InputError(
                f"the run began with a global batch of {self.windows}, which {world_size} ranks cannot share evenly: "
                f"start it on {', '.join(fit)} rank(s), or start a new run with another --output_dir"
            )
        micro = next(size for size in range(min(width, share), 0, -1) if share % size == 0)
        split = {"gradient_accumulation_steps": share // micro}
        if not train.max_tokens:
            split["micro_batch_size"] = micro
        return recipe.model_copy(update={"train": train.model_copy(update=split)})


def batch_of_rank(recipe: Recipe) -> int:
    """A rank's share of the global batch that a recipe asks for, as `GlobalBatch.windows` counts."""
    train = recipe.train
    return (1 if train.max_tokens else train.micro_batch_size) * train.gradient_accumulation_steps


class RunFolder:
    """Paths in a run's folder, and who may write there.

    `batch.json` in it is a `GlobalBatch`, which a run that resumes on other ranks keeps. In a run of two stages
    `pretrain/` is the folder of the first stage. In a run with `train.average` `unaveraged/` holds what the same
    training gives without it: recipe, batch, model, noise generator, predictions and results.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.results = path / RESULTS
        self.report = path / REPORT
        self._made: list[Path] = []  # folders that `take` made, the innermost first
        self._lock: BinaryIO | None = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_) -> None:
        """Unlocks the folder. A start that was refused, so that the run never wrote its recipe, leaves nothing new."""
        if self._lock and not (self.path / RECIPE).exists():
            (self.path / LOCK).unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):  # it holds something: a run, or what others have put there
                folder.rmdir()
        if self._lock:
            self._lock.close()

    def read_recipe(self) -> Recipe:
        """Raises InputError: the folder holds no run, or its recipe is damaged."""
        if not (self.path / RECIPE).is_file():
            raise InputError(f"{self.path}: holds no {RECIPE}, so no run: name a run's folder")
        return Recipe.load(str(self.path / RECIPE))

    def check_finished(self) -> None:
        """Raises InputError: the folder holds no finished run."""
        if not self.results.is_file():
            raise InputError(f"{self.path}: holds no {self.results.name}: name the folder of a finished run")

    def check_not_finished(self) -> None:
        """Raises InputError: the folder, which has no checkpoint, holds a finished run."""
        if self.results.is_file():
            raise InputError(
                f"{self.path}: its run is finished, and without checkpoints it would be trained again: test its model "
                f"by `swep-ds evaluate {shlex.quote(str(self.model))} --data NAME=SOURCE --output_dir NEW`, or delete "
                f"{self.results}"
            )

    def take(self, recipe: Recipe, resume: str) -> list[Path]:
        """Locks the folder until `__exit__`, and checks that the run will be able to write all its files.

        Args:
            resume: "auto", "never", or the folder of a checkpoint, or of several, of which the newest is used. One
                outside this folder counts only until this folder has checkpoints or results of its own, so that the
                same command can be repeated.

        Returns:
            The checkpoints to resume from, for `Checkpoints.load`; none for a new run.

        Raises:
            InputError: another process, another run or other files are in the folder, it cannot be written to, or
                there is no such checkpoint.
        """
        user_path(str(self.path / LONGEST_PATH), "--output_dir")
        self.check_owner(recipe, resume)
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self._lock = _lock(self.path)
        self.check_owner(recipe, resume)  # another process may have held the lock until now
        self._check_names(recipe)
        self._clear_leftovers()
        if resume in ("auto", "never"):
            return find_checkpoints(self.checkpoints)
        path = user_path(resume, "--resume")
        if not path.is_dir():
            raise InputError(f"--resume {resume}: no such folder: give auto, never, or a checkpoint's folder")
        path = path.resolve()
        tags = find_checkpoints(self.checkpoints)
        if (tags or self.results.is_file()) and not path.is_relative_to(self.path.resolve()):
            say_on_stderr(f"{self.path}: has begun already, and continues from what it holds, not from {resume}")
            return tags
        tag = [*find_checkpoints(path), path][0]
        read_manifest(tag)
        return [tag]

    def check_owner(self, recipe: Recipe, resume: str = "auto") -> None:
        """Raises InputError if the folder is not this run's, and not free either. `resume` as in `take`."""
        where, saved = f"--output_dir {self.path}", self.path / RECIPE
        if not self.path.is_dir():
            if self.path.exists():
                raise InputError(f"{where}: is a file: name a folder")
            if self.path.is_symlink():
                raise InputError(f"{where}: is a symbolic link to nothing: name a folder")
        elif not saved.is_file():
            if foreign := self._foreign(recipe):
                raise InputError(
                    f"{where}: holds files that belong to no run ({foreign[0]}): name a new or empty folder"
                )
        elif resume == "never":
            raise InputError(f"{where}: holds a run already: name another folder, or --resume auto to resume it")
        elif self._has_begun() and (
            differing := differences(resume_fingerprint(self.read_recipe()), resume_fingerprint(recipe), most=5)
        ):
            raise InputError(f"{where}: holds another run: name another folder ({differing})")

    def _has_begun(self) -> bool:
        """Whether the folder holds more than settings: an update, a checkpoint or results. A start that is refused in
        its first update leaves none, and its advice is to change a setting."""
        log = self.path / METRICS_FILE
        return self.results.is_file() or bool(self._tags()) or (log.is_file() and log.stat().st_size > 0)

    def _foreign(self, recipe: Recipe) -> list[str]:
        """Names of entries that a start cannot have left if it ended before it wrote its recipe."""
        first = self.path / PRETRAIN
        no_stage = first.is_dir() and all(_is_left(file) for file in _entries(first))
        known = {PRETRAIN, BATCH} if recipe.pretrain or no_stage else set()
        return [file.name for file in _entries(self.path) if not (file.name in known or _is_left(file))]

    def _check_names(self, recipe: Recipe) -> None:
        """Raises InputError if something is in the way of what the run will write."""
        for name in (*FILES, *(f"{kind}/{test}.json" for kind in BY_TEST for test in recipe.test_sets)):
            file = self.path / name
            if os.path.lexists(file) and not file.is_file():
                raise InputError(f"{file}: is not a file, but the run will write one there: move it away")
        folders = (self.path, self.path / UNAVERAGED)
        # by the run, so they must not be links
        deleted = [*(folder / name for folder in folders for name in REPLACED), *self._tags()]
        for folder in (self.path, *(self.path / name for name in FOLDERS), *deleted):
            if os.path.lexists(folder) and (not folder.is_dir() or (folder in deleted and folder.is_symlink())):
                raise InputError(f"{folder}: is not a folder, but the run will write one there: move it away")
            if folder.is_dir() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                raise InputError(f"{folder}: cannot be written to (Permission denied): change its permissions")

    def _clear_leftovers(self) -> None:
        """Deletes temporary files of processes that were killed while writing; only this process writes here now."""
        folders = (self.path, self.path / UNAVERAGED)
        names = dict.fromkeys(folders, FILES) | {self.checkpoints: (LATEST,)} | dict.fromkeys(self._tags(), (MANIFEST,))
        left = [file for folder, known in names.items() for file in _entries(folder) if leftover_of(file.name) in known]
        by_test = [file for folder in folders for kind in BY_TEST for file in _entries(folder / kind)]
        left += [file for file in by_test if (leftover_of(file.name) or "").endswith(".json")]
        for file in left:
            try:
                file.unlink()
            except OSError as error:
                raise InputError(f"{file}: cannot be deleted ({error.strerror}): delete it") from None

    def _tags(self) -> list[Path]:
        return [entry for entry in _entries(self.checkpoints) if checkpoint_number(entry.name) is not None]

    def read_batch(self, tags: list[Path]) -> GlobalBatch | None:
        """The batch that the run began with; for a new run, that of the run whose checkpoints it resumes from.

        Raises:
            InputError: the saved batch is damaged.
        """
        file = self.path / BATCH
        if os.path.lexists(file):
            return GlobalBatch.read(read_json(file), str(file))
        return GlobalBatch.read(read_manifest(tags[0]).batch, str(tags[0] / MANIFEST)) if tags else None

    def global_batch(self, recipe: Recipe, world_size: int) -> int:
        """The global batch of the run of this recipe; without a saved batch that on the `world_size`."""
        batch = self.read_batch([])
        return batch.windows if batch else batch_of_rank(recipe) * world_size

    def write_batch(self, batch: GlobalBatch) -> None:
        """Saves what `read_batch` returns."""
        write_atomically(self.path / BATCH, json.dumps(asdict(batch)) + "\n")


def _entries(folder: Path) -> list[Path]:
    """What is in a folder, by name; nothing if there is no such folder. Raises InputError if it cannot be read."""
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}): change its permissions") from None


def _is_left(path: Path) -> bool:
    """Whether a refused or killed start of a run may have left this, with nothing in it that is worth keeping."""
    name = path.name
    if name == LOCK or leftover_of(name) in FILES or re.fullmatch(r"\.preflight-[0-9a-f]{16}-[0-9]+", name):
        return True
    if name in FOLDERS:
        return path.is_dir() and not path.is_symlink() and not _entries(path)
    return name in FILES and name != RECIPE and path.is_file() and path.stat().st_size == 0


def _open_lock(folder: Path) -> BinaryIO:
    """Makes the folder of a run, and opens its lock. Raises InputError if either cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output_dir {folder}: cannot be written to ({error.strerror})") from None
    return open_lock(folder / LOCK)


def _lock(folder: Path) -> BinaryIO:
    """Makes and locks a run's folder, and waits a little for a process that was killed and is still ending.

    Raises:
        InputError: another process holds the lock, folder or file cannot be made, or its file system has no locks.
    """
    file, where = _open_lock(folder), f"--output_dir {folder}"
    seconds = LOCK_SECONDS_OF_A_RESTART if slurm_restarts() > 0 else LOCK_SECONDS
    deadline, warned = time.monotonic() + seconds, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
                    return file
            file.close()  # a start that was refused has deleted it in the meantime
            file = _open_lock(folder)
            continue
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise InputError(f"{where}: another process is writing to it: name another folder") from None
        except OSError as error:
            raise InputError(
                f"{where}: its file system has no locks ({error.strerror}): name a folder on another"
            ) from None
        if not warned:
            say_on_stderr(f"{folder}: another process holds it, waiting up to {seconds:.0f} s")
            warned = True
        time.sleep(LOCK_EVERY)


def check_alike(setup: dict[str, Any]) -> None:
    """Raises InputError on all ranks if one of them would train under another `setup`. Collective."""
    first, *others = ranks.gather(setup)
    for number, other in enumerate(others, 1):
        if differing := differences(first, other, most=5):
            raise InputError(
                f"rank {number} (here, host {ranks.host(number)}) starts with other settings than rank 0 (there, host "
                f"{ranks.host(0)}): {differing}: give all nodes the same recipe, data and ds_config"
            )


def resume_fingerprint(recipe: Recipe) -> dict[str, Any]:
    """The settings, by dotted name, that must stay the same over all starts of a run.

    If the run selects a checkpoint, they include what the scores on the selection data depend on.
    """
    selects = recipe.eval.select_on is not None
    free = MAY_CHANGE_ON_RESUME if selects else MAY_CHANGE_ON_RESUME + MAY_CHANGE_UNLESS_SELECTING
    bound = without(flatten(recipe.model_dump(mode="json")), free)
    if selects:
        bound["data.eval, to select on"] = recipe.data.eval.get(recipe.eval.select_on)
    return bound
