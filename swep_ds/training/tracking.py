"""What a run tells while it trains: a progress bar (plain lines where there is no terminal), metrics.jsonl,
health.jsonl, wandb.

Rank 0 alone writes; on the others a tracker does nothing. Nothing that wandb does later than a run's first start ends
it, and it is waited for no longer than `WANDB_START_SECONDS` and `WANDB_END_SECONDS`.
"""

import json
import logging
import resource
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator

from swep_ds.console import Console, Progress
from swep_ds.errors import InputError, RunExit
from swep_ds.evaluation.results import Scores
from swep_ds.files import read_lines, write_atomically
from swep_ds.ranks import accelerator
from swep_ds.recipe import Recipe
from swep_ds.training.checkpoints import TrainState

log = logging.getLogger(__name__)
WANDB_START_SECONDS = 30  # for its server to answer, after 10 more for the log-in
WANDB_END_SECONDS = 60  # for what is still to be sent; `wandb sync` sends the rest
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


Table = tuple[list[str], list[list[Any]]]  # columns, rows


class Tracker:
    """Context manager around the training loop; `finish` comes when all is done.

    Args:
        recipe: for the tracking section, and as wandb's config.
        folder: the run's folder; `metrics.jsonl` and `health.jsonl` in it are cut back to where the run stands first.
        updates: of the whole run.
        before: how far the run is already.
        active: true on rank 0.

    Raises:
        InputError: at a run's first start, wandb is asked for but cannot be imported, or its settings let it not start.
    """

    def __init__(self, recipe: Recipe, folder: Path, updates: int, before: TrainState, active: bool):
        self.updates, self.active, self.before = updates, active, before
        if not active:
            return
        self.wandb = _start_wandb(recipe, folder, before)
        self.metrics, self.health = (Lines(folder / name, before) for name in ("metrics.jsonl", "health.jsonl"))
        self.console = Console()
        self.progress = Progress(self.console, "updates", updates, before.updates, line_seconds=0)
        self.remarked = False

    def __enter__(self) -> "Tracker":
        if self.active:
            self.progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        if self.active:
            self.progress.stop()
            self.metrics.close()
            self.health.close()
            if self.wandb and kind and issubclass(kind, RunExit):  # of others the ranks wait for word
                self.wandb.finish(exit_code=1)

    def log(self, done: TrainState, means: dict[str, float], remark: str | None) -> None:
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
        self.progress.update(done.updates, shown)
        if remark and not self.remarked:
            self.console.print(f"note: {remark}", style="yellow")
            self.remarked = True
        if done.updates == self.updates:
            self.progress.stop()
        if self.wandb:
            self.wandb.log(line, done.updates)

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
            self.wandb.summary({f"{name}/{key}": value for name, one in scores.items() for key, value in one.items()})

    def finish(self, page: str | None = None, tables: Mapping[str, Table] | None = None) -> None:
        """Ends a run that is done. `page` is its report, an HTML document, for wandb, as are the tables by name."""
        if self.active and self.wandb:
            self.wandb.show(page, tables or {})
            self.wandb.finish(exit_code=0)


def peak_memory_bytes() -> int:
    """Largest memory so far: allocated on the GPU where there is one, else resident in the process."""
    if accelerator.on_gpu():
        return get_accelerator().max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Lines:
    """A file of JSON lines, cut back to the updates that are done; a full disk ends no run because of them."""

    def __init__(self, path: Path, before: TrainState):
        kept = [json.dumps(line) + "\n" for line in read_lines(path) if line["update"] <= before.updates]
        write_atomically(path, "".join(kept))
        self.file, self.warned = path.open("a", encoding="utf-8"), False

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


class WandbRun:
    """A run of wandb. What fails in it is told once, and missing there: the training goes on."""

    def __init__(self, run):
        self.run, self.warned = run, False

    def log(self, line: dict[str, Any], update: int) -> None:
        self._try(lambda: self.run.log(line, step=update))

    def summary(self, values: dict[str, Any]) -> None:
        self._try(lambda: self.run.summary.update(values))

    def show(self, page: str | None, tables: Mapping[str, Table]) -> None:
        def show() -> None:
            import wandb

            shown = {name: wandb.Table(columns=columns, data=rows) for name, (columns, rows) in tables.items()}
            self.run.log(shown | ({"report": wandb.Html(page, inject=False)} if page else {}))

        self._try(show)

    def finish(self, exit_code: int) -> None:
        self._try(lambda: self.run.finish(exit_code=exit_code))

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            if not self.warned:
                log.warning("wandb fails, and may lack things from now on; the run goes on (%s)", _in_short(error))
            self.warned = True


def _start_wandb(recipe: Recipe, folder: Path, before: TrainState) -> WandbRun | None:
    if recipe.tracking.wandb == "off":
        return None
    known = folder / "wandb_id"  # so that a resumed run goes on in the same place
    run_id = known.read_text(encoding="utf-8").strip() if known.is_file() else ""
    first = not (run_id or before.updates)  # later nobody may be there to mend anything, and the run would be lost
    try:
        import wandb
    except Exception as error:  # a package that wandb needs may be broken in any way
        if first:
            raise _cannot_import(error) from None
        log.warning("wandb cannot be imported: this run goes untracked (%s)", _in_short(error))
        return None
    run_id = run_id or secrets.token_hex(4)
    start = partial(
        wandb.init,
        project=recipe.tracking.project,
        group=recipe.tracking.group,
        job_type=recipe.method.name,
        tags=[recipe.method.name],
        dir=str(folder),
        config=recipe.model_dump(mode="json"),
        id=run_id,
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(
            init_timeout=WANDB_START_SECONDS, login_timeout=WANDB_START_SECONDS, finish_timeout=WANDB_END_SECONDS
        ),
    )
    try:
        run = start(mode=recipe.tracking.wandb)
    except Exception as error:  # of a server that is not there they are of many kinds
        settings = isinstance(error, wandb.errors.UsageError | wandb.errors.AuthenticationError)
        if first and (settings or recipe.tracking.wandb == "offline"):
            raise InputError(
                f"tracking.wandb: wandb cannot start ({_in_short(error)}): set it to offline or off"
            ) from None
        run = _start_offline(wandb, start, error)
    if run is None:
        return None
    write_atomically(known, run_id)
    return WandbRun(run)


def _start_offline(wandb, start: Callable[..., Any], why: Exception):
    """In place of a run that cannot be tracked as it was to be; None where that fails, too."""
    try:
        wandb.teardown()  # its service holds the run's id
        run = start(mode="offline")
    except Exception as error:
        log.warning("wandb cannot start: this run goes untracked (%s; offline: %s)", _in_short(why), _in_short(error))
        return None
    log.warning(
        "tracking.wandb: wandb cannot start: this run is tracked offline; later send it with `wandb sync %s` (%s)",
        run.settings.sync_dir,
        _in_short(why),
    )
    return run


def _cannot_import(error: Exception) -> InputError:
    mend = "pip install 'swep-ds[wandb]', or set it to off"
    if isinstance(error, ModuleNotFoundError):
        return InputError(f"tracking.wandb: wandb is not installed: {mend}")
    return InputError(f"tracking.wandb: wandb cannot be imported ({_in_short(error)}): {mend}")


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
