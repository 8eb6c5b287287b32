"""Services that a run's numbers go to besides its folder: Weights & Biases, TensorBoard, Trackio.

`tracking.to` chooses one. After a run's first start nothing that a service does ends the run, and the run waits no
longer for wandb than `WANDB_START_SECONDS` and `WANDB_END_SECONDS`.
"""

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swep_ds.errors import InputError, reason
from swep_ds.files import write_atomically
from swep_ds.recipe import Recipe
from swep_ds.training.checkpoints import TrainState

log = logging.getLogger(__name__)
WANDB_START_SECONDS = 30  # for its server to answer, after 10 more for the log-in
WANDB_END_SECONDS = 60  # to send what is left; `wandb sync` sends the rest
Table = tuple[list[str], list[list[Any]]]  # columns, rows


class Service(ABC):
    """A started run of a service. A failure is reported once, and the training continues."""

    name: str  # also of the extra of this package that installs it

    def __init__(self, run):
        self.run, self.warned = run, False

    @classmethod
    @abstractmethod
    def start(cls, recipe: Recipe, folder: Path, run_id: str, before: TrainState) -> "Service":
        """Starts the run `run_id`, or resumes it after `before`; raises whatever the service raises."""

    @staticmethod
    def fixable(error: Exception, recipe: Recipe) -> bool:
        """Whether the user can fix what `start` raised. Else the run goes untracked."""
        return True

    @abstractmethod
    def _log(self, line: dict[str, Any], update: int) -> None: ...

    @abstractmethod
    def _summary(self, values: dict[str, Any]) -> None: ...

    @abstractmethod
    def _show(self, page: str | None, tables: Mapping[str, Table]) -> None: ...

    @abstractmethod
    def _finish(self, exit_code: int) -> None: ...

    def log(self, line: dict[str, Any], update: int) -> None:
        """Sends a line of metrics.jsonl."""
        self._try(lambda: self._log(line, update))

    def summary(self, values: dict[str, Any]) -> None:
        """Sends the scores after training."""
        self._try(lambda: self._summary(values))

    def show(self, page: str | None, tables: Mapping[str, Table]) -> None:
        """Sends the report, an HTML document, and tables by name."""
        self._try(lambda: self._show(page, tables))

    def finish(self, exit_code: int) -> None:
        """Ends the run: 0 = it is done."""
        self._try(lambda: self._finish(exit_code))

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            if not self.warned:
                log.warning("%s fails and may miss data from now on; the run continues (%s)", self.name, reason(error))
            self.warned = True


class Wandb(Service):
    name = "wandb"

    @classmethod
    def start(cls, recipe: Recipe, folder: Path, run_id: str, before: TrainState) -> "Wandb":
        import wandb

        return cls(
            wandb.init(
                mode="offline" if recipe.tracking.to == "wandb_offline" else "online",
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
        )

    @staticmethod
    def fixable(error: Exception, recipe: Recipe) -> bool:
        try:
            import wandb

            settings = isinstance(error, wandb.errors.UsageError | wandb.errors.AuthenticationError)
        except Exception:  # a broken installation raises anything
            return True
        return settings or recipe.tracking.to == "wandb_offline"  # else its server cannot be reached

    def _log(self, line: dict[str, Any], update: int) -> None:
        self.run.log(line, step=update)

    def _summary(self, values: dict[str, Any]) -> None:
        self.run.summary.update(values)

    def _show(self, page: str | None, tables: Mapping[str, Table]) -> None:
        import wandb

        # a mean over data sets has no number of questions, and a column has one type
        shown = {
            name: wandb.Table(columns=columns, data=[[None if cell == "" else cell for cell in row] for row in rows])
            for name, (columns, rows) in tables.items()
        }
        self.run.log(shown | ({"report": wandb.Html(page, inject=False)} if page else {}))

    def _finish(self, exit_code: int) -> None:
        self.run.finish(exit_code=exit_code)


class TensorBoard(Service):
    """Event files in the run's folder `tensorboard/`; it shows numbers and tables, and no HTML."""

    name = "tensorboard"

    @classmethod
    def start(cls, recipe: Recipe, folder: Path, run_id: str, before: TrainState) -> "TensorBoard":
        from torch.utils.tensorboard import SummaryWriter

        # what an earlier start logged of updates that are made again is dropped
        run = SummaryWriter(folder / "tensorboard", purge_step=before.updates + 1)
        service = cls(run)
        service.update = before.updates
        return service

    def _log(self, line: dict[str, Any], update: int) -> None:
        self.update = update
        for name, value in line.items():
            if isinstance(value, int | float):
                self.run.add_scalar(name, value, update)

    def _summary(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self.run.add_scalar(name, value, self.update)

    def _show(self, page: str | None, tables: Mapping[str, Table]) -> None:
        for name, (columns, rows) in tables.items():
            lines = [columns, ["---"] * len(columns), *rows]
            text = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
            self.run.add_text(name, text, self.update)

    def _finish(self, exit_code: int) -> None:
        self.run.close()


class Trackio(Service):
    """Trackio's database on this machine, or the Space that its own variable TRACKIO_SPACE_ID names."""

    name = "trackio"

    @classmethod
    def start(cls, recipe: Recipe, folder: Path, run_id: str, before: TrainState) -> "Trackio":
        import trackio

        return cls(
            trackio.init(
                project=recipe.tracking.project,
                name=f"{folder.name}-{run_id}",
                group=recipe.tracking.group,
                config=recipe.model_dump(mode="json"),
                resume="allow",
                embed=False,
            )
        )

    def _log(self, line: dict[str, Any], update: int) -> None:
        self.run.log(line, step=update)

    def _summary(self, values: dict[str, Any]) -> None:
        self.run.log(values)

    def _show(self, page: str | None, tables: Mapping[str, Table]) -> None:
        import pandas as pd
        import trackio

        shown = {name: trackio.Table(dataframe=pd.DataFrame(rows, columns=c)) for name, (c, rows) in tables.items()}
        if shown:
            self.run.log(shown)

    def _finish(self, exit_code: int) -> None:
        self.run.finish()


SERVICES: dict[str, type[Service]] = {
    "wandb": Wandb,
    "wandb_offline": Wandb,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
}


def check_service(recipe: Recipe) -> None:
    """Raises InputError if the package of the recipe's service is not installed; call it before the work."""
    if recipe.tracking.to != "off" and not find_spec(name := SERVICES[recipe.tracking.to].name):
        raise InputError(f"tracking.to: {name} is not installed: pip install {name}, or set it to off")


def start_service(recipe: Recipe, folder: Path, before: TrainState) -> Service | None:
    """The run's service; None if there is none, if its server cannot be reached, or if it fails on a resumed run.

    Raises:
        InputError: a first start fails for a reason that the user can fix. A resumed run may be unattended in a queue.
    """
    if recipe.tracking.to == "off":
        return None
    kind = SERVICES[recipe.tracking.to]
    known = folder / "wandb_id"  # a resumed run continues under its id
    run_id = known.read_text(encoding="utf-8").strip() if known.is_file() else ""
    first = not (run_id or before.updates)
    run_id = run_id or secrets.token_hex(4)
    try:
        service = kind.start(recipe, folder, run_id, before)
    except Exception as error:  # a broken installation and an absent server raise anything
        if first and kind.fixable(error, recipe):
            fix = " or log in to it, or set it to wandb_offline or off" if kind is Wandb else ", or set it to off"
            raise InputError(
                f"tracking.to: {kind.name} cannot start ({reason(error)}): pip install {kind.name}{fix}"
            ) from None
        log.warning("%s cannot start: this run goes untracked (%s)", kind.name, reason(error))
        return None
    write_atomically(known, run_id)
    return service
