"""What a run reports while it trains: a progress bar (lines where there is no terminal), metrics.jsonl, health.jsonl,
and Weights & Biases, if `tracking.to` says so. wandb may fail at any time: the training continues."""

import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import InputError, RunExit, reason
from swep_ds.common.files import read_lines, write_atomically
from swep_ds.evaluation.results import Scores
from swep_ds.ranks.accelerator import peak_memory_bytes
from swep_ds.training.checkpoint_files import TrainState
from swep_ds.training.settings import TrackingSection

log = logging.getLogger(__name__)
Table = tuple[list[str], list[list[Any]]]  # columns, rows
# metrics.jsonl's fields that the progress bar shows
SHOWN = ("loss", "nll_clean", "nll_noisy", "divergence", "hidden_distance", "kl_per_token", "kl_per_window", "beta")
SHOWN += ("mu", "sigma", "sigma_spread", "mu_spread", "validation_f1", "learning_rate")
SHOWN += ("samples_per_second", "tokens_per_second")


class Tracker:
    """Context manager around the training loop; `finish` follows at the end of the run. Active only on rank 0.

    The tests after the last of `updates` take as long as `tested` of them. wandb gets `config`. `metrics.jsonl` and
    `health.jsonl` in the run's `folder` are first cut back to `before`. Raises InputError: at a run's first start wandb
    cannot start.
    """

    def __init__(
        self,
        settings: TrackingSection,
        method: str,
        config: dict[str, Any],
        folder: Path,
        updates: int,
        before: TrainState,
        active: bool,
        tested: float = 0.0,
    ):
        self.active = active
        self.wandb = None
        if not active:
            return
        self.updates = updates
        if settings.to != "off":
            self.wandb = _start_wandb(settings, method, config, folder, before.updates)
        self.metrics = _open_lines(folder / "metrics.jsonl", before)
        self.health = _open_lines(folder / "health.jsonl", before)
        self.console = Console()
        self.progress = Progress(self.console, "updates", updates, before.updates, line_seconds=0, after=tested)
        self.remark: str | None = None  # the method's, as long as it holds

    def __enter__(self) -> "Tracker":
        if self.active:
            self.progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        if self.active:
            self.progress.__exit__()
            for file in (self.metrics, self.health):
                with suppress(OSError):  # `_write` has warned
                    file.close()
        if kind and issubclass(kind, RunExit):  # after others, ranks wait for this one
            self._tell(lambda run: run.finish(exit_code=1))

    def log(self, done: TrainState, means: dict[str, float], remark: str | None) -> None:
        """Writes a line: losses and KL are means over the updates since the last line, the rest is of this update.
        `remark` (`Method.remark`) is shown when it begins to hold."""
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
        _write(self.metrics, line)
        shown = [f"{name} {line[name]:.4g}" for name in SHOWN if name in line]
        shown.append(f"peak memory {line['peak_memory_bytes'] / 2**30:.2f} GiB")
        self.progress.update(done.updates, "  ".join(shown))
        if remark and not self.remark:
            self.console.print(f"note: {remark}", style="yellow")
        self.remark = remark
        if done.updates == self.updates:
            self.progress.__exit__()
        self._tell(lambda run: run.log(line, step=done.updates))

    def log_health(self, update: int, line: dict[str, list]) -> None:
        """Writes a line with every rank's numbers."""
        if self.active:
            _write(self.health, {"update": update, **line})

    def summary(self, scores: Scores) -> None:
        """Sends wandb the scores after training."""
        values = {f"{name}/{key}": value for name, score in scores.items() for key, value in score.items()}
        self._tell(lambda run: run.summary.update(values))

    def finish(self, page: str | None = None, tables: Mapping[str, Table] | None = None) -> None:
        """Ends the tracking of a finished run; sends wandb its report, an HTML document, and tables by name."""
        self._tell(lambda run: run.log(_shown(page, tables or {})))
        self._tell(lambda run: run.finish(exit_code=0))

    def _tell(self, send: Callable[[Any], None]) -> None:
        """Sends something to wandb, if it is on. After a failure nothing more is sent."""
        if not self.wandb:
            return
        try:
            send(self.wandb)
        except Exception as error:  # wandb raises anything
            log.warning("wandb failed (%s): the run continues without it", reason(error))
            self.wandb = None


def _open_lines(path: Path, before: TrainState) -> TextIO:
    """A file of JSON lines, cut back to the updates that are done."""
    kept = [json.dumps(line) + "\n" for line in read_lines(path) if line["update"] <= before.updates]
    write_atomically(path, "".join(kept))
    return path.open("a", encoding="utf-8")


def _write(file: TextIO, line: dict[str, Any]) -> None:
    """A full disk delays lines, and ends no run."""
    try:
        file.write(json.dumps(line) + "\n")
        file.flush()  # a buffer that could not be written is written with the next line
    except OSError as error:
        log.warning("%s: lines are missing until it can be written again (%s)", file.name, error.strerror)


def _shown(page: str | None, tables: Mapping[str, Table]) -> dict[str, Any]:
    """The report and the tables as wandb takes them."""
    import wandb

    shown = {}
    for name, (columns, rows) in tables.items():
        # a mean over data sets has no number of questions, and a column has one type
        cells = [[None if cell == "" else cell for cell in row] for row in rows]
        shown[name] = wandb.Table(columns=columns, data=cells)
    if page:
        shown["report"] = wandb.Html(page, inject=False)
    return shown


def check_wandb(settings: TrackingSection) -> None:
    """Raises InputError if wandb is asked for and not installed; call it before the work."""
    if settings.to != "off" and not find_spec("wandb"):
        raise InputError("tracking.to: wandb is not installed: pip install wandb, or set it to off")


def _start_wandb(settings: TrackingSection, method: str, config: dict[str, Any], folder: Path, updates: int) -> Any:
    """wandb's run. If it cannot start, a new run ends, and a resumed run continues without it: None."""
    id_file = folder / "wandb_id"  # a resumed run continues under its id
    is_new = not id_file.is_file()
    mode = os.environ.get("WANDB_MODE") or "online"  # the user's, also "disabled"
    if settings.to == "wandb_offline" and mode != "disabled":
        mode = "offline"
    try:
        import wandb

        run = wandb.init(
            mode=mode,
            project=settings.project,
            group=settings.group,
            job_type=method,
            tags=[method],
            dir=str(folder),
            config=config,
            id=secrets.token_hex(4) if is_new else id_file.read_text(encoding="utf-8"),
            resume="allow",
            reinit="create_new",
        )
    except Exception as error:  # a broken installation and an absent server raise anything
        if is_new and updates == 0:
            fix = "install it or log in to it, or set it to wandb_offline or off"
            raise InputError(f"tracking.to: {settings.to} cannot start ({reason(error)}): {fix}") from None
        log.warning("%s cannot start (%s): the run continues without it", settings.to, reason(error))
        return None
    write_atomically(id_file, run.id)
    return run
