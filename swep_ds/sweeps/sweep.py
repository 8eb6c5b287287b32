"""A sweep: variants x axes x seeds under one recipe, read from YAML such as `quickstart.yaml`. Each cell is an ordinary
run in its own folder.

With `extends: NAME_OR_PATH` a sweep gives only the fields, and in `set` only the settings, that differ from another's;
a variant without settings, `NAME:`, is the other's.
All recipes are validated before the first run starts. Only the folders say which runs are done, so a stopped sweep
resumes, and a table can be made at any time: `sweep.json` says what each folder holds.
"""

import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema

from swep_ds.common.errors import InputError, at
from swep_ds.common.files import is_locked, read_json, write_atomically
from swep_ds.common.settings import Section, differences, flatten, read_whole, validate, without
from swep_ds.evaluation.results import RESULTS
from swep_ds.pipeline.folder import BATCH, RECIPE, UNAVERAGED
from swep_ds.pipeline.recipe import NEUTRAL, SAVING, Recipe

log = logging.getLogger(__name__)
SWEEPS = Path(__file__).parent
EXIT_LINE = "# exit code "  # ends an attempt in a cell's log
OR_EMPTY = WithJsonSchema({"type": ["object", "null"], "additionalProperties": True})  # null: as in `Sweep.lay_over`
START_LINE = "$ "  # begins an attempt; its command follows
DESCRIPTION = "sweep.json"  # in the sweep's folder: what each run's folder holds
# (row, the row it is compared with, metric, data set or "shifted": the mean over all but the first); a row is a variant
# or, where that has train.average, "VARIANT, unaveraged": its last weights
Comparison = tuple[str, str, Literal["exact_match", "f1"], str]
SHIFTED = "shifted"


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        if isinstance(value, dict) and "." not in name:
            raise ValueError(f"{name} would replace the whole section: write {name}.field: value")
        if name == "seed":
            raise ValueError("seed: give the seeds in the sweep's field seeds")
    return settings


Settings = Annotated[dict[str, Any], AfterValidator(_check_settings)]  # dotted name -> value


class Sweep(Section):
    """The fields of a sweep file. Use `read_sweep` to read one."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # a bare number is a label, too

    recipe: str = "quickstart"  # name of a shipped recipe, or a YAML file
    ds_config: str | None = None  # name of a shipped one, or path; null = zero1; the command line may name another
    set: Settings = Field({})  # for all cells
    variants: dict[str, Annotated[Settings, OR_EMPTY]] = Field({}, min_length=1, validate_default=True)  # by name
    # by axis and label; "model" makes the table's blocks
    across: dict[str, Annotated[dict[str, Settings], Field(min_length=1)]] = Field({})
    seeds: list[int] = Field([0], min_length=1)  # each variant is trained with each of them at each point
    # [ROW, THE ROW IT IS COMPARED WITH, f1 or exact_match, DATA SET or shifted]: tested by itself, without adjustment
    primary: Comparison | None = None
    secondary: list[Comparison] | None = None  # written likewise, and adjusted together by Holm's method

    @classmethod
    def lay_over(cls, base: dict[str, Any], layer: dict[str, Any]) -> dict[str, Any]:
        """Whole fields of `layer` replace those of the sweep that it extends, except for `set`, which is laid over. A
        variant without settings has those of the variant of its name there."""
        merged = base | layer
        if isinstance(base.get("set"), dict) and isinstance(layer.get("set"), dict):
            merged["set"] = base["set"] | layer["set"]
        if isinstance(base.get("variants"), dict) and isinstance(layer.get("variants"), dict):
            variants = dict(layer["variants"])
            for name, given in variants.items():
                if given is None:
                    variants[name] = base["variants"].get(name)
            merged["variants"] = variants
        return merged


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. `recipe` is the sweep's recipe with `overrides`, which are `--set` options, applied to it."""

    variant: str
    seed: int
    recipe: Recipe
    overrides: tuple[str, ...]
    folder: Path
    labels: dict[str, str] = field(default_factory=dict)  # by axis
    primary: Comparison | None = None  # the sweep's
    secondary: tuple[Comparison, ...] = ()  # the sweep's

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


def unaveraged(variant: str) -> str:
    """The table's row with the last weights of a variant that has `train.average`."""
    return f"{variant}, {UNAVERAGED}"


def identity(recipe: Recipe) -> dict[str, Any]:
    """The settings, flat, that tell this run from others."""
    neutral = NEUTRAL if recipe.eval.select_on else (*NEUTRAL, SAVING)
    settings = without(flatten(recipe.model_dump(mode="json")), neutral)
    return settings | {"order of data.eval": [*recipe.data.eval]}  # the source domain comes first


def saved_recipe(folder: Path) -> Recipe:
    """The recipe of the run in a folder. Raises InputError: `recipe.yaml` is missing, or from another version."""
    try:
        return Recipe.load(str(folder / RECIPE))
    except InputError as error:
        raise InputError(f"{error}: delete the run's folder and run it again") from None


def log_of(folder: Path) -> Path:
    return folder.resolve().with_name(f"{folder.resolve().name}.log")  # "." has no name


def is_running(folder: Path) -> bool:
    """Whether a run trains in the folder, or a sweep has started one: its queue, then the run holds the log's lock."""
    return is_locked(folder / ".lock") or is_locked(log_of(folder))


def fault_of(folder: Path, recipe: Recipe | None) -> str:
    """Why a run, which should have this recipe, has no results: in one line, from its folder and its log's end."""
    if is_running(folder):
        return "still running, started earlier"
    attempt, code = last_attempt(folder)
    begun = (folder / RECIPE).is_file()
    if not code and recipe and begun:
        try:
            saved = saved_recipe(folder)
        except InputError as error:
            return str(error)
        if differing := differences(identity(saved), identity(recipe)):
            return f"holds a run with other settings ({differing})"
    if code is not None:
        errors = [line for line in attempt if line.startswith(("error: ", "stopped: "))]
        return f"exit code {code}: {[*attempt, *errors][-1]}"
    if attempt or (begun and not recipe):
        return "not finished"
    return "not run"


def last_attempt(folder: Path) -> tuple[list[str], int | None]:
    """The lines of the last attempt in the log, without empty ones, and its exit code; None if there was no attempt, it
    still runs, or it was killed with its queue."""
    if not log_of(folder).is_file():
        return [], None
    lines = log_of(folder).read_text(encoding="utf-8", errors="replace").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(START_LINE)]
    if not starts:
        return [], None
    *attempt, last = [line.strip() for line in lines[starts[-1] :] if line.strip()]
    if last.startswith(EXIT_LINE):
        return attempt, int(last.removeprefix(EXIT_LINE))
    return [*attempt, last], None


def describe(cells: Sequence[Cell], folder: Path) -> None:
    """Writes the sweep's `sweep.json`, from which a table can be made without the sweep file."""
    runs = {
        cell.name: {"variant": cell.variant, "labels": cell.labels, "seed": cell.seed, "model": cell.recipe.model.name}
        for cell in cells
    }
    tree = {"runs": runs, "primary": cells[0].primary, "secondary": cells[0].secondary}
    tree = {name: value for name, value in tree.items() if value}
    folder.mkdir(parents=True, exist_ok=True)
    warn_of_unnamed(folder, runs)
    write_atomically(folder / DESCRIPTION, json.dumps(tree, indent=1, ensure_ascii=False) + "\n")


def warn_of_unnamed(folder: Path, names: Collection[str]) -> None:
    """Warns of finished runs in a sweep's folder that are not among those that it names: a table leaves them out."""
    if unnamed := sorted({file.parent.name for file in folder.glob(f"*/{RESULTS}")} - set(names)):
        listed = ", ".join(unnamed)
        log.warning("%s: holds runs that the sweep does not name, and its table leaves out: %s", folder, listed)


def read_sweep(name_or_path: str, output_dir: Path, overrides: Sequence[str] = ()) -> tuple[Sweep, list[Cell]]:
    """Reads `swep_ds/sweeps/<name>.yaml` or a YAML file. Cells are in order of seed, then point, then variant, each in
    `<output_dir>/<variant>[-<label> for each axis]-seed<seed>`. `overrides` are `--set` options, applied last.

    Raises InputError: no such sweep, not YAML, an unknown field or a wrong value in the sweep or in a cell's recipe, an
    override of a setting that distinguishes variants or points, or an `output_dir` that is the folder of a run.
    """
    if (output_dir / BATCH).is_file():
        raise InputError(f"--output_dir {output_dir}: is the folder of a run: name another")
    path, tree = read_whole(name_or_path, SWEEPS, "sweep", Sweep)
    sweep = validate(Sweep, tree, path)
    given = [override.partition("=")[0].strip() for override in overrides]
    if "seed" in given:
        raise InputError("--set seed=...: the seeds are in the sweep's file, as seeds: [...]")
    _check_set_once({"variants": sweep.variants, **sweep.across, "--set": {"": given}}, path)
    cells = []
    points = list(itertools.product(*(of_axis.items() for of_axis in sweep.across.values())))
    for seed, point, (variant, changes) in itertools.product(sweep.seeds, points, sweep.variants.items()):
        labels = dict(zip(sweep.across, (label for label, _ in point), strict=True))
        of_point: Settings = {}
        for _, of_label in point:
            of_point = _merge(of_point, of_label)
        settings = {"tracking.group": path.stem} | _merge(_merge(sweep.set, of_point), changes)
        # as `--set` takes them: JSON is YAML
        options = [f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in settings.items()]
        options += [*overrides, f"seed={seed}"]
        places = [f"variants.{variant}", *(f"across.{axis}.{label}" for axis, label in labels.items())]
        changed = "".join(f" with --set {override}" for override in overrides)
        with at(f"{path}: {', '.join(places)}{changed}"):
            recipe = Recipe.load(sweep.recipe, options, "recipe")
        name = "-".join([*map(slug, (variant, *labels.values())), f"seed{seed}"])
        registered = sweep.primary, tuple(sweep.secondary or ())
        cells.append(Cell(variant, seed, recipe, tuple(options), output_dir / name, labels, *registered))
    _check_cells(cells, path)
    for comparison in sweep.secondary or ():
        _check_comparison("secondary", comparison, cells, path)
    if sweep.primary:
        _check_comparison("primary", sweep.primary, cells, path)
    return sweep, cells


def _check_set_once(places: dict[str, dict[str, Iterable[str]]], path: Path) -> None:
    """Raises InputError if two places set the same field, or a section and a field in it."""
    names = {place: list(itertools.chain(*settings.values())) for place, settings in places.items()}
    for place, other in itertools.combinations(names, 2):
        for name, other_name in itertools.product(names[place], names[other]):
            if f"{name}.".startswith(f"{other_name}.") or f"{other_name}.".startswith(f"{name}."):
                raise InputError(f"{path}: {place} and {other} both set {name}: set it in one of them")


def _check_cells(cells: Sequence[Cell], path: Path) -> None:
    """Raises InputError if two cells share a folder, or if their scores could not be compared in one table."""
    name, times = Counter(cell.name for cell in cells).most_common(1)[0]
    if times > 1:
        raise InputError(f"{path}: {times} runs would share the folder {name}: rename one or drop a repeated seed")

    def test_settings(recipe: Recipe) -> tuple:
        data = recipe.data
        chosen = [data.holdout_fraction, data.max_eval_examples, data.unanswerable, data.columns]
        if data.holdout_fraction:  # these also decide which questions can be held out
            chosen += [data.repeated_answers, data.misplaced_answers]
        return list(data.eval.items()), chosen, recipe.eval.model_copy(update={"batch_size": 1})

    for cell in cells:
        if test_settings(cell.recipe) != test_settings(cells[0].recipe):
            raise InputError(
                f"{path}: variants.{cell.variant} is tested differently from {cells[0].variant}, but a table compares "
                "runs on the same data: give data.eval, data.holdout_fraction, data.max_eval_examples, data.columns, "
                "data.unanswerable, data.repeated_answers, data.misplaced_answers and eval in set"
            )


def _check_comparison(field: str, comparison: Comparison, cells: Sequence[Cell], path: Path) -> None:
    """Raises InputError if the table will not have the rows or the data set of a comparison that the field names."""
    row, base, _, data_set = comparison
    rows = [cell.variant for cell in cells]
    rows += [unaveraged(cell.variant) for cell in cells if cell.recipe.train.average != "none"]
    if row == base or not {row, base} <= set(rows):
        known = "; ".join(dict.fromkeys(rows))
        raise InputError(f"{path}: {field} compares {row!r} with {base!r}: name two of {known}, or write {field}: null")
    known = list(cells[0].recipe.test_sets)
    if len(known) > 1:
        known.append(SHIFTED)
    if data_set not in known:
        raise InputError(
            f"{path}: {field} {data_set!r}: no such data set: name one of {', '.join(known)}, or write {field}: null"
        )


def _merge(base: Settings, top: Settings) -> Settings:
    """`top` over `base`. If `top` names another method, the settings of the base's method are dropped."""
    method = "method.name"
    if method in base and top.get(method, base[method]) != base[method]:
        base = {name: value for name, value in base.items() if not name.startswith("method.")}
    return base | top


def slug(name: str) -> str:
    """`name` as a part of a file name: lower-case ASCII letters and digits, joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
