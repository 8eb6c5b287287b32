"""A sweep: variants x seeds under one recipe, read from YAML. Each cell is one ordinary run in a folder of its own.

    recipe: quickstart
    ds_config: ds_configs/zero2.json
    set: {train.epochs: 0.3}                # on top of the recipe, for all cells
    variants:                               # a row of the table: settings on top of those
      MLE: {method.name: mle}
      SWEP: {method.name: swep, method.beta: 1.0e-4}
    seeds: [0, 1, 2]

All recipes are validated before the first run starts. What is done is read off the folders alone, so that a sweep
that was stopped goes on, and a table can be made of what is there at any time.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from swep_ds.errors import InputError
from swep_ds.files import is_locked
from swep_ds.recipe import Recipe, Section, differences, flatten, read_settings, validate

SWEEPS = Path(__file__).parent / "sweeps"
EXIT_LINE = "# exit code "  # ends an attempt in a cell's log
START_LINE = "$ "  # begins one, before its command
# of a resolved ds_config: what the recipe decides, and what says nothing of the training
DECIDED_ELSEWHERE = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "optimizer"}
DECIDED_ELSEWHERE |= {"bf16", "fp16", "torch_autocast", "steps_per_print", "wall_clock_breakdown"}
SIZES = ("_bucket_size", "_param_persistence_threshold")  # of ZeRO: by default of the model's hidden size


class Sweep(Section):
    """The fields of a sweep file. `read_sweep` is the way in."""

    recipe: str = "quickstart"  # name of a shipped recipe, or a YAML file
    ds_config: str | None = None  # path; the command line may name another
    set: dict[str, Any] = Field({})  # dotted name -> value, for all cells
    variants: dict[str, dict[str, Any]] = Field({})  # name -> (dotted name -> value)
    seeds: list[int] = Field([0], min_length=1)

    @field_validator("set")
    @classmethod
    def _for_all(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _checked(value)

    @field_validator("variants")
    @classmethod
    def _for_one(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        folders = [_slug(name) for name in value]
        for name, folder in zip(value, folders, strict=True):
            if not folder or folders.count(folder) > 1:
                raise ValueError(f"{name!r} becomes the folder name {folder!r}, which must be unique and not empty")
            _checked(value[name])
        return value

    @model_validator(mode="after")
    def _something_to_do(self) -> "Sweep":
        if not self.variants:
            raise ValueError("variants names nothing to train: give each a name and its settings")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds holds one of them twice: its runs would share a folder")
        return self


@dataclass(frozen=True)
class Cell:
    """One run of a sweep; `overrides` are `--set` options on top of the sweep's recipe that make `recipe`."""

    variant: str
    seed: int
    recipe: Recipe
    overrides: tuple[str, ...]
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def options(self) -> list[str]:
        """Of scripts/train.py, beside the sweep's recipe and the ds_config."""
        return ["--output_dir", str(self.folder), *(part for one in self.overrides for part in ("--set", one))]

    def results(self) -> dict[str, Any] | None:
        """The run's `results.json`; None where it is not there or not whole, or of other settings than this cell's."""
        try:
            saved = Recipe.load(str(self.folder / "recipe.yaml"))
            results = json.loads((self.folder / "results.json").read_text())
        except (InputError, OSError, ValueError):
            return None
        return results if saved == self.recipe else None

    def conditions(self, results: dict[str, Any]) -> dict[str, Any]:
        """What a run's scores depend on beside its recipe: number of ranks and what the ds_config decides, flat.

        Raises:
            InputError: the run's `ds_config.json` is gone or not JSON.
        """
        file = self.folder / "ds_config.json"
        try:
            config = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read ({error}): delete the run's folder") from None
        decided = flatten({name: value for name, value in config.items() if name not in DECIDED_ELSEWHERE})
        own = {f"ds_config {name}": value for name, value in decided.items() if not name.endswith(SIZES)}
        return {"world_size": results["world_size"], **own}

    def still_running(self) -> bool:
        """Whether a process has the run in its hands, as one of an earlier start that was killed without its runs."""
        return is_locked(self.folder / ".lock")

    def fault(self) -> str:
        """Why there are no results, in a line: what the log of the last attempt ends with, or whose folder it is."""
        if self.still_running():
            return "still running, started earlier"
        attempt, code = self._last_attempt(), self.exit_code()
        if code:
            return self._ending(attempt)
        saved = self.folder / "recipe.yaml"
        try:
            there = Recipe.load(str(saved)) if saved.is_file() else self.recipe
        except InputError as error:
            return str(error)
        if differing := differences(*(flatten(one.model_dump(mode="json")) for one in (there, self.recipe))):
            return f"holds a run of other settings ({differing})"
        if not attempt:
            return "not run"
        return "not finished" if code is None else self._ending(attempt)

    def exit_code(self) -> int | None:
        """That the last attempt ended with; None where there is none, or it still runs or was killed with its queue."""
        attempt = self._last_attempt()
        return int(attempt[-1].removeprefix(EXIT_LINE)) if attempt and attempt[-1].startswith(EXIT_LINE) else None

    def _last_attempt(self) -> list[str]:
        """Its lines in the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []
        starts = [number for number, line in enumerate(lines) if line.startswith(START_LINE)]
        return [line.strip() for line in lines[starts[-1] :] if line.strip()] if starts else []

    @staticmethod
    def _ending(attempt: Sequence[str]) -> str:
        *said, last = attempt
        errors = [line for line in said if line.startswith(("error: ", "stopped: "))]
        return f"{last.lstrip('# ')}: {[*said, *errors][-1]}"


def read_sweep(name_or_path: str, output_dir: Path, overrides: Sequence[str] = ()) -> tuple[Sweep, list[Cell]]:
    """Reads `swep_ds/sweeps/<name>.yaml` or a YAML file; cells come seed by seed, all variants of the first one first.

    Args:
        output_dir: a cell's folder is `<output_dir>/<variant>-seed<seed>`.
        overrides: as of `--set`, on top of every cell's settings.

    Raises:
        InputError: no such sweep, not YAML, an unknown field or a wrong value, in the sweep or in any cell's recipe;
            an override of what a variant sets, which is what makes it one.
    """
    path, tree = read_settings(name_or_path, SWEEPS, "sweep", Sweep)
    sweep = validate(Sweep, tree, path)
    if any(override.split("=")[0] == "seed" for override in overrides):
        raise InputError("--set seed=...: a sweep's seeds stand in its file, as seeds: [...]")
    for override in overrides:
        _spares_the_variants(override, sweep, path)
    cells = []
    for seed in sweep.seeds:
        for variant, settings in sweep.variants.items():
            chosen = (*_overrides(_laid_over(sweep.set, settings)), *overrides, f"seed={seed}")
            try:
                recipe = Recipe.load(sweep.recipe, chosen)
            except InputError as error:
                raise InputError(f"{path}: variants.{variant}: {error}") from None
            cells.append(Cell(variant, seed, recipe, chosen, output_dir / f"{_slug(variant)}-seed{seed}"))
    for cell in cells:
        if _tests(cell.recipe) != _tests(cells[0].recipe):
            raise InputError(
                f"{path}: variants.{cell.variant} is tested otherwise than {cells[0].variant}: a table compares on the "
                "same data in the same way; give data.eval, data.holdout_fraction, data.max_eval_examples, eval in set"
            )
    return sweep, cells


def _spares_the_variants(override: str, sweep: Sweep, path: Path) -> None:
    name = override.partition("=")[0]
    for variant, settings in sweep.variants.items():
        for field in settings:
            if f"{field}.".startswith(f"{name}.") or f"{name}.".startswith(f"{field}."):
                raise InputError(
                    f"--set {override}: {path}: variants.{variant} sets {field} itself: change it there, or leave "
                    "this out"
                )


def _laid_over(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A variant's settings on those for all cells; naming another method drops the settings of the one named there."""
    method = "method.name"
    if method in shared and own.get(method, shared[method]) != shared[method]:
        shared = {name: value for name, value in shared.items() if not name.startswith("method.")}
    return shared | own


def _tests(recipe: Recipe) -> tuple:
    data = recipe.data
    return list(data.eval.items()), data.holdout_fraction, data.max_eval_examples, recipe.eval


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        if isinstance(value, dict) and "." not in name:
            raise ValueError(f"{name} would replace the whole section: write its fields as {name}.field: value")
        if name == "seed":
            raise ValueError("seed: a sweep's seeds stand in its field seeds")
    return settings


def _overrides(settings: dict[str, Any]) -> list[str]:
    """As `--set` takes them; JSON is YAML."""
    return [f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in settings.items()]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
