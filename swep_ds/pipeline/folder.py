"""A run's folder: only one process writes to it, and no files of others are ever overwritten."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from swep_ds.common.console import say_on_stderr
from swep_ds.common.errors import InputError, at
from swep_ds.common.files import check_output_folder, is_locked, read_json, user_path, write_atomically
from swep_ds.common.settings import differences, flatten, without
from swep_ds.data.readers import check_source
from swep_ds.evaluation.results import RESULTS
from swep_ds.pipeline.recipe import NEUTRAL, SAVING, Recipe
from swep_ds.training.checkpoint_files import find_checkpoints, read_manifest

# settings that may change between two starts of a run; `GlobalBatch` binds the product of the last two with the ranks
MAY_CHANGE_ON_RESUME = (*NEUTRAL, SAVING, "data.eval", "train.coalesce_grad_reduction")
MAY_CHANGE_ON_RESUME += ("train.micro_batch_size", "train.gradient_accumulation_steps")
MAY_CHANGE_UNLESS_SELECTING = ("data.max_eval_examples", "eval.n_best", "eval.max_answer_tokens", "eval.beams")
MAY_CHANGE_UNLESS_SELECTING += ("eval.whole_words", "eval.scorer", "eval.language")
RECIPE = "recipe.yaml"
DS_CONFIG = "ds_config.json"
BATCH = "batch.json"
REPORT = "report.html"
READING = "reading.json"  # in an exported model: how its run cut windows and decoded answers
METRICS_FILE = "metrics.jsonl"
HEALTH_FILE = "health.jsonl"
PRETRAIN = "pretrain"  # in a run's folder, and a run's folder itself
UNAVERAGED = "unaveraged"  # likewise
CHECKPOINTS = "checkpoints"
LOCK_SECONDS = 120.0  # a killed process may still be ending, and a network file system keeps a lost node's lock a while


@dataclass(frozen=True)
class GlobalBatch:
    """The global batch of a run, on any number of ranks, and how the recipe of its latest start splits it."""

    windows: int  # over all ranks and micro-batches; with train.max_tokens the number of micro-batches
    micro_batch_size: int
    gradient_accumulation_steps: int

    @classmethod
    def of(cls, recipe: Recipe, windows: int) -> "GlobalBatch":
        return cls(windows, recipe.train.micro_batch_size, recipe.train.gradient_accumulation_steps)

    def split(self, recipe: Recipe, world_size: int) -> Recipe:
        """The recipe, with a new split if its own makes another global batch on this number of ranks: with the largest
        micro-batch that divides a rank's windows and is not larger than the recipe's.

        Raises InputError: the recipe itself now asks for another global batch, or the ranks cannot share it evenly.
        """
        train = recipe.train
        asked = batch_of_rank(recipe) * world_size
        if asked == self.windows:
            return recipe
        is_changed = GlobalBatch.of(recipe, self.windows) != self
        if is_changed or self.windows % batch_of_rank(recipe) or self.windows % world_size:
            raise InputError(
                f"train.micro_batch_size {train.micro_batch_size} x train.gradient_accumulation_steps "
                f"{train.gradient_accumulation_steps} x {world_size} rank(s) is a global batch of {asked}, and the run "
                f"began with {self.windows}: choose values with that product, or as many ranks as share it evenly"
            )
        share = self.windows // world_size
        if train.max_tokens:
            split = {"gradient_accumulation_steps": share}
        else:
            micro = min(train.micro_batch_size, share)
            while share % micro:
                micro -= 1
            split = {"micro_batch_size": micro, "gradient_accumulation_steps": share // micro}
        return recipe.model_copy(update={"train": train.model_copy(update=split)})


def batch_of_rank(recipe: Recipe) -> int:
    """A rank's share of the global batch that a recipe asks for, as `GlobalBatch.windows` counts."""
    train = recipe.train
    if train.max_tokens:
        return train.gradient_accumulation_steps
    return train.micro_batch_size * train.gradient_accumulation_steps


class RunFolder:
    """Paths in a run's folder, and who may write there.

    `batch.json` in it is a `GlobalBatch`, which a run that resumes on other ranks keeps. It is written before all else:
    a folder without it is no run's. `pretrain/` is the folder of a first stage. `unaveraged/` holds what the same
    training gives without `train.average`: recipe, batch, model, noise generator, predictions and results.
    """

    def __init__(self, path: Path):
        self.path = path
        self.recipe = path / RECIPE
        self.checkpoints = path / CHECKPOINTS
        self.model = path / "model"
        self.results = path / RESULTS
        self.report = path / REPORT
        self.forecasts = path / "forecast"  # what was forecast, and the answers to these texts
        self._made: list[Path] = []  # folders that `take` made, the innermost first
        # the system's lock, which vanishes with its process, and never the file's mere existence
        self._lock = FileLock(path / ".lock", fallback_to_soft=False)

    def read_recipe(self) -> Recipe:
        """Raises InputError: the folder holds no run, or its recipe is damaged."""
        if not self.recipe.is_file():
            raise InputError(f"{self.path}: holds no {RECIPE}, so no run: name a run's folder")
        return Recipe.load(str(self.recipe))

    def read_batch(self, tags: list[Path]) -> GlobalBatch | None:
        """The batch that the run began with; for a new run, that of the run whose checkpoints it resumes from."""
        file = self.path / BATCH
        if file.exists():
            return GlobalBatch(**read_json(file))
        return GlobalBatch(**read_manifest(tags[0]).batch) if tags else None

    def global_batch(self, recipe: Recipe, world_size: int) -> int:
        """The global batch of the run of this recipe; without a saved batch that on the `world_size`."""
        batch = self.read_batch([])
        return batch.windows if batch else batch_of_rank(recipe) * world_size

    def check_finished(self) -> None:
        """Raises InputError: the folder holds no finished run."""
        if not self.results.is_file():
            fix = "name the folder of a finished run"
            if (self.path.parent / RESULTS).is_file():  # it is the run's model
                fix = f"name the run, {self.path.parent}"
            raise InputError(f"{self.path}: holds no {RESULTS}: {fix}")

    # Who may write

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_) -> None:
        """Unlocks the folder. A start that was refused leaves nothing new in a folder that holds no run."""
        if self._lock.is_locked and not (self.path / BATCH).is_file():
            (self.path / ".lock").unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):  # it holds something: a run, or what others have put there
                folder.rmdir()
        self._lock.release()

    def take(self, recipe: Recipe, resume: str) -> list[Path]:
        """Locks the folder until `__exit__`. Returns the checkpoints to resume from, as `find_checkpoints`; none for a
        new run.

        `resume` is "auto", "never", or the folder of a checkpoint, or of several, of which the newest is used. One
        outside this folder counts only until this folder has checkpoints or results of its own, so that the same
        command can be repeated.

        Raises InputError: another process, run or files are in the folder, or there is no such checkpoint.
        """
        where = f"--output_dir {self.path}"
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        if is_locked(self.path / ".lock"):
            say_on_stderr(f"another process trains in {self.path}: waiting up to {LOCK_SECONDS:g} s for it to end")
        try:
            self._lock.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise InputError(f"{where}: another process is writing to it: name another folder") from None
        self.check_owner(recipe, resume)
        tags = find_checkpoints(self.checkpoints)
        if resume in ("auto", "never"):
            return tags
        path = user_path(resume)
        if not path.is_dir():
            raise InputError(f"--resume {resume}: no such folder: give auto, never, or a checkpoint's folder")
        is_inside = path.resolve().is_relative_to(self.path.resolve())
        if not is_inside and (tags or self.results.is_file()):
            say_on_stderr(f"{self.path}: has begun already, and continues from what it holds, not from {resume}")
            return tags
        tags = find_checkpoints(path) or [path.resolve()]
        read_manifest(tags[0])
        return tags

    def check_owner(self, recipe: Recipe, resume: str = "auto") -> None:
        """Raises InputError if the folder is not this run's, and not free either. `resume` as in `take`."""
        where = f"--output_dir {self.path}"
        check_output_folder("--output_dir", self.path)
        if not (self.path / BATCH).is_file():
            # a start that ended before it wrote the batch leaves hidden files and empty folders
            for file in self.path.rglob("[!.]*"):
                if file.is_file():
                    name = file.relative_to(self.path).parts[0]
                    raise InputError(f"{where}: holds files that belong to no run ({name}): name a new or empty folder")
        if not self.recipe.is_file():
            return
        if resume == "never":
            raise InputError(f"{where}: holds a run already: name another folder, or --resume auto to resume it")
        before = resume_fingerprint(self.read_recipe())
        now = resume_fingerprint(recipe)
        differing = differences(before, now, most=5)
        # a start that is refused in its first update leaves only settings, and its advice is to change one
        log = self.path / METRICS_FILE
        has_updates = log.is_file() and log.stat().st_size > 0
        has_begun = has_updates or self.results.is_file() or any(self.checkpoints.glob("update-*"))
        if differing and has_begun:
            raise InputError(f"{where}: holds another run: name another folder ({differing})")

    # What a start writes

    def begin(self, recipe: Recipe, config: dict[str, Any], windows: int, *, is_trained: bool) -> None:
        """Writes the settings of a start: recipe, resolved ds_config, and global batch as `GlobalBatch` counts. Earlier
        results go, unless the run is trained and its recipe unchanged: then they stay until new ones replace them."""
        dump = recipe.dump()
        is_same = self.recipe.is_file() and self.recipe.read_text(encoding="utf-8") == dump
        if not (is_trained and is_same):
            for file in (self.results, self.report, self.path / UNAVERAGED / RESULTS):
                file.unlink(missing_ok=True)
        self.path.mkdir(exist_ok=True)
        self.write_batch(GlobalBatch.of(recipe, windows))  # first: it makes the folder a run's
        write_atomically(self.recipe, dump)
        write_atomically(self.path / DS_CONFIG, json.dumps(config, indent=2) + "\n")

    def write_batch(self, batch: GlobalBatch) -> None:
        """Saves what `read_batch` returns."""
        write_atomically(self.path / BATCH, json.dumps(asdict(batch)) + "\n")


def resume_fingerprint(recipe: Recipe) -> dict[str, object]:
    """The settings, by dotted name, that must stay the same over all starts of a run; if it selects a checkpoint, also
    those that the scores on the selection data depend on."""
    free = MAY_CHANGE_ON_RESUME
    if recipe.eval.select_on is None:
        free += MAY_CHANGE_UNLESS_SELECTING
    return without(flatten(recipe.model_dump(mode="json")), free)


def check_files(recipe: Recipe, folder: Path, resume: str = "auto") -> None:
    """Raises InputError: the folder is not for this run, or a source of data does not exist. Arguments as in
    `RunFolder.take`. Takes no PyTorch: what starts a run calls it first, and so does a plan."""
    RunFolder(folder).check_owner(recipe, resume)
    for field, source in recipe.sources.items():
        with at(field):
            check_source(source, training=not field.startswith("data.eval."))
