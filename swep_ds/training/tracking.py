"""What a run reports while it trains: a progress bar (lines where there is no terminal), metrics.jsonl, health.jsonl,
wandb.

Only rank 0 writes; on other ranks a tracker does nothing. After a run's first start nothing that wandb does ends the
run, and the run waits for wandb no longer than `WANDB_START_SECONDS` and `WANDB_END_SECONDS`.
"""

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from swep_ds.console import Console, Progress
from swep_ds.errors import InputError, RunExit, reason
from swep_ds.evaluation.results import Scores
from swep_ds.files import read_lines, write_atomically
from swep_ds.recipe import Recipe
from swep_ds.training.checkpoints import TrainState
from swep_ds.training.metrics import peak_memory_bytes

log = logging.getLogger(__name__)
WANDB_START_SECONDS = 30  # for its server to answer, after 10 more for the log-in
WANDB_END_SECONDS = 60  # to send what is left; `wandb sync` sends the rest
# (name in metrics.jsonl, name on screen, format)
SHOWN = (
    ("loss", "loss", ".3f"),
    ("nll_clean", "clean", ".3f"),
    ("nll_noisy", "noisy", ".3f"),
    ("divergence", "divergence", ".3g"),
    ("hidden_distance", "distance", ".3g"),
    ("kl_per_token", "KL/token", ".3g"),
    ("kl_per_window", "KL/window", ".3g"),
    ("beta", "beta", ".2e"),
    ("mu", "mu", ".3f"),
    ("sigma", "sigma", ".3f"),
    ("validation_f1", "validation F1", ".2f"),
    ("learning_rate", "lr", ".2e"),
    ("samples_per_second", "samples/s", ".1f"),
)
Table = tuple[list[str], list[list[Any]]]  # columns, rows


class Tracker:
    """Context manager around the training loop; `finish` follows at the end of the run.

    Args:
        recipe: its tracking section, and wandb's config.
        folder: the run's folder; its `metrics.jsonl` and `health.jsonl` are first cut back to `before`.
        updates: number of updates of the whole run.
        before: the state that the run resumes from.
        active: true on rank 0.

    Raises:
        InputError: at a run's first start wandb cannot be imported, or refuses its settings.
    """

    def __init__(self, recipe: Recipe, folder: Path, updates: int, before: TrainState, active: bool):
        self.updates, self.active = updates, active
        if not active:
            return
        self.wandb = _start_wandb(recipe, folder, before)
        self.metrics, self.health = (Lines(folder / name, before) for name in ("metrics.jsonl", "health.jsonl"))
        self.console = Console()
        self.progress = Progress(self.console, "updates", updates, before.updates, line_seconds=0)
        self.remark: str | None = None  # the method's, as long as it holds

    def __enter__(self) -> "Tracker":
        if self.active:
            self.progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        if self.active:
            self.progress.stop()
            self.metrics.close()
            self.health.close()
            if self.wandb and kind and issubclass(kind, RunExit):  # after others the ranks wait to hear of it
                self.wandb.finish(exit_code=1)

    def log(self, done: TrainState, means: dict[str, float], remark: str | None) -> None:
        """Writes a line: losses and KL are means over the updates since the last line, the rest is of this update.

        Args:
            remark: from `Method.remark`. It is shown when it begins to hold, and again when it no longer does.
        """
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
        if bool(remark) != bool(self.remark):
            said = remark or f"no longer so at update {done.updates}: {self.remark}"
            self.console.print(f"note: {said}", style="yellow")
        self.remark = remark
        if done.updates == self.updates:
            self.progress.stop()
        if self.wandb:
            self.wandb.log(line, done.updates)

    def log_health(self, update: int, line: dict[str, Any], remarks: Iterable[str]) -> None:
        """Writes a line with every rank's numbers, and shows `remarks` on ranks that stand out."""
        if not self.active:
            return
        self.health.write({"update": update, **line})
        for remark in remarks:
            self.console.print(f"note: {remark}", style="yellow")

    def summary(self, scores: Scores) -> None:
        """Sends the scores after training to wandb."""
        if self.active and self.wandb:
            self.wandb.summary(
                {f"{name}/{key}": value for name, score in scores.items() for key, value in score.items()}
            )

    def finish(self, page: str | None = None, tables: Mapping[str, Table] | None = None) -> None:
        """Ends the tracking of a finished run; sends wandb its report, an HTML document, and tables by name."""
        if self.active and self.wandb:
            self.wandb.show(page, tables or {})
            self.wandb.finish(exit_code=0)


class Lines:
    """A file of JSON lines, first cut back to the updates that are done. A full disk delays lines, and ends no run."""

    def __init__(self, path: Path, before: TrainState):
        kept = [json.dumps(line) + "\n" for line in read_lines(path) if line["update"] <= before.updates]
        write_atomically(path, "".join(kept))
        self.file, self.warned = path.open("a", encoding="utf-8"), False

    def write(self, line: dict[str, Any]) -> None:
        self._try(lambda: self.file.write(json.dumps(line) + "\n"))
        self._try(self.file.flush)  # a buffer that could not be written is written with the next line

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
    """A wandb run. A failure is reported once, and the training continues."""

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
                log.warning("wandb fails and may miss data from now on; the run continues (%s)", reason(error))
            self.warned = True


def _start_wandb(recipe: Recipe, folder: Path, before: TrainState) -> WandbRun | None:
    """A wandb run; None if it is off, if its server cannot be reached, or if it fails on a resumed run.

    Raises:
        InputError: a first start fails for a reason that the user can fix. A resumed run may be unattended in a queue.
    """
    if recipe.tracking.wandb == "off":
        return None
    known = folder / "wandb_id"  # a resumed run continues under its id
    run_id = known.read_text(encoding="utf-8").strip() if known.is_file() else ""
    first = not (run_id or before.updates)
    run_id, fixable = run_id or secrets.token_hex(4), True
    try:
        import wandb

        try:
            run = wandb.init(
                mode=recipe.tracking.wandb,
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
                    init_timeout=WANDB_START_SECONDS,
                    login_timeout=WANDB_START_SECONDS,
                    finish_timeout=WANDB_END_SECONDS,
                ),
            )
        except Exception as error:
            settings = isinstance(error, wandb.errors.UsageError | wandb.errors.AuthenticationError)
            fixable = settings or recipe.tracking.wandb == "offline"  # else its server cannot be reached
            raise
    except Exception as error:  # a broken installation and an absent server raise anything
        if first and fixable:
            raise InputError(
                f"tracking.wandb: wandb cannot start ({reason(error)}): pip install 'swep-ds[wandb]' or log in to "
                "it, or set it to offline or off"
            ) from None
        log.warning("wandb cannot start: this run goes untracked (%s)", reason(error))
        return None
    write_atomically(known, run_id)
    return WandbRun(run)
