"""A run's folder: only one process writes to it, and no files of others are ever overwritten."""

import fcntl
import json
import os
import shlex
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass

from swep_ds import ranks
from swep_ds.common.console import say_on_stderr
from swep_ds.common.errors import InputError
from swep_ds.common.files import is_leftover, open_lock, read_json, user_path, write_atomically
from swep_ds.common.settings import differences, flatten, without
from swep_ds.evaluation.results import BY_TEST, RESULTS
from swep_ds.pipeline.recipe import NEUTRAL, Recipe
from swep_ds.ranks.environment import slurm_restarts
from swep_ds.training.checkpoint_files import MANIFEST, find_checkpoints, read_manifest

# settings that may change between two starts of a run; `GlobalBatch` binds the product of the last two with the ranks
MAY_CHANGE_ON_RESUME = (*NEUTRAL, "data.eval", "eval.batch_size", "train.checkpoint_every")
MAY_CHANGE_ON_RESUME += ("train.coalesce_grad_reduction", "train.micro_batch_size", "train.gradient_accumulation_steps")
MAY_CHANGE_UNLESS_SELECTING = ("data.max_eval_examples", "eval.n_best", "eval.max_answer_tokens", "eval.beams")
MAY_CHANGE_UNLESS_SELECTING += ("eval.scorer", "eval.language")
RECIPE, DS_CONFIG, BATCH, LOCK, REPORT = "recipe.yaml", "ds_config.json", "batch.json", ".lock", "report.html"
READING = "reading.json"  # in an exported model: how its run cut windows and decoded answers
METRICS_FILE, HEALTH_FILE = "metrics.jsonl", "health.jsonl"
PRETRAIN, UNAVERAGED = "pretrain", "unaveraged"  # folders in a run's folder that are those of runs
FOLDERS = (PRETRAIN, UNAVERAGED, "checkpoints", "model", *BY_TEST)  # that a run makes in its folder
MAX_RANKS_LISTED = 4096  # up to which a message lists numbers of ranks
# A network file system may hold a dead node's lock for a minute or two; a run that Slurm restarts waits for that.
LOCK_SECONDS, LOCK_SECONDS_OF_A_RESTART, LOCK_EVERY = 4.0, 120.0, 2.0


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class GlobalBatch:
    """The global batch of a run, on whatever number of ranks, and how the recipe of its latest start splits it."""

    windows: PositiveInt  # over all ranks and micro-batches; with train.max_tokens the number of micro-batches
    micro_batch_size: PositiveInt
    gradient_accumulation_steps: PositiveInt

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
            f"{where}: is damaged, or no run's: it needs {', '.join(cls.__dataclass_fields__)} as positive whole "
            "numbers: correct it, or start a new run with another --output_dir"
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

    `batch.json` in it is a `GlobalBatch`, which a run that resumes on other ranks keeps. It is written before all else:
    a folder without it is no run's, whatever it holds. In a run of two stages `pretrain/` is the folder of the first
    stage. In a run with `train.average` `unaveraged/` holds what the same training gives without it: recipe, batch,
    model, noise generator, predictions and results.
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
        self.check_owner(recipe, resume)
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self._lock = _lock(self.path)
        self.check_owner(recipe, resume)  # another process may have held the lock until now
        self._check_writable()
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
        try:
            tag = [*find_checkpoints(path), path][0]
            read_manifest(tag)
        except InputError as error:
            raise InputError(f"--resume {resume}: {error}") from None
        return [tag]

    def check_owner(self, recipe: Recipe, resume: str = "auto") -> None:
        """Raises InputError if the folder is not this run's, and not free either. `resume` as in `take`."""
        where = f"--output_dir {self.path}"
        start = user_path(recipe.model.name, "model.name").resolve()
        if start.is_dir() and self.path.resolve() in (start, *start.parents):
            raise InputError(
                f"{where}: holds the model that the run starts from (model.name {start}): name another folder"
            )
        if not self.path.is_dir():
            if self.path.exists():
                raise InputError(f"{where}: is a file: name a folder")
            if self.path.is_symlink():
                raise InputError(f"{where}: is a symbolic link to nothing: name a folder")
        elif not ((self.path / RECIPE).is_file() and self.read_batch([])):
            if foreign := self._foreign(recipe):
                raise InputError(f"{where}: holds files that belong to no run ({foreign}): name a new or empty folder")
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
        saved = any(self.checkpoints.glob("update-*"))
        return self.results.is_file() or saved or (log.is_file() and log.stat().st_size > 0)

    def _foreign(self, recipe: Recipe) -> str | None:
        """The name of an entry that no start has left which ended before it wrote its recipe; None if there is none."""
        for entry in sorted(self.path.iterdir()):
            first_stage = entry.name == PRETRAIN and entry.is_dir()
            if first_stage and (recipe.pretrain or all(_is_left(file) for file in entry.iterdir())):
                continue
            if not _is_left(entry):
                return entry.name
        return None

    def _check_writable(self) -> None:
        """Raises InputError if the run could not write where it writes hours later."""
        for folder in (self.path, *(self.path / name for name in FOLDERS)):
            if os.path.lexists(folder) and not (folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK)):
                raise InputError(f"{folder}: is no folder that can be written to: change its permissions or move it")

    def read_batch(self, tags: list[Path]) -> GlobalBatch | None:
        """The batch that the run began with; for a new run, that of the run whose checkpoints it resumes from.

        Raises:
            InputError: the saved batch is damaged.
        """
        file = self.path / BATCH
        if file.exists():
            return GlobalBatch.read(read_json(file), str(file))
        return GlobalBatch.read(read_manifest(tags[0]).batch, str(tags[0] / MANIFEST)) if tags else None

    def global_batch(self, recipe: Recipe, world_size: int) -> int:
        """The global batch of the run of this recipe; without a saved batch that on the `world_size`."""
        batch = self.read_batch([])
        return batch.windows if batch else batch_of_rank(recipe) * world_size

    def write_batch(self, batch: GlobalBatch) -> None:
        """Saves what `read_batch` returns."""
        write_atomically(self.path / BATCH, json.dumps(asdict(batch)) + "\n")


def _is_left(path: Path) -> bool:
    """Whether a start that ended before it wrote its recipe may have left this.

    Raises InputError: it is a `BATCH` that no run has written.
    """
    if path.name == BATCH:
        return GlobalBatch.read(read_json(path), str(path)) is not None
    if path.name == LOCK or is_leftover(path.name) or path.name.startswith(".preflight-"):
        return True
    return path.name in FOLDERS and path.is_dir() and not any(path.iterdir())


def _lock(folder: Path) -> BinaryIO:
    """Makes and locks a run's folder, and waits a little for a process that was killed and is still ending.

    Raises:
        InputError: another process holds the lock, folder or file cannot be made, or its file system has no locks.
    """
    seconds = LOCK_SECONDS_OF_A_RESTART if slurm_restarts() > 0 else LOCK_SECONDS
    deadline, warned = time.monotonic() + seconds, False
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = open_lock(folder / LOCK)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):  # a start that was refused may have deleted it in the meantime
                if os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
                    return file
            continue
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise InputError(
                    f"--output_dir {folder}: another process is writing to it: name another folder"
                ) from None
        except OSError as error:  # no permission, or a file system without locks
            raise InputError(
                f"--output_dir {folder}: cannot be made and locked ({error.strerror}): name another folder"
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
