"""Which runs go into a table: found in folders, and compared only with runs made under the same conditions."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swep_ds.common.errors import InputError
from swep_ds.common.files import public_names, read_json, user_path
from swep_ds.common.settings import differences, flatten, without
from swep_ds.evaluation.results import RESULTS, Results, read_results
from swep_ds.pipeline.folder import MAY_CHANGE_ON_RESUME, RECIPE, UNAVERAGED, RunFolder
from swep_ds.pipeline.recipe import NEUTRAL, Recipe
from swep_ds.sweeps.conditions import conditions
from swep_ds.sweeps.sweep import (
    DESCRIPTION,
    Cell,
    Primary,
    fault_of,
    identity,
    log_of,
    saved_recipe,
    unaveraged,
    warn_of_unnamed,
)

MODEL = "model"  # the axis whose labels head the table's blocks
# settings in which runs of one row may differ
NOT_OF_THE_ROW = (*NEUTRAL, "seed", "model.name", "train.checkpoint_every", "eval.batch_size")
SOURCES = ("model.name", "data.train", "data.augmented", "pretrain.train")  # compared by the files that they name


@dataclass(frozen=True)
class RunRef:
    """A folder that holds, or should hold, a run."""

    folder: Path
    variant: str
    seed: int
    model: str
    labels: dict[str, str] = field(default_factory=dict)  # by axis
    recipe: Recipe | None = None  # the recipe that the run should have; None = whatever its folder holds
    primary: Primary | None = None  # its sweep's

    @property
    def block(self) -> tuple[str, dict[str, str]]:
        """(model, labels of the other axes): the run's block in the table."""
        return self.labels.get(MODEL, self.model), {k: v for k, v in self.labels.items() if k != MODEL}


@dataclass(frozen=True)
class Run:
    """A finished run."""

    ref: RunRef
    recipe: Recipe
    results: Results
    conditions: dict[str, Any]  # see `conditions`
    global_batch: int


@dataclass(frozen=True)
class MissingRun:
    """A run that is not in the table, and the reason in one line."""

    ref: RunRef
    reason: str

    @property
    def line(self) -> str:
        """Run, reason and the file or folder to look at, for people."""
        labels = ", ".join([self.ref.variant, *self.ref.labels.values(), f"seed {self.ref.seed}"])
        log = log_of(self.ref.folder)
        return f"{labels}: {self.reason} ({log if log.is_file() else self.ref.folder})"

    def entry(self) -> dict[str, Any]:
        ref = self.ref
        return {"name": ref.variant, "labels": ref.labels, "seed": ref.seed, "reason": self.reason, "line": self.line}


# Finding runs


def refs_of_cells(cells: Sequence[Cell]) -> list[RunRef]:
    """The runs of a sweep, each with its recipe; after one with `train.average`, the row of its last weights."""
    refs = []
    for cell in cells:
        model = cell.recipe.model.name
        ref = RunRef(cell.folder, cell.variant, cell.seed, model, cell.labels, cell.recipe, cell.primary)
        refs.append(ref)
        if cell.recipe.train.average != "none":
            refs.append(replace(_unaveraged(ref), recipe=cell.recipe.unaveraged()))
    return refs


def _unaveraged(ref: RunRef) -> RunRef:
    """The same training with its last weights in place of their mean, a row of its own."""
    return replace(ref, folder=ref.folder / UNAVERAGED, variant=unaveraged(ref.variant))


def find_runs(folders: Iterable[Path]) -> list[RunRef]:
    """The runs in `folders`, each the folder of a sweep (with `sweep.json`), of a run, or of several of these.

    A run that no sweep describes is named by its method and by the settings in which it differs from most runs of it.
    A run with `train.average` is followed by the same training without it, from `unaveraged/`.

    Raises InputError: no such folder, or a folder without runs.
    """
    refs: list[RunRef] = []
    others: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder: name the folder of a sweep or of a run")
        if any((folder / name).is_file() for name in (DESCRIPTION, RECIPE)):
            candidates = [folder]
        else:
            candidates = sorted(folder.iterdir())
        sweeps = [candidate for candidate in candidates if (candidate / DESCRIPTION).is_file()]
        runs = [candidate for candidate in candidates if candidate not in sweeps and (candidate / RECIPE).is_file()]
        if not runs and not sweeps:
            raise InputError(f"{folder}: holds no run: name the folder of a sweep, or of a run, with its recipe.yaml")
        others += runs
        for sweep in sweeps:
            refs += _runs_of_sweep(sweep)
    found = []
    for ref in refs + _name_runs(others):
        found.append(ref)
        if (ref.folder / UNAVERAGED / RECIPE).is_file():
            found.append(_unaveraged(ref))
    return found


def _runs_of_sweep(folder: Path) -> list[RunRef]:
    sweep = read_json(folder / DESCRIPTION)
    primary = tuple(sweep["primary"]) if sweep.get("primary") else None
    warn_of_unnamed(folder, sweep["runs"])
    return [RunRef(folder / name, **entry, primary=primary) for name, entry in sweep["runs"].items()]


def _name_runs(folders: Iterable[Path]) -> list[RunRef]:
    refs: list[RunRef] = []
    settings: list[dict[str, str]] = []
    for folder in folders:
        try:
            recipe = saved_recipe(folder)
        except InputError:
            refs.append(RunRef(folder, folder.name, 0, "?"))  # `read_runs` says why
            settings.append({})
        else:
            refs.append(RunRef(folder, recipe.method.name, recipe.seed, recipe.model.name))
            settings.append({name: str(value) for name, value in _row_settings(recipe).items()})
    counts: dict[tuple[str, str], Counter[str | None]] = {}  # of values, by method and setting; None where it is absent
    for name in dict.fromkeys(name for values in settings for name in values):
        for ref, values in zip(refs, settings, strict=True):
            counts.setdefault((ref.variant, name), Counter())[values.get(name)] += 1
    differing = []
    for ref, values in zip(refs, settings, strict=True):
        usual = {name: counts[ref.variant, name].most_common(1)[0][0] for name in values}
        differing.append({name: value for name, value in values.items() if value != usual[name]})
    shown = public_names(value for values in differing for value in values.values())
    named = []
    for ref, values in zip(refs, differing, strict=True):
        suffix = [f", {name.rpartition('.')[2]} {shown[value]}" for name, value in values.items()]
        named.append(replace(ref, variant=ref.variant + "".join(suffix)))
    return named


def _row_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings, flat, that runs of one row share."""
    return without(flatten(recipe.model_dump(mode="json")), NOT_OF_THE_ROW)


# Reading and comparing them


def read_runs(refs: Sequence[RunRef]) -> tuple[list[Run], list[MissingRun]]:
    """The finished runs that can be compared with each other, and the missing ones, each in the order of `refs`.

    Runs of a model are comparable if they trained under the same ds_config, and were tested on the same number of
    questions of the same data sets in the same way, as the majority was (in a tie, the first). Runs of a row have the
    settings and the global batch of most of them. Runs that name the same file or test set read the same bytes, and so
    did the runs of a row.
    """
    runs: list[Run] = []
    missing: list[MissingRun] = []
    for ref in refs:
        try:
            runs.append(_read_run(ref))
        except InputError as error:
            missing.append(MissingRun(ref, str(error)))
    for reasons_of in (_tested_differently, _trained_differently, _with_other_settings, _read_other_files, _repeated):
        kept = []
        for run, reason in zip(runs, reasons_of(runs), strict=True):
            if reason:
                missing.append(MissingRun(run.ref, reason))
            else:
                kept.append(run)
        runs = kept
    return runs, sorted(missing, key=lambda run: refs.index(run.ref))


def _read_run(ref: RunRef) -> Run:
    """Raises InputError with the reason why there are no results."""
    file = ref.folder / RESULTS
    if not file.is_file():
        raise InputError(fault_of(ref.folder, ref.recipe))
    recipe = saved_recipe(ref.folder)
    if ref.recipe and identity(ref.recipe) != identity(recipe):
        raise InputError(fault_of(ref.folder, ref.recipe))
    results = read_results(file)
    batch = RunFolder(ref.folder).global_batch(recipe, results.world_size)
    return Run(ref, recipe, results, conditions(ref.folder), batch)


# Each of the following gives for each run the reason to exclude it, else "".


def _tested_differently(runs: Sequence[Run]) -> Iterator[str]:
    def conditions_of(run: Run) -> dict[str, Any]:
        data, testing = run.recipe.data, run.recipe.eval
        return {
            **{f"questions of {name}": score.total for name, score in run.results.eval.items()},
            "data sets": ", ".join(run.results.eval),
            "data.holdout_fraction": data.holdout_fraction,
            "data.max_eval_examples": data.max_eval_examples,
            "data.unanswerable": data.unanswerable,
            "data.repeated_answers": data.repeated_answers if data.holdout_fraction else None,
            "eval.select_on": testing.select_on,
            "eval.scorer": (testing.scorer, testing.language),
            "eval.n_best": testing.n_best,
            "eval.max_answer_tokens": testing.max_answer_tokens,
            "eval.beams": testing.beams,
        }

    return _unlike_majority(runs, "tested", conditions_of, _model)


def _trained_differently(runs: Sequence[Run]) -> Iterator[str]:
    return _unlike_majority(runs, "trained", lambda run: run.conditions, _model)


def _with_other_settings(runs: Sequence[Run]) -> Iterator[str]:
    """A row has one global batch, whatever number of ranks divides it."""

    def settings_of(run: Run) -> dict[str, Any]:
        settings = without(_row_settings(run.recipe), (*MAY_CHANGE_ON_RESUME, *SOURCES))
        return settings | {"global batch": run.global_batch}

    return _unlike_majority(runs, "trained", settings_of, _row)


def _model(run: Run) -> Hashable:
    return run.ref.block[0]


def _row(run: Run) -> Hashable:
    model, labels = run.ref.block
    return (run.ref.variant, model, *labels.items())


def _unlike_majority(
    runs: Sequence[Run],
    verb: str,
    conditions_of: Callable[[Run], dict[str, Any]],
    group_of: Callable[[Run], Hashable],
) -> Iterator[str]:
    """Excludes a run whose conditions are not those of most runs of its group."""
    groups: dict[Hashable, list[dict[str, Any]]] = {}
    folders = {(group_of(run), run.ref.folder) for run in runs}
    for run in runs:
        if (group_of(run), run.ref.folder.parent) not in folders:  # a training has one vote, though it has two rows
            groups.setdefault(group_of(run), []).append(conditions_of(run))
    usual = {group: max(conditions, key=conditions.count) for group, conditions in groups.items()}
    for run in runs:
        differing = differences(conditions_of(run), usual[group_of(run)])
        yield f"{verb} differently from the others ({differing})" if differing else ""


def _read_other_files(runs: Sequence[Run]) -> Iterator[str]:
    """Excludes a run if a file that it read held something else for most runs that it is compared with.

    These are the runs of a model that name the same file or the same test set, and, whatever they name, the runs of a
    row. What has no checksum, such as a hub id, is compared by its name, within a row.
    """

    def read(run: Run) -> Iterator[tuple[str, str, Hashable]]:
        """(field, content, key of the runs that should have the same)"""
        named = flatten(run.recipe.model_dump(mode="json"))
        for name, checksum in run.results.inputs.items():
            if name.startswith("data.eval."):
                yield name, checksum, (name, _model(run))
            else:
                yield name, checksum, (name, named.get(name), _model(run))
                yield name, checksum, (name, _row(run))
        sources = {name: str(named.get(name)) for name in SOURCES}
        sources |= {f"data.eval.{name}": source for name, source in run.recipe.data.eval.items()}
        for name, source in sources.items():
            # a path without a checksum is one of an earlier version's results, and differs from host to host
            if name not in run.results.inputs and not user_path(source, name).is_absolute():
                yield name, source, (name, "by its name", _row(run))

    contents: dict[Hashable, Counter[str]] = {}
    for run in runs:
        for _, content, key in read(run):
            contents.setdefault(key, Counter())[content] += 1
    for run in runs:
        changed = [name for name, content, key in read(run) if content != contents[key].most_common(1)[0][0]]
        yield f"read other files than the others ({', '.join(dict.fromkeys(changed))})" if changed else ""


def _repeated(runs: Sequence[Run]) -> Iterator[str]:
    """Excludes a run if an earlier one has its variant, point and seed."""
    first: dict[Hashable, Run] = {}
    for run in runs:
        earlier = first.setdefault((run.ref.seed, _row(run)), run)
        yield "" if earlier is run else f"the same variant and seed as {earlier.ref.folder}, which is in the table"


# Notes


def settings_notes(rows: Mapping[str, Sequence[Run]]) -> list[str]:
    """A line for each setting outside `method` in which rows differ. A row of last weights has its mean's settings."""
    folders = {run.ref.folder / UNAVERAGED for runs in rows.values() for run in runs}
    settings = {}
    for row, runs in rows.items():
        of_row = [run for run in runs if run.ref.folder not in folders]
        settings[row] = [_row_settings(run.recipe) | {"global batch": run.global_batch} for run in of_row]
    notes = []
    for name in dict.fromkeys(name for of_row in settings.values() for values in of_row for name in values):
        rows_by_value: dict[str, list[str]] = {}  # by value as JSON
        for row, of_row in settings.items():
            for value in dict.fromkeys(json.dumps(values.get(name)) for values in of_row):
                rows_by_value.setdefault(value, []).append(row)
        if len(rows_by_value) > 1 and not name.startswith("method."):
            listed = "; ".join(f"{value} in {', '.join(names)}" for value, names in rows_by_value.items())
            notes.append(f"Rows differ in more than the method: {name} is {listed}.")
    return notes


def version_note(runs: Sequence[Run]) -> list[str]:
    """One line if runs were made by different versions of a package, else none."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        for package, version in run.results.versions.items():
            counts.setdefault(package, Counter())[version] += 1
    mixed = []
    for package, versions in counts.items():
        if len(versions) > 1:
            listed = [f"{version} ({n} run{'' if n == 1 else 's'})" for version, n in versions.items()]
            mixed.append(f"{package} {', '.join(listed)}")
    return [f"The runs were made by different versions: {'; '.join(mixed)}."] if mixed else []
