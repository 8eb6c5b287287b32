"""A sweep: variants x axes x seeds under one recipe, read from YAML. Each cell is an ordinary run in its own folder.

    recipe: quickstart
    ds_config: zero2
    set: {train.epochs: 0.3}                # overrides the recipe, in every cell
    variants:                               # the rows of the table: each overrides those settings
      MLE: {method.name: mle}
      SWEP: {method.name: swep, method.beta: 1.0e-4}
    across:                                 # axes, each with its points: every variant is trained at every point
      training questions: {10 %: {data.train_fraction: 0.1}, 100 %: {}}
    seeds: [0, 1, 2]
    primary: [SWEP, MLE, f1, shifted]       # the one comparison that is decided on before the first run

With `extends: NAME_OR_PATH` a sweep gives only the fields, and in `set` only the settings, that differ from another's;
a variant without settings, `NAME:`, is the other's.
All recipes are validated before the first run starts. Only the folders say which runs are done, so a stopped sweep
resumes, and a table can be made at any time: `sweep.json` says what each folder holds.
"""

import functools
import hashlib
import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator

from swep_ds.common.errors import InputError
from swep_ds.common.files import is_locked, read_json, write_atomically
from swep_ds.common.settings import Section, differences, flatten, read_layers, validate, without
from swep_ds.evaluation.results import RESULTS
from swep_ds.pipeline.folder import BATCH, RECIPE, UNAVERAGED
from swep_ds.pipeline.recipe import NEUTRAL, Recipe

log = logging.getLogger(__name__)
SWEEPS = Path(__file__).parent
EXIT_LINE = "# exit code "  # ends an attempt in a cell's log
OR_EMPTY = WithJsonSchema({"type": ["object", "null"], "additionalProperties": True})  # null: as in `_lay_over`
START_LINE = "$ "  # begins an attempt; its command follows
DESCRIPTION = "sweep.json"  # in the sweep's folder: what each run's folder holds
Settings = dict[str, Any]  # dotted name -> value
# (row, the row it is compared with, metric, data set or "shifted": the mean over all but the first); a row is a variant
# or, where that has train.average, "VARIANT, unaveraged": its last weights
Primary = tuple[str, str, Literal["exact_match", "f1"], str]
SHIFTED = "shifted"


class Sweep(Section):
    """The fields of a sweep file. Use `read_sweep` to read one."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # a bare number is a label, too

    recipe: str = "quickstart"  # name of a shipped recipe, or a YAML file
    ds_config: str | None = None  # name of a shipped one, or path; null = zero2; the command line may name another
    set: Settings = Field({})  # for all cells
    variants: dict[str, Annotated[Settings, OR_EMPTY]] = Field({})  # by name
    # by axis and label; "model" makes the table's blocks
    across: dict[str, Annotated[dict[str, Settings], Field(min_length=1)]] = Field({})
    seeds: list[int] = Field([0], min_length=1)  # each variant is trained with each of them at each point
    # [ROW, THE ROW IT IS COMPARED WITH, f1 or exact_match, DATA SET or shifted]: tested by itself, without adjustment
    primary: Primary | None = None

    @model_validator(mode="after")
    def _check(self) -> "Sweep":
        if not self.variants:
            raise ValueError("variants names nothing to train: give each a name and its settings")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds holds a seed twice: its runs would share a folder")
        _check_settings("set", self.set)
        parts = self.parts()
        for part, named in parts.items():
            for name, settings in named.items():
                _check_settings(f"{part}.{name}", settings)
        fields = {part: {name for settings in named.values() for name in settings} for part, named in parts.items()}
        for part, other in itertools.combinations(fields, 2):
            for name, other_name in itertools.product(fields[part], fields[other]):
                if _overlap(name, other_name):
                    raise ValueError(f"{part} and {other} both set {name}: give it in one of them")
        return self

    def parts(self) -> dict[str, dict[str, Settings]]:
        """What distinguishes the runs: settings by name or label, for the variants and for each axis."""
        return {"variants": self.variants} | {f"across.{axis}": points for axis, points in self.across.items()}

    def points(self) -> Iterator[tuple[dict[str, str], Settings]]:
        """Each combination of the axes' points, as (labels by axis, merged settings); one empty pair without axes."""
        for combination in itertools.product(*(points.items() for points in self.across.values())):
            labels = dict(zip(self.across, (label for label, _ in combination), strict=True))
            settings: Settings = {}
            for _, point_settings in combination:
                settings = _merge(settings, point_settings)
            yield labels, settings


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. `recipe` is the sweep's recipe with `overrides`, which are `--set` options, applied to it."""

    variant: str
    seed: int
    recipe: Recipe
    overrides: tuple[str, ...]
    folder: Path
    labels: dict[str, str] = field(default_factory=dict)  # by axis
    primary: Primary | None = None  # the sweep's

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return log_of(self.folder)

    def options(self) -> list[str]:
        """The options of `swep-ds train`, except for the sweep's recipe and the ds_config."""
        return ["--output_dir", str(self.folder), *(part for text in self.overrides for part in ("--set", text))]

    def results(self) -> dict[str, Any] | None:
        """The run's `results.json`; None if it is missing or damaged, or the run had other settings than this cell."""
        try:
            saved = saved_recipe(self.folder)
            results = read_json(self.folder / RESULTS)
        except InputError:
            return None
        return results if identity(saved) == identity(self.recipe) else None

    def fault(self) -> str:
        return fault_of(self.folder, self.recipe)

    def exit_code(self) -> int | None:
        return exit_code_of(self.folder)


def unaveraged(variant: str) -> str:
    """The table's row with the last weights of a variant that has `train.average`."""
    return f"{variant}, {UNAVERAGED}"


def identity(recipe: Recipe) -> dict[str, Any]:
    """The settings, flat, that tell this run from others."""
    settings = flatten(recipe.model_dump(mode="json"))
    return without(settings, NEUTRAL) | {"order of data.eval": [*recipe.data.eval]}  # the source domain comes first


def digest_of(cells: Sequence[Cell]) -> str:
    """Changes with the order of the cells, their folders and their settings."""
    content = [[cell.folder.name, identity(cell.recipe)] for cell in cells]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def saved_recipe(folder: Path) -> Recipe:
    """The recipe of the run in a folder. Raises InputError: `recipe.yaml` is missing, or from another version."""
    file = folder / RECIPE
    fix = "delete the run's folder and run it again"
    if not file.is_file():
        raise InputError(f"{file}: no such file: {fix}")
    try:
        return Recipe.load(str(file))
    except InputError as error:
        raise InputError(f"{error}: {fix}") from None


def log_of(folder: Path) -> Path:
    """The log of a sweep's run: a file next to its folder."""
    return folder.with_name(f"{folder.name}.log")


def fault_of(folder: Path, recipe: Recipe | None) -> str:
    """Why a run has no results, in one line, from its folder and the last attempt in its log.

    Args:
        recipe: the recipe that the run should have; None accepts any.
    """
    if is_locked(folder / ".lock"):
        return "still running, started earlier"
    attempt = last_attempt(folder)
    code = exit_code_of(folder)
    begun = (folder / RECIPE).is_file()
    if not code and recipe and begun:
        try:
            saved = saved_recipe(folder)
        except InputError as error:
            return str(error)
        if differing := differences(identity(saved), identity(recipe)):
            return f"holds a run with other settings ({differing})"
    if code is not None:
        *output, exit_line = attempt
        errors = [line for line in output if line.startswith(("error: ", "stopped: "))]
        return f"{exit_line.lstrip('# ')}: {[*output, *errors][-1]}"
    if attempt or (begun and not recipe):
        return "not finished"
    return "not run"


def exit_code_of(folder: Path) -> int | None:
    """The exit code of the last attempt; None if there was none, it still runs, or it was killed with its queue."""
    attempt = last_attempt(folder)
    if not attempt or not attempt[-1].startswith(EXIT_LINE):
        return None
    return int(attempt[-1].removeprefix(EXIT_LINE))


def last_attempt(folder: Path) -> list[str]:
    """The lines of the last attempt in the log, without empty ones; none without a log."""
    if not log_of(folder).is_file():
        return []
    lines = log_of(folder).read_text(encoding="utf-8", errors="replace").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(START_LINE)]
    if not starts:
        return []
    return [line.strip() for line in lines[starts[-1] :] if line.strip()]


def describe(cells: Sequence[Cell], folder: Path) -> None:
    """Writes the sweep's `sweep.json`, from which a table can be made without the sweep file: the variant, the labels
    by axis, the seed and the model of each run, by the name of its folder; and the primary comparison, if there is one.

    Raises InputError: the folder is a run's.
    """
    if (folder / BATCH).is_file():
        raise InputError(f"--output_dir {folder}: is the folder of a run: name another")
    runs = {
        cell.name: {"variant": cell.variant, "labels": cell.labels, "seed": cell.seed, "model": cell.recipe.model.name}
        for cell in cells
    }
    tree: dict[str, Any] = {"runs": runs}
    if cells[0].primary:
        tree["primary"] = cells[0].primary
    text = json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
    file = folder / DESCRIPTION
    folder.mkdir(parents=True, exist_ok=True)
    if not file.is_file() or file.read_bytes() != text.encode():  # every task of a Slurm array does this
        warn_of_unnamed(folder, runs)
        write_atomically(file, text)


def warn_of_unnamed(folder: Path, names: Collection[str]) -> None:
    """Warns of finished runs in a sweep's folder that are not among those that it names: a table leaves them out."""
    unnamed = sorted({file.parent.name for file in folder.glob(f"*/{RESULTS}")} - set(names))
    if unnamed:
        listed = ", ".join(unnamed)
        log.warning("%s: holds runs that the sweep does not name, and its table leaves out: %s", folder, listed)


def read_sweep(name_or_path: str, output_dir: Path, overrides: Sequence[str] = ()) -> tuple[Sweep, list[Cell]]:
    """Reads `swep_ds/sweeps/<name>.yaml` or a YAML file. Cells are in order of seed, then point, then variant.

    Args:
        output_dir: a cell's folder is `<output_dir>/<variant>[-<label> for each axis]-seed<seed>`.
        overrides: `--set` options, applied last to every cell.

    Raises:
        InputError: no such sweep, not YAML, an unknown field or a wrong value in the sweep or in a cell's recipe, or
            an override of a setting that distinguishes variants or points.
    """
    path, layers = read_layers(name_or_path, SWEEPS, "sweep", Sweep)
    sweep = validate(Sweep, functools.reduce(_lay_over, layers), path)
    for override in overrides:
        _check_override(override, sweep, path)
    cells = []
    for seed, (labels, point), variant in itertools.product(sweep.seeds, list(sweep.points()), sweep.variants):
        settings = {"tracking.group": path.stem} | _merge(_merge(sweep.set, point), sweep.variants[variant])
        # as `--set` takes them: JSON is YAML
        options = [f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in settings.items()]
        options += [*overrides, f"seed={seed}"]
        try:
            recipe = Recipe.load(sweep.recipe, options, "recipe")
        except InputError as error:
            places = [f"variants.{variant}", *(f"across.{axis}.{label}" for axis, label in labels.items())]
            given = "".join(f" with --set {override}" for override in overrides)
            raise InputError(f"{path}: {', '.join(places)}{given}: {error}") from None
        name = "-".join([*map(slug, (variant, *labels.values())), f"seed{seed}"])
        cells.append(Cell(variant, seed, recipe, tuple(options), output_dir / name, labels, sweep.primary))
    _check_cells(cells, path)
    _check_primary(cells, path)
    return sweep, cells


def _lay_over(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Whole fields of `tree` replace those of the sweep that it extends, except for `set`, which is laid over. A
    variant without settings has those of the variant of its name there."""
    merged = base | tree
    if isinstance(base.get("set"), dict) and isinstance(tree.get("set"), dict):
        merged["set"] = base["set"] | tree["set"]
    if isinstance(base.get("variants"), dict) and isinstance(tree.get("variants"), dict):
        variants = dict(tree["variants"])
        for name, given in variants.items():
            if given is None:
                variants[name] = base["variants"].get(name)
        merged["variants"] = variants
    return merged


def _check_cells(cells: Sequence[Cell], path: Path) -> None:
    """Raises InputError if two cells share a folder, or if their scores could not be compared in one table."""
    name, times = Counter(cell.name for cell in cells).most_common(1)[0]
    if times > 1:
        raise InputError(f"{path}: {times} runs would share the folder {name}: rename a variant or a label")

    def test_settings(recipe: Recipe) -> tuple:
        data = recipe.data
        chosen = [data.holdout_fraction, data.max_eval_examples, data.unanswerable]
        if data.holdout_fraction:
            chosen.append(data.repeated_answers)  # it also decides which questions can be held out
        return list(data.eval.items()), chosen, recipe.eval.model_copy(update={"batch_size": 1})

    for cell in cells:
        if test_settings(cell.recipe) != test_settings(cells[0].recipe):
            raise InputError(
                f"{path}: variants.{cell.variant} is tested differently from {cells[0].variant}, but a table compares "
                "runs on the same data: give data.eval, data.holdout_fraction, data.max_eval_examples, "
                "data.unanswerable, data.repeated_answers and eval in set"
            )


def _check_primary(cells: Sequence[Cell], path: Path) -> None:
    """Raises InputError if the table will not have the rows or the data set of the primary comparison."""
    if not cells[0].primary:
        return
    row, base, _, data_set = cells[0].primary
    rows = dict.fromkeys(cell.variant for cell in cells)
    rows |= dict.fromkeys(unaveraged(cell.variant) for cell in cells if cell.recipe.train.average != "none")
    if row == base or not {row, base} <= set(rows):
        raise InputError(
            f"{path}: primary compares {row!r} with {base!r}: name two of {'; '.join(rows)}, or write primary: null"
        )
    known = list(cells[0].recipe.test_sets)
    if len(known) > 1:
        known.append(SHIFTED)
    if data_set not in known:
        raise InputError(
            f"{path}: primary {data_set!r}: no such data set: name one of {', '.join(known)}, or write primary: null"
        )


def _check_override(override: str, sweep: Sweep, path: Path) -> None:
    """Raises InputError for an override of a seed, or of what distinguishes variants or points."""
    name = override.partition("=")[0].strip()
    if name == "seed":
        raise InputError("--set seed=...: the seeds are in the sweep's file, as seeds: [...]")
    for part, named in sweep.parts().items():
        for label, settings in named.items():
            for setting in settings:
                if _overlap(setting, name):
                    where = f"{path}: {part}.{label} sets {setting}"
                    raise InputError(f"--set {override}: {where}: change it there, or drop --set")


def _overlap(name: str, other: str) -> bool:
    """Whether two dotted names are the same field, or a section and a field in it."""
    return f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.")


def _merge(base: Settings, top: Settings) -> Settings:
    """`top` over `base`. If `top` names another method, the settings of the base's method are dropped."""
    method = "method.name"
    if method in base and top.get(method, base[method]) != base[method]:
        base = {name: value for name, value in base.items() if not name.startswith("method.")}
    return base | top


def _check_settings(place: str, settings: Settings) -> None:
    for name, value in settings.items():
        if isinstance(value, dict) and "." not in name:
            raise ValueError(f"{place}: {name} would replace the whole section: write {name}.field: value")
        if name == "seed":
            raise ValueError(f"{place}: seed: give the seeds in the sweep's field seeds")


def slug(name: str) -> str:
    """`name` as a part of a file name: lower-case ASCII letters and digits, joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
