"""What a run reports while it trains: a progress bar (lines where there is no terminal), metrics.jsonl, health.jsonl,
and a service such as wandb (`services.py`).

Only rank 0 writes; on other ranks a tracker does nothing.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import RunExit, reason
from swep_ds.common.files import read_lines, write_atomically
from swep_ds.evaluation.results import Scores
from swep_ds.training.checkpoints import TrainState
from swep_ds.training.metrics import peak_memory_bytes
from swep_ds.training.services import Table, start_service
from swep_ds.training.settings import TrackingSection

log = logging.getLogger(__name__)
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


class Tracker:
    """Context manager around the training loop; `finish` follows at the end of the run.

    Args:
        method: the method's name.
        config: settings of the run, for the service.
        folder: the run's folder; its `metrics.jsonl` and `health.jsonl` are first cut back to `before`.
        updates: number of updates of the whole run.
        before: the state that the run resumes from.
        active: true on rank 0.

    Raises:
        InputError: at a run's first start the service cannot be imported, or refuses its settings.
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
    ):
        self.active = active
        if not active:
            return
        self.updates, self.method = updates, method
        self.service = start_service(settings, method, config, folder, before.updates)
        self.service_warned = False
        self.metrics = Lines(folder / "metrics.jsonl", before)
        self.health = Lines(folder / "health.jsonl", before)
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
            if kind and issubclass(kind, RunExit):  # after others, ranks wait for this one
                self._tell(lambda service: service.finish(exit_code=1))

    def log(self, done: TrainState, means: dict[str, float], remark: str | None) -> None:
        """Writes a line: losses and KL are means over the updates since the last line, the rest is of this update.

        Args:
            remark: from `Method.remark`. It is shown when it begins to hold, and withdrawn when it no longer does.
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
            text = remark or f"since update {done.updates} the last note about {self.method} no longer holds"
            self.console.print(f"note: {text}", style="yellow")
        self.remark = remark
        if done.updates == self.updates:
            self.progress.stop()
        self._tell(lambda service: service.log(line, done.updates))

    def log_health(self, update: int, line: dict[str, Any], remarks: Iterable[str]) -> None:
        """Writes a line with every rank's numbers, and shows `remarks` on ranks that stand out."""
        if not self.active:
            return
        self.health.write({"update": update, **line})
        for remark in remarks:
            self.console.print(f"note: {remark}", style="yellow")

    def summary(self, scores: Scores) -> None:
        """Sends the scores after training to the service."""
        if self.active:
            values = {f"{name}/{key}": value for name, score in scores.items() for key, value in score.items()}
            self._tell(lambda service: service.summary(values))

    def finish(self, page: str | None = None, tables: Mapping[str, Table] | None = None) -> None:
        """Ends the tracking of a finished run; sends the service its report, an HTML document, and tables by name."""
        if self.active:
            self._tell(lambda service: service.show(page, tables or {}))
            self._tell(lambda service: service.finish(exit_code=0))

    def _tell(self, send: Callable[[Any], None]) -> None:
        """Sends something to the service, if there is one. A failure is reported once, and the training continues."""
        if not self.service:
            return
        try:
            send(self.service)
        except Exception as error:  # wandb raises anything
            if not self.service_warned:
                name = type(self.service).__name__
                log.warning("%s fails and may miss data from now on; the run continues (%s)", name, reason(error))
            self.service_warned = True


class Lines:
    """A file of JSON lines, first cut back to the updates that are done. A full disk delays lines, and ends no run."""

    def __init__(self, path: Path, before: TrainState):
        kept = [json.dumps(line) + "\n" for line in read_lines(path) if line["update"] <= before.updates]
        write_atomically(path, "".join(kept))
        self.file = path.open("a", encoding="utf-8")
        self.warned = False

    def write(self, line: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()  # a buffer that could not be written is written with the next line
        except OSError as error:
            if not self.warned:
                log.warning("%s: lines are missing until it can be written again (%s)", self.file.name, error.strerror)
            self.warned = True

    def close(self) -> None:
        with suppress(OSError):  # `write` has warned
            self.file.close()
