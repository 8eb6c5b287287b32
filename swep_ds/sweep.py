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
from swep_ds.recipe import Recipe, Section, read_settings, validate

SWEEPS = Path(__file__).parent / "sweeps"
EXIT_LINE = "# exit code "  # ends an attempt in a cell's log
START_LINE = "$ "  # begins one, before its command


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

    def fault(self) -> str:
        """Why there are no results, in a line: what the log of the last attempt ends with."""
        if not self.log.is_file():
            return "not run"
        lines = self.log.read_text(errors="replace").splitlines()
        start = max(number for number, line in enumerate(lines) if line.startswith(START_LINE))
        *said, last = [line.strip() for line in lines[start:] if line.strip()]
        if not last.startswith(EXIT_LINE):
            return "not finished"
        errors = [line for line in said if line.startswith("error: ")]
        return f"{last.lstrip('# ')}: {[*said, *errors][-1]}"


def read_sweep(name_or_path: str, output_dir: Path, overrides: Sequence[str] = ()) -> tuple[Sweep, list[Cell]]:
    """Reads `swep_ds/sweeps/<name>.yaml` or a YAML file; cells come seed by seed, all variants of the first one first.

    Args:
        output_dir: a cell's folder is `<output_dir>/<variant>-seed<seed>`.
        overrides: as of `--set`, on top of every cell's settings.

    Raises:
        InputError: no such sweep, not YAML, an unknown field or a wrong value, in the sweep or in any cell's recipe.
    """
    path, tree = read_settings(name_or_path, SWEEPS, "sweep", Sweep)
    sweep = validate(Sweep, tree, path)
    if any(override.split("=")[0] == "seed" for override in overrides):
        raise InputError("--set seed=...: a sweep's seeds stand in its file, as seeds: [...]")
    cells = []
    for seed in sweep.seeds:
        for variant, settings in sweep.variants.items():
            chosen = (*_overrides(sweep.set), *_overrides(settings), *overrides, f"seed={seed}")
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
    """As `--set` takes them; JSON is YAML. The method's name comes first: naming one drops another's settings."""
    names = sorted(settings, key=lambda name: name != "method.name")
    return [f"{name}={json.dumps(settings[name], ensure_ascii=False, default=str)}" for name in names]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
