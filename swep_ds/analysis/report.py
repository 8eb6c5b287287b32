"""`report.html`: a run's result, answers, course and settings, in one page that needs no other file.

Everything comes from the run's folder and, for the questions, from the test data that its recipe names. What is missing
is left out, and the page says so.
"""

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swep_ds.analysis.answered import KINDS, Answered, by_kind, most_changed, read_answered
from swep_ds.analysis.charts import confidence, learning_curves
from swep_ds.analysis.domains import changes, domains
from swep_ds.analysis.noise_report import noise_effect, noise_size
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json, read_lines, write_atomically
from swep_ds.common.pages import template
from swep_ds.common.settings import flatten
from swep_ds.evaluation.results import RESULTS, read_results
from swep_ds.kernels import MODES
from swep_ds.methods.settings import dose
from swep_ds.pipeline.folder import DS_CONFIG, METRICS_FILE, RECIPE, REPORT, RunFolder, batch_of_rank
from swep_ds.pipeline.recipe import Recipe

log = logging.getLogger(__name__)
CHANGED = 4  # questions of each data set whose answers are shown as changed, in each direction
AnsweredSets = Mapping[str, Sequence[Answered]]  # by data set


def write_report(folder: Path, against: Path | None = None, output: Path | None = None) -> str:
    """Makes the report of a run's folder and writes it there, or to `output`; returns the page.
    `against`: the folder of another run, usually plain fine-tuning, to compare the answers with.

    Raises InputError: a folder without a run or with damaged files, or `against` without answers to these questions.
    """
    run = RunFolder(folder)
    recipe = run.read_recipe()
    results = None
    names = []
    world_size = 1
    if (folder / RESULTS).exists():
        results = read_results(folder / RESULTS)
        names = list(results.scores)
        world_size = results.world_size
    batch = run.global_batch(recipe, world_size)
    lines = read_lines(folder / METRICS_FILE)
    mode = MODES.get(getattr(recipe.method, "noise", None), MODES["learned"])
    prior = {"prior_mean": mode.prior_mean, "prior_variance": getattr(recipe.method, "prior_variance", None)}
    zero_stage = None
    if (folder / DS_CONFIG).exists():
        zero_stage = read_json(folder / DS_CONFIG).get("zero_optimization", {}).get("stage", 0)
    if against:
        RunFolder(against).check_finished()
    answered = {}
    missing = []  # why other data sets have no answers
    for name in names:
        try:
            answered[name] = read_answered(folder, recipe, name, against)
        except InputError as error:
            missing.append(f"{name}: {error}")
            log.warning("the report is without the answers to %s (%s)", name, error)
    kinds = dict(KINDS)
    if all(item.example.answers for items in answered.values() for item in items):
        del kinds["unanswerable"]
    compared = None
    if against:
        compared = _compared(against, recipe, batch, answered, names)
    content = {
        "results": results,
        "run": folder.resolve().name,
        "domains": names and domains(results, answered),
        "against": compared,
        "kinds": kinds,
        "answered": {name: by_kind(items) for name, items in answered.items()},
        "missing": missing,
        "scoring": _advice(recipe, answered),
        "confidence": confidence(answered),
        "forecasts": [read_json(file) for file in sorted(run.forecasts.glob("*.json"))],
        "recipe": recipe,
        "batch": run.read_batch([]),
        "zero_stage": zero_stage,
        "repeat": command(folder, recipe, batch),
        "lines": lines,
        "charts": learning_curves(lines, **prior),
        "noise": noise_size(lines) | prior,
        "dose": dose,
        "effect": noise_effect(lines),
    }
    html = template("analysis/report.html.jinja").render(content)
    write_atomically(output or folder / REPORT, html)
    return html


def _advice(recipe: Recipe, answered: AnsweredSets) -> list[str]:
    """Data sets whose answers are in a script that their scorer does not know, each with the scorers that do."""
    lines = []
    for name, items in answered.items():
        golds = {item.example.id: item.example.answers for item in items}
        if line := recipe.eval.scorer_of(name).advice(name, golds):
            lines.append(line)
    return lines


def _compared(
    against: Path, recipe: Recipe, batch: int, answered: AnsweredSets, names: Sequence[str]
) -> dict[str, Any]:
    """The page's comparison of a run of this recipe and global batch, tested on `names`, with another run."""
    if answered and not any(item.other is not None for items in answered.values() for item in items):
        raise InputError(f"--against {against}: answers none of the questions of this run: name a run on its data")
    run = RunFolder(against)
    results = read_results(against / RESULTS)
    other = run.read_recipe()
    here = flatten(recipe.model_dump(mode="json")) | {"global batch": batch}
    there = flatten(other.model_dump(mode="json")) | {"global batch": run.global_batch(other, results.world_size)}
    differing = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    with_answer = {name: [item for item in items if item.example.answers] for name, items in answered.items()}
    return {
        "title": f"{results.method}, seed {results.seed}",
        "rows": changes(answered, names),
        "f1_changes": {row.name: row.f1.value for row in changes(with_answer, names)},
        "settings": [(name, here.get(name), there.get(name)) for name in differing],
        "changed": [(name, *most_changed(items, CHANGED)) for name, items in answered.items()],
    }


def command(folder: Path, recipe: Recipe, batch: int) -> str:
    """The command that repeats this run, on the number of ranks that gives its global batch."""
    ranks = batch // batch_of_rank(recipe)
    parts = ["swep-ds", "train"]
    if ranks > 1:
        parts += ["--ranks", str(ranks)]
    parts += ["--ds_config", str(folder / DS_CONFIG), "--recipe", str(folder / RECIPE)]
    return f"{shlex.join(parts)} --output_dir NEW"
