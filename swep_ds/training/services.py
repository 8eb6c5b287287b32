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
from swep_ds.pipeline.recipe import Recipe
from swep_ds.training.checkpoints import TrainState

log = logging.getLogger(__name__)
WANDB_START_SECONDS = 30  # for its server to answer, after 10 more for the log-in
WANDB_END_SECONDS = 60  # to send what is left; `wandb sync` sends the rest
Table = tuple[list[str], list[list[Any]]]  # columns, rows


class Wandb:
    """The run `run_id` of Weights & Biases, new or resumed."""

    def __init__(self, recipe: Recipe, folder: Path, run_id: str, before: TrainState):
        import wandb

        self.wandb = wandb
        self.run = wandb.init(
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

    def __init__(self, recipe: Recipe, folder: Path, run_id: str, before: TrainState):
        from torch.utils.tensorboard import SummaryWriter

        # what an earlier start logged of updates that are made again is dropped
        self.run = SummaryWriter(folder / "tensorboard", purge_step=before.updates + 1)
        self.update = before.updates

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


SERVICES = {"wandb": Wandb, "wandb_offline": Wandb, "tensorboard": TensorBoard}


def _package(recipe: Recipe) -> str:
    return recipe.tracking.to.removesuffix("_offline")


def check_service(recipe: Recipe) -> None:
    """Raises InputError if the package of the recipe's service is not installed; call it before the work."""
    if recipe.tracking.to != "off" and not find_spec(package := _package(recipe)):
        raise InputError(f"tracking.to: {package} is not installed: pip install {package}, or set it to off")


def start_service(recipe: Recipe, folder: Path, before: TrainState) -> Wandb | TensorBoard | None:
    """The run's service; None if there is none, if its server cannot be reached, or if it fails on a resumed run.

    Raises:
        InputError: a first start fails for a reason that the user can fix. A resumed run may be unattended in a queue.
    """
    if recipe.tracking.to == "off":
        return None
    known = folder / "wandb_id"  # a resumed run continues under its id
    run_id = known.read_text(encoding="utf-8").strip() if known.is_file() else ""
    first = not (run_id or before.updates)
    run_id = run_id or secrets.token_hex(4)
    package = _package(recipe)
    try:
        service = SERVICES[recipe.tracking.to](recipe, folder, run_id, before)
    except Exception as error:  # a broken installation and an absent server raise anything
        if first and _is_fixable(error, recipe):
            fix = " or log in to it, or set it to wandb_offline or off" if package == "wandb" else ", or set it to off"
            raise InputError(
                f"tracking.to: {package} cannot start ({reason(error)}): pip install {package}{fix}"
            ) from None
        log.warning("%s cannot start: this run goes untracked (%s)", package, reason(error))
        return None
    write_atomically(known, run_id)
    return service


def _is_fixable(error: Exception, recipe: Recipe) -> bool:
    """Whether the user can fix what the start of a service raised. Else wandb's server cannot be reached."""
    if recipe.tracking.to != "wandb":
        return True
    try:
        import wandb
    except Exception:  # a broken installation raises anything
        return True
    return isinstance(error, wandb.errors.UsageError | wandb.errors.AuthenticationError)
