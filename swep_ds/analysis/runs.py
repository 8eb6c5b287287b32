"""Which runs go into a table: found in folders, and compared only with runs made under the same conditions."""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swep_ds.common.errors import InputError
from swep_ds.common.files import public_names, read_json
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
class Run:
    """A folder that holds, or should hold, a run: as `find_runs` found it, or with what `read_runs` read."""

    folder: Path
    variant: str
    seed: int
    model: str
    labels: dict[str, str] = field(default_factory=dict)  # by axis
    recipe: Recipe | None = None  # before it is read that which the run should have; None = whatever its folder holds
    primary: Primary | None = None  # its sweep's
    results: Results | None = None
    reason: str = ""  # why it is not in the table

    @property
    def block(self) -> tuple:
        """(model, (axis, label) of each other axis): the run's block in the table."""
        others = [(axis, label) for axis, label in self.labels.items() if axis != MODEL]
        return self.labels.get(MODEL, self.model), *others

    @property
    def line(self) -> str:
        """A missing run, the reason and the file or folder to look at, for people."""
        place = log_of(self.folder)
        if not place.is_file():
            place = self.folder
        labels = ", ".join([self.variant, *self.labels.values(), f"seed {self.seed}"])
        return f"{labels}: {self.reason} ({place})"


# Finding runs


def runs_of_cells(cells: Sequence[Cell]) -> list[Run]:
    """The runs of a sweep, each with its recipe; after one with `train.average`, the row of its last weights."""
    runs = []
    for cell in cells:
        model = cell.recipe.model.name
        run = Run(cell.folder, cell.variant, cell.seed, model, cell.labels, cell.recipe, cell.primary)
        runs.append(run)
        if cell.recipe.train.average != "none":
            runs.append(replace(_unaveraged(run), recipe=cell.recipe.unaveraged()))
    return runs


def _unaveraged(run: Run) -> Run:
    """The same training with its last weights in place of their mean, a row of its own."""
    return replace(run, folder=run.folder / UNAVERAGED, variant=unaveraged(run.variant))


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in `folders`, each the folder of a sweep (with `sweep.json`), of a run, or of several of these.

    A run that no sweep describes is named by its method and by the settings in which it differs from most runs of it.
    A run with `train.average` is followed by the same training without it, from `unaveraged/`.

    Raises InputError: no such folder, or a folder without runs.
    """
    runs: list[Run] = []
    without_sweep: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder: name the folder of a sweep or of a run")
        candidates = sorted(folder.iterdir())
        if _is_sweep(folder) or _is_run(folder):
            candidates = [folder]
        sweeps = [candidate for candidate in candidates if _is_sweep(candidate)]
        others = [candidate for candidate in candidates if _is_run(candidate) and not _is_sweep(candidate)]
        if not sweeps and not others:
            raise InputError(f"{folder}: holds no run: name the folder of a sweep, or of a run, with its recipe.yaml")
        for sweep in sweeps:
            runs += _runs_of_sweep(sweep)
        without_sweep += others
    rows = []
    for run in runs + _name_runs(without_sweep):
        rows.append(run)
        if _is_run(run.folder / UNAVERAGED):
            rows.append(_unaveraged(run))
    return rows


def _is_sweep(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file()


def _is_run(folder: Path) -> bool:
    return (folder / RECIPE).is_file()


def _runs_of_sweep(folder: Path) -> list[Run]:
    sweep = read_json(folder / DESCRIPTION)
    primary = None
    if "primary" in sweep:
        primary = tuple(sweep["primary"])
    warn_of_unnamed(folder, sweep["runs"])
    return [Run(folder / name, **entry, primary=primary) for name, entry in sweep["runs"].items()]


def _name_runs(folders: Iterable[Path]) -> list[Run]:
    runs: list[Run] = []
    settings: list[dict[str, str]] = []
    for folder in folders:
        try:
            recipe = saved_recipe(folder)
        except InputError:
            runs.append(Run(folder, folder.name, 0, "?"))  # `read_runs` says why
            settings.append({})
        else:
            runs.append(Run(folder, recipe.method.name, recipe.seed, recipe.model.name))
            settings.append({name: str(value) for name, value in _row_settings(recipe).items()})
    names = {name for values in settings for name in values}
    usual = _most_frequent(
        ((run.variant, name), values.get(name)) for run, values in zip(runs, settings, strict=True) for name in names
    )
    differing = []
    for run, values in zip(runs, settings, strict=True):
        differing.append({name: value for name, value in values.items() if value != usual[run.variant, name]})
    shown = public_names(value for values in differing for value in values.values())
    named = []
    for run, values in zip(runs, differing, strict=True):
        parts = [f"{name.rpartition('.')[2]} {shown[value]}" for name, value in values.items()]
        named.append(replace(run, variant=", ".join([run.variant, *parts])))
    return named


def _row_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings, flat, that runs of one row share."""
    return without(flatten(recipe.model_dump(mode="json")), NOT_OF_THE_ROW)


def _most_frequent(pairs: Iterable[tuple[Hashable, Hashable]]) -> dict[Hashable, Any]:
    """By key its most frequent value, the first of equals."""
    counts: dict[Hashable, Counter] = {}
    for key, value in pairs:
        counts.setdefault(key, Counter())[value] += 1
    return {key: counter.most_common(1)[0][0] for key, counter in counts.items()}


# Reading and comparing them


def read_runs(found: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The finished runs that can be compared with each other, and the missing ones with their reasons.

    Runs of a model are comparable if they trained under the same ds_config, and were tested on the same number of
    questions of the same data sets in the same way, as the majority was (in a tie, the first). Runs of a row have the
    settings and the global batch of most of them. Runs that name the same file or test set read the same bytes, and so
    did the runs of a row.
    """
    runs = [_read(run) for run in found]
    for check in (_unlike_their_model, _unlike_their_row, _read_other_files, _repeated):
        left = [number for number, run in enumerate(runs) if not run.reason]
        for number, reason in zip(left, check([runs[number] for number in left]), strict=True):
            runs[number] = replace(runs[number], reason=reason)
    return [run for run in runs if not run.reason], [run for run in runs if run.reason]


def _read(run: Run) -> Run:
    """The run with its recipe and results, or with the reason why there are none."""
    try:
        if not (run.folder / RESULTS).is_file():
            return replace(run, reason=fault_of(run.folder, run.recipe))
        recipe = saved_recipe(run.folder)
        if run.recipe and identity(run.recipe) != identity(recipe):
            return replace(run, reason=fault_of(run.folder, run.recipe))
        conditions(run.folder)  # raises if its ds_config cannot be read
        return replace(run, recipe=recipe, results=read_results(run.folder / RESULTS))
    except InputError as error:
        return replace(run, reason=str(error))


def _model(run: Run) -> Hashable:
    return run.block[0]


def _row(run: Run) -> Hashable:
    return run.variant, *run.block


# Each of the following gives for each run the reason to exclude it, else "".


def _unlike_their_model(runs: Sequence[Run]) -> list[str]:
    """All runs of a model trained under one ds_config, and were tested in the same way."""
    settings = []
    for run in runs:
        data = run.recipe.data
        tested = {f"questions of {name}": score.total for name, score in run.results.eval.items()}
        tested |= {"data sets": ", ".join(run.results.eval)}
        tested |= {f"data.{name}": getattr(data, name) for name in ("holdout_fraction", "max_eval_examples")}
        tested |= {"data.unanswerable": data.unanswerable}
        if data.holdout_fraction:
            tested["data.repeated_answers"] = data.repeated_answers
        of_eval = run.recipe.eval.model_dump(mode="json", exclude={"batch_size"})
        tested |= {f"eval.{name}": value for name, value in of_eval.items()}
        settings.append(tested | conditions(run.folder))
    return _unlike_most(runs, list(map(_model, runs)), settings)


def _unlike_their_row(runs: Sequence[Run]) -> list[str]:
    """All runs of a row have its settings and one global batch, whatever number of ranks divides it."""
    settings = [without(_all_settings(run), (*MAY_CHANGE_ON_RESUME, *SOURCES)) for run in runs]
    return _unlike_most(runs, list(map(_row, runs)), settings)


def _unlike_most(runs: Sequence[Run], groups: Sequence[Hashable], settings: Sequence[dict[str, Any]]) -> list[str]:
    """Excludes a run whose settings are not those of most runs of its group."""
    folders = {(group, run.folder) for group, run in zip(groups, runs, strict=True)}
    votes = []
    for run, group, values in zip(runs, groups, settings, strict=True):
        if (group, run.folder.parent) not in folders:  # a training has one vote, though it has two rows
            votes.append((group, json.dumps(values)))
    usual = _most_frequent(votes)
    differing = [differences(values, json.loads(usual[g])) for g, values in zip(groups, settings, strict=True)]
    return [f"made differently from the others ({each})" if each else "" for each in differing]


def _read_other_files(runs: Sequence[Run]) -> list[str]:
    """Excludes a run if a file that it read held something else for most runs that it is compared with.

    These are the runs of a model that name the same file or the same test set, and, whatever they name, the runs of a
    row. What has no checksum, such as a hub id, is compared by its name, within a row.
    """
    read = [list(_files(run)) for run in runs]
    usual = _most_frequent((key, content) for files in read for _, content, key in files)
    reasons = []
    for files in read:
        changed = dict.fromkeys(name for name, content, key in files if content != usual[key])
        reasons.append(f"read other files than the others ({', '.join(changed)})" if changed else "")
    return reasons


def _files(run: Run) -> Iterator[tuple[str, str, Hashable]]:
    """(field, content, key of the runs that should have the same) of each file that a run read."""
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
        if name not in run.results.inputs:
            yield name, source, (name, "by its name", _row(run))


def _repeated(runs: Sequence[Run]) -> list[str]:
    """Excludes a run if an earlier one has its variant, point and seed."""
    first: dict[Hashable, Run] = {}
    reasons = []
    for run in runs:
        earlier = first.setdefault((run.seed, _row(run)), run)
        is_first = earlier is run
        reasons.append("" if is_first else f"the same variant and seed as {earlier.folder}, which is in the table")
    return reasons


def settings_notes(rows: Mapping[str, Sequence[Run]]) -> list[str]:
    """A line for each setting outside `method` in which rows differ. A row of last weights has its mean's settings."""
    last_weights = {run.folder / UNAVERAGED for runs in rows.values() for run in runs}
    settings = []
    for row, runs in rows.items():
        settings += [(row, _all_settings(run)) for run in runs if run.folder not in last_weights]
    notes = []
    for name in dict.fromkeys(name for _, values in settings for name in values if not name.startswith("method.")):
        rows_by_value: dict[str, dict[str, None]] = {}  # by value as JSON
        for row, values in settings:
            rows_by_value.setdefault(json.dumps(values.get(name)), {})[row] = None
        if len(rows_by_value) > 1:
            listed = "; ".join(f"{value} in {', '.join(names)}" for value, names in rows_by_value.items())
            notes.append(f"Rows differ in more than the method: {name} is {listed}.")
    return notes


def _all_settings(run: Run) -> dict[str, Any]:
    batch = RunFolder(run.folder).global_batch(run.recipe, run.results.world_size)
    return _row_settings(run.recipe) | {"global batch": batch}


def version_note(runs: Sequence[Run]) -> list[str]:
    """One line if runs were made by different versions of a package, else none."""
    versions: dict[str, dict[str, None]] = {}
    for run in runs:
        for package, version in run.results.versions.items():
            versions.setdefault(package, {})[version] = None
    mixed = [f"{package} {', '.join(each)}" for package, each in versions.items() if len(each) > 1]
    return [f"The runs were made by different versions: {'; '.join(mixed)}."] if mixed else []
