"""What a run tells while it trains: a progress bar (plain lines where there is no terminal), metrics.jsonl,
health.jsonl, wandb.

Rank 0 alone writes; on the others a tracker does nothing.
"""

import json
import logging
import resource
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from swep_ds.errors import Ended, InputError
from swep_ds.evaluation.results import Scores
from swep_ds.files import write_atomically
from swep_ds.recipe import Recipe
from swep_ds.training.checkpoints import Done

log = logging.getLogger(__name__)
# (name in metrics.jsonl, name on screen, format)
SHOWN = (
    ("loss", "loss", ".3f"),
    ("nll_clean", "clean", ".3f"),
    ("nll_noisy", "noisy", ".3f"),
    ("kl_per_token", "KL/token", ".3g"),
    ("mu", "mu", ".3f"),
    ("sigma", "sigma", ".3f"),
    ("validation_f1", "validation F1", ".2f"),
    ("learning_rate", "lr", ".2e"),
    ("samples_per_second", "samples/s", ".1f"),
)


class Tracker:
    """Context manager around the training loop.

    Args:
        recipe: for the tracking section, and as wandb's config.
        folder: the run's folder; `metrics.jsonl` and `health.jsonl` in it are cut back to where the run stands first.
        updates: of the whole run.
        before: how far the run is already.
        active: true on rank 0.

    Raises:
        InputError: wandb is asked for but not installed, or cannot start.
    """

    def __init__(self, recipe: Recipe, folder: Path, updates: int, before: Done, active: bool):
        self.updates, self.active, self.before = updates, active, before
        if not active:
            return
        self.wandb = _start_wandb(recipe, folder)
        self.metrics, self.health = (Lines(folder / name, before) for name in ("metrics.jsonl", "health.jsonl"))
        self.console = Console(highlight=False, markup=False, soft_wrap=True)
        self.progress = None
        if self.console.is_terminal:
            self.progress = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("eta"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[shown]}"),
                console=self.console,
            )
            self.task = self.progress.add_task("training", total=updates, completed=before.updates, shown="")
        self.remarked = False

    def __enter__(self) -> "Tracker":
        if self.active and self.progress:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        if self.active:
            if self.progress:
                self.progress.stop()
            self.metrics.close()
            self.health.close()
            if self.wandb and (kind is None or issubclass(kind, Ended)):  # else others wait for word of it
                self.wandb.finish(exit_code=int(kind is not None))

    def log(self, done: Done, means: dict[str, float], remark: str | None) -> None:
        """One line: losses and KL as means over the updates since the last line, the rest as of this update."""
        if not self.active:
            return
        line = {
            "update": done.updates,
            **means,
            "samples_per_second": done.windows / done.seconds,
            "tokens_per_second": done.tokens / done.seconds,
            "seconds": done.seconds,
            "peak_memory_bytes": peak_memory_bytes(),
        }
        self.metrics.write(line)
        shown = "  ".join(f"{title} {line[name]:{form}}" for name, title, form in SHOWN if name in line)
        if self.progress:
            self.progress.update(self.task, completed=done.updates, shown=shown)
        else:
            eta = done.seconds / done.updates * (self.updates - done.updates)
            self.console.print(f"{done.updates:>6}/{self.updates}  {shown}  eta {eta:.0f} s")
        if remark and not self.remarked:
            self.console.print(f"note: {remark}", style="yellow")
            self.remarked = True
        if self.progress and done.updates == self.updates:
            self.progress.stop()
        if self.wandb:
            self.wandb.log(line, step=done.updates)

    def log_health(self, update: int, line: dict[str, Any], remarks: Iterable[str]) -> None:
        """One line of every rank's numbers; `remarks` are on those that stand out."""
        if not self.active:
            return
        self.health.write({"update": update, **line})
        for remark in remarks:
            self.console.print(f"note: {remark}", style="yellow")

    def summary(self, scores: Scores) -> None:
        """The scores after training, for wandb."""
        if self.active and self.wandb:
            for name, one in scores.items():
                self.wandb.summary.update({f"{name}/{key}": value for key, value in one.items()})


def peak_memory_bytes() -> int:
    """Largest memory so far: allocated on the GPU where there is one, else resident in the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Lines:
    """A file of JSON lines, cut back to the updates that are done; a full disk ends no run because of them."""

    def __init__(self, path: Path, before: Done):
        kept = [json.dumps(line) + "\n" for line in _lines(path) if line["update"] <= before.updates]
        write_atomically(path, "".join(kept))
        self.file, self.warned = path.open("a"), False

    def write(self, line: dict[str, Any]) -> None:
        self._try(lambda: self.file.write(json.dumps(line) + "\n"))
        self._try(self.file.flush)  # what could not be written is tried again with the next line

    def close(self) -> None:
        self._try(self.file.close)

    def _try(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except OSError as error:
            if not self.warned:
                log.warning("%s: lines are missing until it can be written again (%s)", self.file.name, error.strerror)
            self.warned = True


def _lines(path: Path) -> list[dict[str, Any]]:
    """A run that was killed while writing may have left half a last line."""
    lines = []
    for text in path.read_text().splitlines() if path.is_file() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def _start_wandb(recipe: Recipe, folder: Path):
    if recipe.tracking.wandb == "off":
        return None
    try:
        import wandb
    except ImportError:
        raise InputError(
            "tracking.wandb: wandb is not installed: pip install 'swep-ds[wandb]', or set it to off"
        ) from None
    known = folder / "wandb_id"  # so that a resumed run goes on in the same place
    run_id = known.read_text() if known.is_file() else secrets.token_hex(4)
    try:
        run = wandb.init(
            project=recipe.tracking.project,
            mode=recipe.tracking.wandb,
            dir=str(folder),
            config=recipe.model_dump(mode="json"),
            id=run_id,
            resume="allow",
        )
    except wandb.Error as error:
        raise InputError(
            f"tracking.wandb: wandb cannot start ({' '.join(str(error).split())[:200]}): set it to offline or off"
        ) from None
    known.write_text(run_id)
    return run
