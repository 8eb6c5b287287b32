"""Services that a run's numbers go to besides its folder: Weights & Biases or TensorBoard, as `tracking.to` says.

A service raises what it raises; `tracking.Tracker` reports that and trains on.
"""

import logging
import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swep_ds.common.errors import InputError, reason
from swep_ds.common.files import write_atomically
from swep_ds.training.settings import TrackingSection

log = logging.getLogger(__name__)
START_SECONDS = 30  # for wandb's server to answer, after 10 more for the log-in
END_SECONDS = 60  # to send what is left; `wandb sync` sends the rest
Table = tuple[list[str], list[list[Any]]]  # columns, rows


class Wandb:
    """The run `run_id` of Weights & Biases, new or resumed."""

    def __init__(self, settings: TrackingSection, method: str, config: dict[str, Any], folder: Path, run_id: str):
        import wandb

        limits = {"init_timeout": START_SECONDS, "login_timeout": START_SECONDS, "finish_timeout": END_SECONDS}
        self.wandb = wandb
        self.run = wandb.init(
            mode="offline" if settings.to == "wandb_offline" else "online",
            project=settings.project,
            group=settings.group,
            job_type=method,
            tags=[method],
            dir=str(folder),
            config=config,
            id=run_id,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(**limits),
        )

    def log(self, line: dict[str, Any], update: int) -> None:
        """Sends a line of metrics.jsonl."""
        self.run.log(line, step=update)

    def summary(self, values: dict[str, Any]) -> None:
        """Sends the scores after training."""
        self.run.summary.update(values)

    def show(self, page: str | None, tables: Mapping[str, Table]) -> None:
        """Sends the report, an HTML document, and tables by name."""
        shown = {}
        for name, (columns, rows) in tables.items():
            # a mean over data sets has no number of questions, and a column has one type
            cells = [[None if cell == "" else cell for cell in row] for row in rows]
            shown[name] = self.wandb.Table(columns=columns, data=cells)
        if page:
            shown["report"] = self.wandb.Html(page, inject=False)
        self.run.log(shown)

    def finish(self, exit_code: int) -> None:
        """Ends the run: 0 = it is done."""
        self.run.finish(exit_code=exit_code)


class TensorBoard:
    """Event files in the run's folder `tensorboard/`. They hold numbers; the report is in the run's folder anyway."""

    def __init__(self, folder: Path, updates: int):
        from torch.utils.tensorboard import SummaryWriter

        # what an earlier start logged of updates that are made again is dropped
        self.run = SummaryWriter(folder / "tensorboard", purge_step=updates + 1)
        self.update = updates

    def log(self, line: dict[str, Any], update: int) -> None:
        self.update = update
        for name, value in line.items():
            if isinstance(value, int | float):
                self.run.add_scalar(name, value, update)

    def summary(self, values: dict[str, Any]) -> None:
        self.log(values, self.update)

    def show(self, page: str | None, tables: Mapping[str, Table]) -> None:
        pass

    def finish(self, exit_code: int) -> None:
        self.run.close()


def check_service(settings: TrackingSection) -> None:
    """Raises InputError if the service's package is not installed; call it before the work."""
    package = settings.to.removesuffix("_offline")
    if package != "off" and not find_spec(package):
        raise InputError(f"tracking.to: {package} is not installed: pip install {package}, or set it to off")


def start_service(
    settings: TrackingSection, method: str, config: dict[str, Any], folder: Path, updates: int
) -> Wandb | TensorBoard | None:
    """The run's service; None if there is none, or if it cannot start for a run that resumes. A queue may have resumed
    it, with nobody there to repair the service.

    Args:
        updates: how many are done.

    Raises:
        InputError: it cannot start for a new run.
    """
    if settings.to == "off":
        return None
    known = folder / "wandb_id"  # a resumed run continues under its id
    run_id = known.read_text(encoding="utf-8") if known.is_file() else ""
    try:
        if settings.to == "tensorboard":
            return TensorBoard(folder, updates)
        service = Wandb(settings, method, config, folder, run_id or secrets.token_hex(4))
    except Exception as error:  # a broken installation and an absent server raise anything
        if not (run_id or updates):
            fix = "log in to it or repair its installation, or set it to wandb_offline or off"
            raise InputError(f"tracking.to: {settings.to} cannot start ({reason(error)}): {fix}") from None
        log.warning("%s cannot start: this run goes untracked (%s)", settings.to, reason(error))
        return None
    write_atomically(known, service.run.id)
    return service
