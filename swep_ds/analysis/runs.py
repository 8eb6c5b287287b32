"""Which runs a table is made of: found in folders, checked, and compared only with their like."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swep_ds.errors import InputError
from swep_ds.files import read_json
from swep_ds.recipe import Recipe
from swep_ds.settings import differences, flatten
from swep_ds.sweeps.sweep import DESCRIPTION, Cell, decisive, fault_of, log_of, saved_recipe

MODEL = "model"  # the axis whose labels head the table's blocks
# of a resolved ds_config: what the recipe decides, and what says nothing of the training
DECIDED_ELSEWHERE = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "optimizer"}
DECIDED_ELSEWHERE |= {"bf16", "fp16", "torch_autocast", "steps_per_print", "wall_clock_breakdown"}
SIZES = ("_bucket_size", "_param_persistence_threshold")  # of ZeRO: by default of the model's hidden size
# of a recipe: what makes two runs of one row, as seeds of the same training
FAULTS = 3  # of one file that are named
NOT_OF_THE_ROW = ("seed", "model.name", "tracking.", "train.log_every", "train.checkpoint_every", "eval.batch_size")


class Checked(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)  # fields of later versions are let in


Percent = Annotated[float, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class SetScore(Checked):
    exact_match: Percent
    f1: Percent
    total: Count


class Selection(Checked):
    """Which checkpoint was chosen, by a score in percent."""

    data_set: str
    update: Count
    exact_match: Percent
    f1: Percent


class Results(Checked):
    """Of `results.json`, what tables and reports need."""

    method: str
    model: str
    seed: Count
    world_size: Count
    eval: dict[str, SetScore]  # the source domain first
    versions: dict[str, str]
    train: dict[str, Any] = {}
    selection: Selection | None = None


class Described(Checked):
    """A run in a sweep's `sweep.json`."""

    variant: str
    seed: int
    model: str
    labels: dict[str, str]


class Description(Checked):
    """`sweep.json`."""

    runs: dict[str, Described]  # by the name of the run's folder


@dataclass(frozen=True)
class Place:
    """A folder in which a run is, or should be."""

    folder: Path
    variant: str
    seed: int
    model: str
    labels: dict[str, str] = field(default_factory=dict)  # by axis
    recipe: Recipe | None = None  # that the run was to have; None = whatever its folder holds

    @property
    def block(self) -> tuple[str, dict[str, str]]:
        """(model, labels of the other axes): where the run stands in the table."""
        return self.labels.get(MODEL, self.model), {k: v for k, v in self.labels.items() if k != MODEL}


@dataclass(frozen=True)
class Run:
    """A run that is done."""

    place: Place
    recipe: Recipe
    results: Results
    conditions: dict[str, Any]  # `conditions`


@dataclass(frozen=True)
class Missing:
    """A run that is not in the table, and why, in a line."""

    place: Place
    reason: str


def of_cells(cells: Sequence[Cell]) -> list[Place]:
    """The runs of a sweep, each with the settings that it is to have."""
    return [
        Place(cell.folder, cell.variant, cell.seed, cell.recipe.model.name, cell.labels, cell.recipe) for cell in cells
    ]


def find(folders: Iterable[Path]) -> list[Place]:
    """The runs in sweeps' folders (by their `sweep.json`), in runs' own, and in folders that hold runs' folders.

    Runs that no sweep describes are named by their method, and by the settings that most runs of it have otherwise.

    Raises:
        InputError: no such folder, one that holds no run, or a damaged `sweep.json`.
    """
    described: list[Place] = []
    others: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder: name a sweep's or a run's")
        if (folder / DESCRIPTION).is_file():
            described += _described(folder)
            continue
        try:
            inside = [folder] if _holds_a_run(folder) else sorted(one for one in folder.iterdir() if _holds_a_run(one))
        except OSError as error:
            raise InputError(f"{folder}: cannot be read ({error.strerror}): name another folder") from None
        if not inside:
            raise InputError(f"{folder}: holds no run: name a sweep's folder or a run's, with its recipe.yaml")
        others += inside
    return described + _named(others)


def _described(folder: Path) -> list[Place]:
    file = folder / DESCRIPTION
    try:
        described = Description.model_validate(read_json(file, file.name))
        if odd := [name for name in described.runs if name in ("", ".", "..") or "/" in name or "\0" in name]:
            raise InputError(f"runs.{odd[0]!r} is no name of a folder")
    except (InputError, ValidationError) as error:
        fault = _faults(error) if isinstance(error, ValidationError) else error
        raise InputError(f"{file}: damaged ({fault}): make it anew with scripts/sweep.py SWEEP --table") from None
    return [Place(folder / name, **dict(one)) for name, one in described.runs.items()]


def _holds_a_run(folder: Path) -> bool:
    return (folder / "recipe.yaml").is_file()


def _named(folders: Iterable[Path]) -> list[Place]:
    places, settings = [], []
    for folder in folders:
        try:
            recipe = saved_recipe(folder)
        except InputError:
            places.append(Place(folder, folder.name, 0, "?"))  # `read` says why
            settings.append({})
            continue
        places.append(Place(folder, recipe.method.name, recipe.seed, recipe.model.name))
        settings.append(_settings(recipe))
    named = []
    for place, own in zip(places, settings, strict=True):
        alike = [other for p, other in zip(places, settings, strict=True) if p.variant == place.variant]
        usual = {name: max(values := [other.get(name) for other in alike], key=values.count) for name in own}
        differing = {name.rpartition(".")[2]: value for name, value in own.items() if value != usual[name]}
        suffix = "".join(f", {name} {value}" for name, value in differing.items())
        named.append(replace(place, variant=place.variant + suffix))
    return named


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Those that tell a row's training from another one's, flat."""
    flat = flatten(recipe.model_dump(mode="json"))
    return {name: value for name, value in flat.items() if not name.startswith(NOT_OF_THE_ROW)}


def read(places: Sequence[Place]) -> tuple[list[Run], list[Missing]]:
    """Runs that are done and can be compared with each other, and those that are missing, each in the places' order.

    Runs of one model are compared where they were trained on one number of ranks under one ds_config, and tested on the
    same number of questions of the same data sets in the same way, as most of them are (as the first, of equally many).
    """
    runs: list[Run] = []
    missing: list[Missing] = []
    for place in places:
        try:
            runs.append(_read(place))
        except InputError as error:
            missing.append(Missing(place, str(error)))
    for steps in (_on_the_same_data, _under_the_same_conditions, _once):
        runs, out = steps(runs)
        missing += out
    return runs, sorted(missing, key=lambda one: places.index(one.place))


def _read(place: Place) -> Run:
    """Raises InputError with the reason why there is nothing to read."""
    file = place.folder / "results.json"
    if not file.is_file():
        raise InputError(fault_of(place.folder, place.recipe))
    saved = saved_recipe(place.folder)
    if place.recipe and decisive(place.recipe) != decisive(saved):
        raise InputError(fault_of(place.folder, place.recipe))
    results = read_results(file)
    return Run(place, saved, results, conditions(place.folder, results.world_size))


def read_results(file: Path) -> Results:
    """A `results.json`, checked.

    Raises:
        InputError: half-written, or a field is missing or of another kind, as in one of another version.
    """
    try:
        return Results.model_validate(read_json(file, file.name))
    except ValidationError as error:
        raise InputError(f"{file}: not of this version ({_faults(error)}): run it again") from None
    except InputError as error:
        raise InputError(f"{file}: half-written or damaged ({error}): run it again") from None


def _faults(error: ValidationError) -> str:
    several = [f"{'.'.join(map(str, one['loc']))}: {one['msg'].lower()}" for one in error.errors()]
    return "; ".join(several[:FAULTS]) + f" and {len(several) - FAULTS} more" * (len(several) > FAULTS)


def conditions(folder: Path, world_size: int) -> dict[str, Any]:
    """What a run's scores depend on beside its recipe: number of ranks and what the ds_config decides, flat.

    Raises:
        InputError: the run's `ds_config.json` is gone or not JSON.
    """
    file = folder / "ds_config.json"
    try:
        config = read_json(file, file.name)
        if not isinstance(config, dict):
            raise InputError("no JSON object")
    except InputError as error:
        raise InputError(f"{file}: cannot be read ({error}): delete the run's folder and run it again") from None
    decided = flatten({name: value for name, value in config.items() if name not in DECIDED_ELSEWHERE})
    own = {f"ds_config {name}": value for name, value in decided.items() if not name.endswith(SIZES)}
    return {"world_size": world_size, **own}


def _tested(run: Run) -> dict[str, Any]:
    data, reading = run.recipe.data, run.recipe.eval
    return {
        **{f"questions of {name}": one.total for name, one in run.results.eval.items()},
        "data sets": ", ".join(run.results.eval),
        "data.holdout_fraction": data.holdout_fraction,
        "data.max_eval_examples": data.max_eval_examples,
        "eval.select_on": reading.select_on,
        "eval.n_best": reading.n_best,
        "eval.max_answer_tokens": reading.max_answer_tokens,
        "eval.beams": reading.beams,
    }


def _on_the_same_data(runs: Sequence[Run]) -> tuple[list[Run], list[Missing]]:
    return _as_most(runs, _tested, "tested otherwise than the others")


def _under_the_same_conditions(runs: Sequence[Run]) -> tuple[list[Run], list[Missing]]:
    return _as_most(runs, lambda run: run.conditions, "trained otherwise than the others")


def _as_most(runs: Sequence[Run], what: Callable[[Run], dict], fault: str) -> tuple[list[Run], list[Missing]]:
    """Of each model's runs those for which `what` is as for most of them, and the others."""
    by_model: dict[str, list[dict]] = {}
    for run in runs:
        by_model.setdefault(run.place.block[0], []).append(what(run))
    usual = {model: max(found, key=found.count) for model, found in by_model.items()}
    kept, out = [], []
    for run in runs:
        if differing := differences(what(run), usual[run.place.block[0]]):
            out.append(Missing(run.place, f"{fault} ({differing})"))
        else:
            kept.append(run)
    return kept, out


def _once(runs: Sequence[Run]) -> tuple[list[Run], list[Missing]]:
    """The first run of each variant, point and seed: a second one would count its seed twice."""
    first: dict[Hashable, Path] = {}
    kept, out = [], []
    for run in runs:
        model, labels = run.place.block
        key = (run.place.variant, run.place.seed, model, *labels.items())
        if key in first:
            out.append(Missing(run.place, f"the same variant and seed as {first[key]}, which is in the table"))
        else:
            first[key] = run.place.folder
            kept.append(run)
    return kept, out


def settings_notes(rows: Mapping[str, Sequence[Run]]) -> list[str]:
    """A line for each setting outside of `method` in which rows differ."""
    by_row = {row: [_settings(run.recipe) for run in several] for row, several in rows.items() if several}
    names = dict.fromkeys(name for several in by_row.values() for one in several for name in one)
    notes = []
    for name in names:
        found: dict[str, list[str]] = {}  # rows by value
        for row, several in by_row.items():
            for value in dict.fromkeys(json.dumps(one.get(name)) for one in several):
                found.setdefault(value, []).append(row)
        if len(found) > 1 and not name.startswith("method."):
            values = "; ".join(f"{value} in {', '.join(several)}" for value, several in found.items())
            notes.append(f"Rows differ in more than the method: {name} is {values}.")
    return notes


def version_note(runs: Sequence[Run]) -> list[str]:
    """A line where runs were made by different versions of a package."""
    counts: dict[str, Counter] = {}
    for run in runs:
        for package, version in run.results.versions.items():
            counts.setdefault(package, Counter())[version] += 1
    mixed = {package: found for package, found in counts.items() if len(found) > 1}
    several = [
        f"{p} " + ", ".join(f"{v} ({n} run{'s'[: n > 1]})" for v, n in found.items()) for p, found in mixed.items()
    ]
    return [f"The runs were made by different versions: {'; '.join(several)}."] if several else []


def log_line(missing: Missing) -> str:
    place = missing.place
    at = ", ".join([place.variant, *place.labels.values(), f"seed {place.seed}"])
    log = log_of(place.folder)
    return f"{at}: {missing.reason} ({log if log.is_file() else place.folder})"
