"""A run's folder: one run at a time, and never over somebody else's files."""

import fcntl
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from swep_ds import distributed as ranks
from swep_ds.errors import InputError
from swep_ds.files import write_atomically
from swep_ds.launcher import slurm_restarts
from swep_ds.recipe import Recipe, differences, flatten
from swep_ds.terminal import warn
from swep_ds.training.checkpoints import find_checkpoints, read_manifest

# what may change between two starts of the same run
FREE = ("data.eval", "eval.batch_size", "tracking", "train.log_every", "train.checkpoint_every")
FREE += ("train.keep_checkpoints", "train.on_checkpoint_failure", "train.stall_seconds")
FREE += ("train.micro_batch_size", "train.gradient_accumulation_steps")  # their product with the ranks binds: `Batch`
FREE_UNLESS_SELECTING = ("data.max_eval_examples", "eval.n_best", "eval.max_answer_tokens", "eval.beams")
PRETRAIN, BATCH = "pretrain", "batch.json"
# a network file system lets a dead node's lock go after a minute or two: what Slurm starts again waits for that
LOCK_SECONDS, LOCK_SECONDS_OF_A_RESTART, LOCK_EVERY = 4.0, 120.0, 2.0


@dataclass(frozen=True)
class Batch:
    """What an update takes, whatever the number of ranks, and how the recipe of the run's latest start splits it."""

    windows: int  # over all ranks and micro-batches; with train.max_tokens the number of micro-batches
    micro_batch_size: int
    gradient_accumulation_steps: int

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
        if Batch.of(recipe, self.windows) != self:
            raise InputError(
                f"{'' if train.max_tokens else f'train.micro_batch_size {width} x '}train.gradient_accumulation_steps "
                f"{train.gradient_accumulation_steps} x {world_size} rank(s) is a global batch of {here}, and the run "
                f"began with {self.windows}: give factors of that, or train anew with another --output_dir"
            )
        own, left = divmod(self.windows, world_size)
        if left:
            fit = ", ".join(str(ranks) for ranks in range(1, self.windows + 1) if self.windows % ranks == 0)
            raise InputError(
                f"the run began with a global batch of {self.windows}, which {world_size} ranks cannot share evenly: "
                f"start it on {fit} rank(s), or train anew with another --output_dir"
            )
        micro = max(size for size in range(1, width + 1) if own % size == 0)
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

        Args:
            resume: "auto", "never", or the folder of a checkpoint (or of several: the newest is taken).

        Raises:
            InputError: the folder is in use, by another process, another run or other files; or no such checkpoint.
        """
        saved = self.path / "recipe.yaml"
        first = self.path / PRETRAIN  # a start that was refused leaves nothing but a lock there
        no_stage = first.is_dir() and {f.name for f in first.iterdir()} <= {".lock"}
        own = {".lock", PRETRAIN, BATCH} if recipe.pretrain or no_stage else {".lock"}
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"--output_dir {self.path}: is a file: name a folder")
        if self.path.is_dir() and not saved.is_file() and {f.name for f in self.path.iterdir()} - own:
            raise InputError(f"--output_dir {self.path}: holds files of no run: name a new or empty folder")
        if saved.is_file():
            if resume == "never":
                raise InputError(
                    f"--output_dir {self.path}: holds a run already: name another folder, or --resume auto to go on"
                )
            before = settings_that_bind(Recipe.load(str(saved)))
            now = settings_that_bind(recipe)
            if differing := differences(before, now):
                raise InputError(f"--output_dir {self.path}: holds another run ({differing}): name another folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")  # held until the process ends
        except OSError as error:
            raise InputError(f"--output_dir {self.path}: cannot be written to ({error.strerror})") from None
        try:
            _lock(self._lock, self.path)
        except OSError as error:
            raise InputError(
                f"--output_dir {self.path}: its file system has no locks ({error.strerror}): name a folder on another"
            ) from None
        if resume in ("auto", "never"):
            return find_checkpoints(self.checkpoints)
        path = Path(resume)
        if not path.is_dir():
            raise InputError(f"--resume {resume}: no such folder: give auto, never, or a checkpoint's folder")
        tag = [*find_checkpoints(path), path][0]
        read_manifest(tag)
        return [tag]

    def began(self, tags: list[Path]) -> Batch | None:
        """As the run began: this one, or if it only begins now, the one whose checkpoints it goes on from."""
        if (self.path / BATCH).is_file():
            return Batch(**json.loads((self.path / BATCH).read_text(encoding="utf-8")))
        noted = read_manifest(tags[0]).get("batch") if tags else None
        return Batch(**noted) if noted else None

    def keep(self, batch: Batch) -> None:
        """Notes what `began` gives."""
        write_atomically(self.path / BATCH, json.dumps(asdict(batch)) + "\n")


def _lock(file: TextIO, folder: Path) -> None:
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
        if differing := differences(first, other):
            raise InputError(
                f"rank {number} (here, host {ranks.host(number)}) starts otherwise than rank 0 (there, host "
                f"{ranks.host(0)}): {differing}: give all nodes the same recipe, data and ds_config"
            )


def settings_that_bind(recipe: Recipe) -> dict[str, Any]:
    """The settings by dotted name that a run must keep from its first update to its last.

    Where the run selects its checkpoint, what its scores on the selection data depend on is among them.
    """
    selects = recipe.eval.select_on is not None
    free = FREE if selects else FREE + FREE_UNLESS_SELECTING
    settings = flatten(recipe.model_dump(mode="json"))
    flat = {
        name: value for name, value in settings.items() if not any(f"{name}.".startswith(f"{one}.") for one in free)
    }
    if selects:
        flat["data.eval, to select on"] = recipe.data.eval.get(recipe.eval.select_on)
    return flat
