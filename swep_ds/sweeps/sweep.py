"""A sweep: variants x axes x seeds under one recipe, read from YAML. Each cell is an ordinary run in its own folder.

    recipe: quickstart
    ds_config: ds_configs/zero2.json
    set: {train.epochs: 0.3}                # on top of the recipe, for all cells
    variants:                               # a row of the table: settings on top of those
      MLE: {method.name: mle}
      SWEP: {method.name: swep, method.beta: 1.0e-4}
    across:                                 # axes, each with its points: all variants are trained at every one
      training questions: {10 %: {data.train_fraction: 0.1}, 100 %: {}}
    seeds: [0, 1, 2]

All recipes are validated before the first run starts. What is done is read off the folders alone, so that a sweep
that was stopped goes on, and a table can be made of what is there at any time: `sweep.json` says what each folder is.
"""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from swep_ds.errors import InputError
from swep_ds.files import is_locked, read_json, write_atomically
from swep_ds.recipe import Recipe
from swep_ds.settings import Section, differences, flatten, read_settings, shown, validate

SWEEPS = Path(__file__).parent
EXIT_LINE = "# exit code "  # ends an attempt in a cell's log
START_LINE = "$ "  # begins one, before its command
DESCRIPTION = "sweep.json"  # of the sweep's folder: what each run's folder holds
Settings = dict[str, Any]  # dotted name -> value
MOST_RUNS = 10_000
LONGEST_FOLDER = 200  # bytes of a run's folder name, beside which NAME.log stands


class Sweep(Section):
    """The fields of a sweep file. `read_sweep` is the way in."""

    recipe: str = "quickstart"  # name of a shipped recipe, or a YAML file
    ds_config: str | None = None  # path; the command line may name another
    set: Settings = Field({})  # for all cells
    variants: dict[str, Settings] = Field({})  # by name
    across: dict[str, dict[str, Settings]] = Field({})  # by axis and label; "model" makes the table's blocks
    seeds: list[int] = Field([0], min_length=1)

    @field_validator("seeds", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"{shown(value)} is no list: write seeds: [0, 1, 2]")
        return value

    @field_validator("variants", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return _mappings("variants", value)

    @field_validator("set")
    @classmethod
    def _for_all(cls, value: Settings) -> Settings:
        return _checked(value)

    @field_validator("variants")
    @classmethod
    def _for_one(cls, value: dict[str, Settings]) -> dict[str, Settings]:
        return _folder_names(value)

    @field_validator("across", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """A bare number is a label, too."""
        if not isinstance(value, dict):
            raise ValueError(f"{shown(value)} is no mapping: write across: {{AXIS: {{LABEL: {{SETTING: VALUE}}}}}}")
        return {axis: {str(k): v for k, v in _mappings(axis, one).items()} for axis, one in value.items()}

    @field_validator("across")
    @classmethod
    def _for_each_point(cls, value: dict[str, dict[str, Settings]]) -> dict[str, dict[str, Settings]]:
        for axis, points in value.items():
            if not points:
                raise ValueError(f"{axis} has no points: give each a label and its settings")
            _folder_names(points)
        return value

    @model_validator(mode="after")
    def _something_to_do(self) -> "Sweep":
        if not self.variants:
            raise ValueError("variants names nothing to train: give each a name and its settings")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds holds one of them twice: its runs would share a folder")
        parts = {"variants": self.variants} | {f"across.{axis}": points for axis, points in self.across.items()}
        for (one, ours), (other, theirs) in itertools.combinations(parts.items(), 2):
            for mine, yours in itertools.product(_fields(ours), _fields(theirs)):
                if _overlap(mine, yours):
                    raise ValueError(f"{one} and {other} both set {mine}: give it in one of them")
        return self

    def points(self) -> Iterator[tuple[dict[str, str], Settings]]:
        """By combination of the axes' points: axis -> label, and the settings of all of them. One where no axis is."""
        for chosen in itertools.product(*(points.items() for points in self.across.values())):
            labels = dict(zip(self.across, (label for label, _ in chosen), strict=True))
            settings: Settings = {}
            for _, own in chosen:
                settings = _laid_over(settings, own)
            yield labels, settings


@dataclass(frozen=True)
class Cell:
    """One run of a sweep; `overrides` are `--set` options on top of the sweep's recipe that make `recipe`."""

    variant: str
    seed: int
    recipe: Recipe
    overrides: tuple[str, ...]
    folder: Path
    labels: dict[str, str] = field(default_factory=dict)  # by axis

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return log_of(self.folder)

    def options(self) -> list[str]:
        """Of scripts/train.py, beside the sweep's recipe and the ds_config."""
        return ["--output_dir", str(self.folder), *(part for one in self.overrides for part in ("--set", one))]

    def results(self) -> dict[str, Any] | None:
        """The run's `results.json`; None where it is not there or not whole, or of other settings than this cell's."""
        try:
            saved = saved_recipe(self.folder)
            results = read_json(self.folder / "results.json")
        except InputError:
            return None
        return results if isinstance(results, dict) and decisive(saved) == decisive(self.recipe) else None

    def still_running(self) -> bool:
        """Whether a process has the run in its hands, as one of an earlier start that was killed without its runs."""
        return is_locked(self.folder / ".lock")

    def fault(self) -> str:
        return fault_of(self.folder, self.recipe)

    def exit_code(self) -> int | None:
        return exit_code_of(self.folder)


def decisive(recipe: Recipe) -> dict[str, Any]:
    """The settings that make a run this one, flat: all but where it is tracked."""
    return flatten(recipe.model_dump(mode="json", exclude={"tracking"}))


def saved_recipe(folder: Path) -> Recipe:
    """That of the run in a folder.

    Raises:
        InputError: `recipe.yaml` is gone, damaged or of another version.
    """
    file, mend = folder / "recipe.yaml", "delete the run's folder and run it again"
    if not file.is_file():
        raise InputError(f"{file}: no such file: {mend}")
    try:
        return Recipe.load(str(file))
    except InputError as error:
        raise InputError(f"{error}: {mend}") from None


def log_of(folder: Path) -> Path:
    """Beside the folder of a sweep's run."""
    return folder.with_name(f"{folder.name}.log")


def fault_of(folder: Path, recipe: Recipe | None) -> str:
    """Why a run has no results, in a line: what the log of the last attempt ends with, or whose folder it is.

    Args:
        recipe: that the run was to have; None = whatever its folder holds.
    """
    if is_locked(folder / ".lock"):
        return "still running, started earlier"
    attempt, code, saved = _last_attempt(folder), exit_code_of(folder), folder / "recipe.yaml"
    if code:
        return _ending(attempt)
    if recipe and saved.is_file():
        try:
            there = saved_recipe(folder)
        except InputError as error:
            return str(error)
        if differing := differences(decisive(there), decisive(recipe)):
            return f"holds a run of other settings ({differing})"
    if not attempt:
        return "not run" if recipe or not saved.is_file() else "not finished"
    return "not finished" if code is None else _ending(attempt)


def exit_code_of(folder: Path) -> int | None:
    """That the last attempt ended with; None where there is none, or it still runs or was killed with its queue."""
    attempt = _last_attempt(folder)
    code = re.fullmatch(re.escape(EXIT_LINE) + "(-?[0-9]{1,9})", attempt[-1]) if attempt else None
    return int(code[1]) if code else None


def _last_attempt(folder: Path) -> list[str]:
    """Its lines in the log."""
    log = log_of(folder)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    starts = [number for number, line in enumerate(lines) if line.startswith(START_LINE)]
    return [line.strip() for line in lines[starts[-1] :] if line.strip()] if starts else []


def _ending(attempt: Sequence[str]) -> str:
    *said, last = attempt
    errors = [line for line in said if line.startswith(("error: ", "stopped: "))]
    return f"{last.lstrip('# ')}: {[*said, *errors][-1]}"


def describe(cells: Sequence[Cell], folder: Path) -> None:
    """Writes the sweep's `sweep.json`, with which a table can be made of its folder alone: by the name of a run's
    folder its variant, its labels by axis, its seed and its model.

    Raises:
        InputError: the folder cannot be written to.
    """
    file = folder / DESCRIPTION
    held = {
        cell.name: {"variant": cell.variant, "labels": cell.labels, "seed": cell.seed, "model": cell.recipe.model.name}
        for cell in cells
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"runs": held}, indent=1, ensure_ascii=False) + "\n"
        if not file.is_file() or file.read_text(encoding="utf-8") != text:  # every task of a Slurm array comes here
            write_atomically(file, text)
    except OSError as error:
        raise InputError(f"--output_dir {folder}: cannot be written to ({error.strerror})") from None


def read_sweep(name_or_path: str, output_dir: Path, overrides: Sequence[str] = ()) -> tuple[Sweep, list[Cell]]:
    """Reads `swep_ds/sweeps/<name>.yaml` or a YAML file; cells come seed by seed, then point by point of `across`.

    Args:
        output_dir: a cell's folder is `<output_dir>/<variant>[-<label> of each axis]-seed<seed>`.
        overrides: as of `--set`, on top of every cell's settings.

    Raises:
        InputError: no such sweep, not YAML, an unknown field or a wrong value, in the sweep or in any cell's recipe;
            an override of what a variant or a point of an axis sets, which is what makes it one.
    """
    path, tree = read_settings(name_or_path, SWEEPS, "sweep", Sweep)
    sweep = validate(Sweep, tree, path)
    if any(override.split("=")[0] == "seed" for override in overrides):
        raise InputError("--set seed=...: a sweep's seeds stand in its file, as seeds: [...]")
    for override in overrides:
        _spares_the_variants(override, sweep, path)
    count = math.prod(map(len, (sweep.seeds, sweep.variants, *sweep.across.values())))
    if count > MOST_RUNS:
        raise InputError(f"{path}: variants x across x seeds are {count:,} runs: leave at most {MOST_RUNS:,}")
    cells = []
    for seed, (labels, own), variant in itertools.product(sweep.seeds, list(sweep.points()), sweep.variants):
        settings = _laid_over(_laid_over(sweep.set, own), sweep.variants[variant])
        chosen = (*_overrides({"tracking.group": path.stem} | settings), *overrides, f"seed={seed}")
        at = "".join(f", across.{axis}.{label}" for axis, label in labels.items())
        try:
            recipe = Recipe.load(sweep.recipe, chosen)
        except InputError as error:
            raise InputError(f"{path}: variants.{variant}{at}: {error}") from None
        name = "-".join([*map(_slug, (variant, *labels.values())), f"seed{seed}"])
        if len(name) > LONGEST_FOLDER:
            raise InputError(f"{path}: variants.{variant}{at}: the folder {name} is too long a name: shorten them")
        cells.append(Cell(variant, seed, recipe, chosen, output_dir / name, labels))
    _can_be_compared(cells, path)
    return sweep, cells


def _can_be_compared(cells: Sequence[Cell], path: Path) -> None:
    name, times = Counter(cell.name for cell in cells).most_common(1)[0]
    if times > 1:
        raise InputError(f"{path}: {times} runs would share the folder {name}: rename a variant or a label")
    for cell in cells:
        if _tests(cell.recipe) != _tests(cells[0].recipe):
            raise InputError(
                f"{path}: variants.{cell.variant} is tested otherwise than {cells[0].variant}: a table compares on the "
                "same data in the same way; give data.eval, data.holdout_fraction, data.max_eval_examples, eval in set"
            )


def _spares_the_variants(override: str, sweep: Sweep, path: Path) -> None:
    name = override.partition("=")[0]
    parts = {f"variants.{variant}": settings for variant, settings in sweep.variants.items()}
    for axis, points in sweep.across.items():
        parts |= {f"across.{axis}.{label}": settings for label, settings in points.items()}
    for part, settings in parts.items():
        for field_ in settings:
            if _overlap(field_, name):
                raise InputError(
                    f"--set {override}: {path}: {part} sets {field_} itself: change it there, or leave this out"
                )


def _overlap(one: str, other: str) -> bool:
    """Whether two dotted names are of one field, or of a section and a field in it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _fields(several: dict[str, Settings]) -> set[str]:
    return {name for settings in several.values() for name in settings}


def _laid_over(shared: Settings, own: Settings) -> Settings:
    """A variant's settings on those for more cells; naming another method drops the settings of the one named there."""
    method = "method.name"
    if method in shared and own.get(method, shared[method]) != shared[method]:
        shared = {name: value for name, value in shared.items() if not name.startswith("method.")}
    return shared | own


def _tests(recipe: Recipe) -> tuple:
    data = recipe.data
    return list(data.eval.items()), data.holdout_fraction, data.max_eval_examples, recipe.eval


def _mappings(name: str, value: Any) -> dict[Any, Any]:
    """`value` if it gives names their settings."""
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is no mapping: write {name}: {{NAME: {{SETTING: VALUE}}}}")
    for one, settings in value.items():
        if not isinstance(settings, dict):
            name, what = shown(one, str), f"{shown(settings)} are no settings"
            raise ValueError(f"{name}: {what}: write {name}: {{SETTING: VALUE}}, or {{}} for none")
    return value


def _folder_names(value: dict[str, Settings]) -> dict[str, Settings]:
    """Checks names that become parts of folder names, and what they stand for."""
    folders = [_slug(name) for name in value]
    for name, folder in zip(value, folders, strict=True):
        if not folder or folders.count(folder) > 1:
            raise ValueError(f"{name!r} becomes the folder name {folder!r}, which must be unique and not empty")
        _checked(value[name])
    return value


def _checked(settings: Settings) -> Settings:
    for name, value in settings.items():
        if isinstance(value, dict) and "." not in name:
            raise ValueError(f"{name} would replace the whole section: write its fields as {name}.field: value")
        if name == "seed":
            raise ValueError("seed: a sweep's seeds stand in its field seeds")
    return settings


def _overrides(settings: Settings) -> list[str]:
    """As `--set` takes them; JSON is YAML."""
    return [f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in settings.items()]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
