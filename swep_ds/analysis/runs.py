"""Which runs go into a table: found in folders, checked, and compared only with runs made under the same conditions."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from swep_ds.common.errors import InputError
from swep_ds.common.files import public_names, read_json, user_path
from swep_ds.common.settings import differences, flatten, without
from swep_ds.evaluation.results import RESULTS, Checked, Results, describe_faults, read_results
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


class RunEntry(Checked):
    """A run in `sweep.json`."""

    variant: str
    seed: int
    model: str
    labels: dict[str, str]


class SweepFile(Checked):
    """`sweep.json`."""

    runs: dict[str, RunEntry]  # by the name of the run's folder
    primary: Annotated[Primary, Field(strict=False)] | None = None  # a JSON list


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


def _with_unaveraged(refs: Sequence[RunRef]) -> list[RunRef]:
    return [each for ref in refs for each in (ref, _unaveraged(ref)) if each is ref or (each.folder / RECIPE).is_file()]


def find_runs(folders: Iterable[Path]) -> list[RunRef]:
    """The runs in `folders`, each the folder of a sweep (with `sweep.json`), of a run, or of several of these.

    A run that no sweep describes is named by its method and by the settings in which it differs from most runs of it.
    A run with `train.average` is followed by the same training without it, from `unaveraged/`.

    Raises:
        InputError: no such folder, a folder without runs, or a damaged `sweep.json`.
    """
    refs: list[RunRef] = []
    others: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder: name the folder of a sweep or of a run")
        if (folder / DESCRIPTION).is_file():
            refs += _runs_of_sweep(folder)
            continue
        try:
            candidates = [folder] if (folder / RECIPE).is_file() else sorted(folder.iterdir())
            runs = [candidate for candidate in candidates if (candidate / RECIPE).is_file()]
            sweeps = [candidate for candidate in candidates if (candidate / DESCRIPTION).is_file()]
        except OSError as error:
            raise InputError(f"{folder}: cannot be read ({error.strerror}): name another folder") from None
        if not runs and not sweeps:
            raise InputError(f"{folder}: holds no run: name the folder of a sweep, or of a run, with its recipe.yaml")
        others += runs
        refs += [ref for sweep in sweeps for ref in _runs_of_sweep(sweep)]
    return _with_unaveraged(refs + _name_runs(others))


def _runs_of_sweep(folder: Path) -> list[RunRef]:
    file = folder / DESCRIPTION
    try:
        sweep = SweepFile.model_validate(read_json(file))
        if bad := [name for name in sweep.runs if name in ("", ".", "..") or "/" in name or "\0" in name]:
            raise InputError(f"runs.{bad[0]!r} is not a folder name")
    except (InputError, ValidationError) as error:
        fault = describe_faults(error) if isinstance(error, ValidationError) else error
        raise InputError(f"{file}: damaged ({fault}): write it again with `swep-ds sweep SWEEP --table`") from None
    warn_of_unnamed(folder, sweep.runs)
    return [RunRef(folder / name, **dict(entry), primary=sweep.primary) for name, entry in sweep.runs.items()]


ABSENT = object()  # the value of a setting in a run whose section it is not in, such as the fields of `pretrain`


def _name_runs(folders: Iterable[Path]) -> list[RunRef]:
    refs, settings = [], []
    for folder in folders:
        try:
            recipe = saved_recipe(folder)
        except InputError:
            refs.append(RunRef(folder, folder.name, 0, "?"))  # `read_runs` says why
            settings.append({})
            continue
        refs.append(RunRef(folder, recipe.method.name, recipe.seed, recipe.model.name))
        settings.append(_row_settings(recipe))
    alike: dict[str, list[dict[str, Any]]] = {}
    for ref, values in zip(refs, settings, strict=True):
        if values:
            alike.setdefault(ref.variant, []).append(values)
    usual = {variant: _most_common(every) for variant, every in alike.items()}
    differing = [
        {name: str(value) for name, value in values.items() if value != usual[ref.variant][name]}
        for ref, values in zip(refs, settings, strict=True)
    ]
    shown = public_names(value for values in differing for value in values.values())
    named = []
    for ref, values in zip(refs, differing, strict=True):
        suffix = [f", {name.rpartition('.')[2]} {shown[value]}" for name, value in values.items()]
        named.append(replace(ref, variant=ref.variant + "".join(suffix)))
    return named


def _most_common(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The value of each setting that most have, in a tie the first; some lack a setting."""
    common = {}
    for name in dict.fromkeys(name for values in settings for name in values):
        values = [values.get(name, ABSENT) for values in settings]
        [(shown, _)] = Counter(map(repr, values)).most_common(1)
        common[name] = next(value for value in values if repr(value) == shown)
    return common


def _row_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings, flat, that runs of one row share."""
    return without(flatten(recipe.model_dump(mode="json")), NOT_OF_THE_ROW)


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
    checks = (
        partial(_unlike_majority, verb="tested", conditions_of=_test_conditions),
        partial(_unlike_majority, verb="trained", conditions_of=lambda run: run.conditions),
        partial(_unlike_majority, verb="trained", conditions_of=_settings, group_of=_row),
        _read_other_files,
        _repeated,
    )
    for check in checks:
        reasons = list(check(runs))
        missing += [MissingRun(run.ref, reason) for run, reason in zip(runs, reasons, strict=True) if reason]
        runs = [run for run, reason in zip(runs, reasons, strict=True) if not reason]
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


def _test_conditions(run: Run) -> dict[str, Any]:
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


def _settings(run: Run) -> dict[str, Any]:
    """The settings that the runs of a row share, whatever number of ranks divides their global batch."""
    settings = without(_row_settings(run.recipe), (*MAY_CHANGE_ON_RESUME, *SOURCES))
    return settings | {"global batch": run.global_batch}


def _row(run: Run) -> Hashable:
    model, labels = run.ref.block
    return (run.ref.variant, model, *labels.items())


def _unlike_majority(
    runs: Sequence[Run],
    verb: str,
    conditions_of: Callable[[Run], dict],
    group_of: Callable[[Run], Hashable] = lambda run: run.ref.block[0],
) -> Iterator[str]:
    """For each run, the reason to exclude it if its conditions are not those of most runs of its group, else "".

    Args:
        group_of: by default the model.
    """
    groups: dict[Hashable, list[dict]] = {}
    folders = {(group_of(run), run.ref.folder) for run in runs}
    for run in runs:
        if (group_of(run), run.ref.folder.parent) not in folders:  # a training has one vote, though it has two rows
            groups.setdefault(group_of(run), []).append(conditions_of(run))
    usual = {group: max(conditions, key=conditions.count) for group, conditions in groups.items()}
    for run in runs:
        differing = differences(conditions_of(run), usual[group_of(run)])
        yield f"{verb} differently from the others ({differing})" if differing else ""


def _read_other_files(runs: Sequence[Run]) -> Iterator[str]:
    """For each run, the reason to exclude it if a file that it read held something else for most runs that it is
    compared with, else "". These are the runs of a model that name the same file or the same test set, and, whatever
    they name, the runs of a row. What has no checksum, such as a hub id, is compared by its name, within a row."""
    seen: dict[Hashable, list[str]] = {}

    def read(run: Run) -> Iterator[tuple[str, str, list[Hashable]]]:
        """(field, content, the places where other runs have the same)"""
        named = flatten(run.recipe.model_dump(mode="json"))
        for name, checksum in run.results.inputs.items():
            if name.startswith("data.eval."):
                yield name, checksum, [(name, run.ref.block[0])]
            else:
                yield name, checksum, [(name, named.get(name), run.ref.block[0]), (name, _row(run))]
        sources = {name: str(named.get(name)) for name in SOURCES}
        sources |= {f"data.eval.{name}": source for name, source in run.recipe.data.eval.items()}
        for name, source in sources.items():
            # a path without a checksum is one of an earlier version's results, and differs from host to host
            if name not in run.results.inputs and not user_path(source, name).is_absolute():
                yield name, source, [(name, "by its name", _row(run))]

    for run in runs:
        for _, content, places in read(run):
            for place in places:
                seen.setdefault(place, []).append(content)
    usual = {place: max(contents, key=contents.count) for place, contents in seen.items()}
    for run in runs:
        changed = [name for name, content, places in read(run) if any(content != usual[place] for place in places)]
        yield f"read other files than the others ({', '.join(changed)})" if changed else ""


def _repeated(runs: Sequence[Run]) -> Iterator[str]:
    """For each run, the reason to exclude it if an earlier one has its variant, point and seed, else ""."""
    first: dict[Hashable, Run] = {}
    for run in runs:
        earlier = first.setdefault((run.ref.seed, _row(run)), run)
        yield "" if earlier is run else f"the same variant and seed as {earlier.ref.folder}, which is in the table"


def settings_notes(rows: Mapping[str, Sequence[Run]]) -> list[str]:
    """A line for each setting outside `method` in which rows differ. A row of last weights has its mean's settings."""
    values: dict[str, dict[str, list[str]]] = {}  # setting -> value as JSON -> rows
    folders = {run.ref.folder / UNAVERAGED for runs in rows.values() for run in runs}
    settings = {
        row: [
            _row_settings(run.recipe) | {"global batch": run.global_batch}
            for run in runs
            if run.ref.folder not in folders
        ]
        for row, runs in rows.items()
    }
    for name in dict.fromkeys(name for recipes in settings.values() for recipe in recipes for name in recipe):
        for row, recipes in settings.items():
            for value in dict.fromkeys(json.dumps(recipe.get(name)) for recipe in recipes):
                values.setdefault(name, {}).setdefault(value, []).append(row)
    return [
        f"Rows differ in more than the method: {name} is "
        + "; ".join(f"{value} in {', '.join(names)}" for value, names in by_value.items())
        + "."
        for name, by_value in values.items()
        if len(by_value) > 1 and not name.startswith("method.")
    ]


def version_note(runs: Sequence[Run]) -> list[str]:
    """One line if runs were made by different versions of a package, else none."""
    counts: dict[str, Counter] = {}
    for run in runs:
        for package, version in run.results.versions.items():
            counts.setdefault(package, Counter())[version] += 1
    mixed = [
        f"{package} " + ", ".join(f"{version} ({n} run{'s'[: n > 1]})" for version, n in versions.items())
        for package, versions in counts.items()
        if len(versions) > 1
    ]
    return [f"The runs were made by different versions: {'; '.join(mixed)}."] if mixed else []
