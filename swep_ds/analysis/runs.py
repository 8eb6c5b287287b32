"""Which runs go into a table: found in folders, and compared only with runs made under the same conditions."""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from swep_ds.common.errors import InputError
from swep_ds.common.files import public_names, read_json
from swep_ds.common.settings import differences, flatten, without
from swep_ds.evaluation.results import RESULTS, Results, read_results
from swep_ds.pipeline.folder import DS_CONFIG, MAY_CHANGE_ON_RESUME, RECIPE, UNAVERAGED, RunFolder
from swep_ds.pipeline.recipe import NEUTRAL, SAVING, Recipe
from swep_ds.sweeps import sweep
from swep_ds.sweeps.conditions import conditions

MODEL = "model"  # the axis whose labels head the table's blocks
# settings in which runs of one row may differ
NOT_OF_THE_ROW = (*NEUTRAL, SAVING, "seed", "model.name")
OF_THE_TEST = ("data.holdout_fraction", "data.max_eval_examples", "data.unanswerable", "data.columns")
SOURCES = ("model.name", "data.augmented", "pretrain.train")  # compared by their files, as `DataSection.sources` are


@dataclass(frozen=True)
class Run:
    """A folder that holds, or should hold, a run: as `find_runs` found it, or with what `read_runs` read."""

    folder: Path
    variant: str
    seed: int
    model: str
    labels: dict[str, str] = field(default_factory=dict)  # by axis
    recipe: Recipe | None = None  # before it is read that which the run should have; None = whatever its folder holds
    primary: tuple[str, ...] | None = None  # its sweep's primary comparison
    secondary: tuple[tuple[str, ...], ...] = ()  # its sweep's secondary comparisons
    results: Results | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # flat, those that runs of its row share
    reason: str = ""  # why it is not in the table

    @property
    def block(self) -> tuple:
        """(model, (axis, label) of each other axis): the run's block in the table."""
        others = [(axis, label) for axis, label in self.labels.items() if axis != MODEL]
        return self.labels.get(MODEL, self.model), *others

    @property
    def line(self) -> str:
        """A missing run, the reason and the file or folder to look at, for people."""
        log = sweep.log_of(self.folder)
        labels = ", ".join([self.variant, *self.labels.values(), f"seed {self.seed}"])
        return f"{labels}: {self.reason} ({log if log.is_file() else self.folder})"


def runs_of_cells(cells: Sequence[sweep.Cell]) -> list[Run]:
    """The runs of a sweep, each with its recipe; after one with `train.average`, the row of its last weights."""
    runs = []
    for cell in cells:
        recipe = cell.recipe
        registered = cell.primary, cell.secondary
        run = Run(cell.folder, cell.variant, cell.seed, recipe.model.name, cell.labels, recipe, *registered)
        runs.append(run)
        if recipe.train.average != "none":
            runs.append(replace(_unaveraged(run), recipe=recipe.unaveraged()))
    return runs


def _unaveraged(run: Run) -> Run:
    """The same training with its last weights in place of their mean, a row of its own."""
    return replace(run, folder=run.folder / UNAVERAGED, variant=sweep.unaveraged(run.variant))


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
        candidates = [folder, *sorted(folder.iterdir())]
        sweeps = [place for place in candidates if (place / sweep.DESCRIPTION).is_file()]
        places = [place for place in candidates if place in sweeps or (place / RECIPE).is_file()]
        if not places:
            raise InputError(f"{folder}: holds no run: name the folder of a sweep, or of a run, with its recipe.yaml")
        if folder in places:
            places = [folder]
        for place in places:
            if place not in sweeps:
                without_sweep.append(place)
                continue
            described = read_json(place / sweep.DESCRIPTION)
            registered = {
                "primary": tuple(described.get("primary", ())) or None,
                "secondary": tuple(map(tuple, described.get("secondary", ()))),
            }
            sweep.warn_of_unnamed(place, described["runs"])
            runs += [Run(place / name, **entry, **registered) for name, entry in described["runs"].items()]
    rows = []
    for run in runs + _name_runs(without_sweep):
        rows.append(run)
        if (run.folder / UNAVERAGED / RECIPE).is_file():
            rows.append(_unaveraged(run))
    return rows


def _name_runs(folders: Iterable[Path]) -> list[Run]:
    listed: list[tuple[Run, dict[str, str]]] = []
    for folder in folders:
        try:
            recipe = sweep.saved_recipe(folder)
        except InputError:
            listed.append((Run(folder, folder.name, 0, "?"), {}))  # `read_runs` says why
            continue
        run = Run(folder, recipe.method.name, recipe.seed, recipe.model.name)
        listed.append((run, {name: str(value) for name, value in _row_settings(recipe).items()}))
    names = {name for _, settings in listed for name in settings}
    usual = _most_frequent(((run.variant, name), settings.get(name)) for run, settings in listed for name in names)
    differing = []
    for run, settings in listed:
        differing.append({name: value for name, value in settings.items() if value != usual[run.variant, name]})
    shown = public_names(value for settings in differing for value in settings.values())
    named = []
    for (run, _), settings in zip(listed, differing, strict=True):
        parts = [f"{name.rpartition('.')[2]} {shown[value]}" for name, value in settings.items()]
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


def read_runs(listed: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The finished runs that can be compared with each other, and the missing ones with their reasons.

    Runs of a model are comparable if they trained under one ds_config, were tested on the same questions in the same
    way, and read the same bytes from files of one name. Runs of a row also have one batch, and their settings and
    files. In each of these the majority decides, in a tie the first run. A row has one run for each seed.
    """
    read: list[tuple[Run, dict[tuple, str]]] = []
    for run in listed:
        try:
            finished = _read(run)
            read.append((finished, _shared(finished)))
        except InputError as error:
            read.append((replace(run, reason=str(error)), {}))
    usual = _most_frequent(fact for _, shared in read for fact in shared.items())
    earlier: dict[Hashable, Run] = {}
    done, missing = [], []
    for run, shared in read:
        reason = run.reason or _unlike(shared, usual)
        if not reason:
            first = earlier.setdefault((run.variant, run.block, run.seed), run)
            if first is not run:
                reason = f"the same variant and seed as {first.folder}, which is in the table"
        if reason:
            missing.append(replace(run, reason=reason))
        else:
            done.append(run)
    return done, missing


def _read(run: Run) -> Run:
    """The run with its recipe, results and settings. Raises InputError: why there are none."""
    if (run.folder / RESULTS).is_file():
        recipe = sweep.saved_recipe(run.folder)
        if run.recipe is None or sweep.identity(run.recipe) == sweep.identity(recipe):
            results = read_results(run.folder / RESULTS)
            batch = RunFolder(run.folder).global_batch(recipe, results.world_size)
            settings = _row_settings(recipe) | {"global batch": batch}
            return replace(run, recipe=recipe, results=results, settings=settings)
    raise InputError(sweep.fault_of(run.folder, run.recipe))


def _shared(run: Run) -> dict[tuple, str]:
    """What other runs of the model or of the row must have, too: (name, who shares it) -> value as JSON. Files are
    compared by their checksums, and sources without one, such as hub ids, by their names.

    Raises InputError: its ds_config cannot be read.
    """
    model = run.block[0]
    row = (run.variant, *run.block)
    data = run.recipe.data
    settings = run.settings
    tested = {f"questions of {name}": score["total"] for name, score in run.results.eval.items()}
    tested["data sets"] = ", ".join(run.results.eval)
    tested |= {name: value for name, value in settings.items() if name.startswith(("eval.", *OF_THE_TEST))}
    named = settings | {"model.name": run.recipe.model.name}
    # by setting: what a message calls it, who shares it, its value
    sources = {name: (name, row, str(named.get(name))) for name in (*data.sources, *SOURCES)}
    for name, source in data.eval.items():
        sources[f"data.eval.{name}"] = (f"data.eval.{name}", model, source)
    if data.holdout_fraction:  # it is tested on articles of its training data, also if these are one source of a mix
        tested["data.repeated_answers"] = data.repeated_answers
        tested["data.misplaced_answers"] = data.misplaced_answers
        sources[data.home_field] = ("data.train", model, data.sources[data.home_field])

    shared = {("tested", model): tested | conditions(read_json(run.folder / DS_CONFIG))}
    shared["settings", row] = without(settings, (*MAY_CHANGE_ON_RESUME, *SOURCES, *data.sources, "data.home"))
    shared["settings", row]["home of data.train"] = data.home_field
    checksums = run.results.inputs
    for place, (name, who, source) in sources.items():
        value = checksums.get(place, source)
        shared[name, place in checksums, who] = value
        field = "data.train" if place in data.sources else name  # mixes may have a file in different places
        shared[field, place in checksums, source, model] = value
    return {key: json.dumps(value, sort_keys=True) for key, value in shared.items()}


def _unlike(shared: Mapping[tuple, str], usual: Mapping[tuple, str]) -> str:
    """Why a run cannot be compared with most others; "" if it can."""
    unlike = [key for key, value in shared.items() if value != usual[key]]
    for key in unlike:
        if key[0] in ("tested", "settings"):
            differing = differences(json.loads(shared[key]), json.loads(usual[key]))
            return f"made differently from the others ({differing})"
    if unlike:
        return f"read other files than the others ({', '.join(dict.fromkeys(name for name, *_ in unlike))})"
    return ""


def differing_settings(rows: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, dict[str, None]]]:
    """The settings outside `method` in which rows differ: by name and by value as JSON, the rows that have it. A row of
    last weights has its mean's settings."""
    last_weights = {run.folder / UNAVERAGED for runs in rows.values() for run in runs}
    settings = []
    for row, runs in rows.items():
        settings += [(row, run.settings) for run in runs if run.folder not in last_weights]
    differing: dict[str, dict[str, dict[str, None]]] = {}
    for name in dict.fromkeys(name for _, values in settings for name in values if not name.startswith("method.")):
        for row, values in settings:
            differing.setdefault(name, {}).setdefault(json.dumps(values.get(name)), {})[row] = None
    return {name: by_value for name, by_value in differing.items() if len(by_value) > 1}


def mixed_versions(runs: Sequence[Run]) -> dict[str, list[str]]:
    """By package, if runs were made by different versions of it: these versions."""
    versions = pd.DataFrame([run.results.versions for run in runs])
    return {name: list(each.dropna().unique()) for name, each in versions.items() if each.nunique() > 1}
