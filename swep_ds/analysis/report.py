"""`report.html`: a run's result, answers, course and settings, in one page that needs no other file.

Everything comes from the run's folder and, for the questions, from the test data that its recipe names. What is missing
is left out, and the page says so.
"""

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from swep_ds.analysis.answered import KINDS, Answered, by_kind, in_fixed_order, most_changed, read_answered
from swep_ds.analysis.charts import confidence, learning_curves
from swep_ds.analysis.crossed import not_shown
from swep_ds.analysis.domains import changes, domains
from swep_ds.analysis.noise_report import noise_effect, noise_size
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json, read_lines, write_atomically
from swep_ds.common.pages import template
from swep_ds.common.settings import flatten
from swep_ds.evaluation.calibration import LEVEL, MIN_CLUSTERS
from swep_ds.evaluation.results import OUT_OF_DOMAIN, RESULTS, Results, out_of_domain_mean, read_results
from swep_ds.kernels import MODES
from swep_ds.methods.settings import dose
from swep_ds.pipeline.folder import DS_CONFIG, HEALTH_FILE, METRICS_FILE, RECIPE, REPORT, RunFolder, batch_of_rank
from swep_ds.pipeline.recipe import Recipe

log = logging.getLogger(__name__)
WORST, CHANGED = 8, 4  # questions of each data set in the table of worst answers; those changed, in each direction
MAX_RANKS_SHOWN = 16  # with more ranks, only those with a note are shown
SLOW = 1.5  # a rank's forward passes are slow above this multiple of the median over ranks
WAITING = 0.1  # a rank waits for data above this share of an update
AnsweredSets = Mapping[str, Sequence[Answered]]  # by data set
Tables = dict[str, tuple[list[str], list[list[Any]]]]  # (columns, rows)
Say = Callable[[str | Table], None]


def write_report(
    folder: Path, against: Path | None = None, output: Path | None = None, say: Say = lambda _: None
) -> tuple[str, Tables]:
    """Makes the report of a run's folder and writes it there, or to `output`; returns the page and its tables.
    `against`: the folder of another run, usually plain fine-tuning, to compare the answers with. `say` gets the table
    of this comparison, and what its questions do not show.

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
    from swep_ds.analysis.word_analyses import heat_maps  # imports PyTorch: not before the checks

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
        "maps": heat_maps(folder, answered),
        "ranks": ranks_of(read_lines(folder / HEALTH_FILE), local_forward=zero_stage != 3),
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
    if compared:
        _say_changes(compared, say)
    return html, _tables(results, answered)


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
    """The comparison of a run of this recipe and global batch, tested on `names`, with another run."""
    if answered and not any(item.other is not None for items in answered.values() for item in items):
        raise InputError(f"--against {against}: answers none of the questions of this run: name a run on its data")
    run = RunFolder(against)
    results = read_results(against / RESULTS)
    other = run.read_recipe()
    here = flatten(recipe.model_dump(mode="json")) | {"global batch": batch}
    there = flatten(other.model_dump(mode="json")) | {"global batch": run.global_batch(other, results.world_size)}
    differing = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    rows = changes(answered, names)
    notes = []
    for row in rows:
        if row.total and row.f1.low is None:
            few = f"they are about fewer than {MIN_CLUSTERS} texts, too few for an interval"
            notes.append(f"{row.name}: these questions do not show a difference: {few}.")
        elif row.total and (clause := not_shown(row.total, row.f1.low, row.f1.high)):
            notes.append(f"{row.name}: {clause}.")
    compared = {row.name for row in rows}
    if unread := [name for name in names if name not in answered]:
        notes.append(f"Not compared: {', '.join(unread)}. This run's questions have changed, or cannot be read.")
    if left_out := [name for name in answered if name not in compared]:
        notes.append(f"Not compared: {', '.join(left_out)}. The other run did not answer the same questions.")
    with_answer = {name: [item for item in items if item.example.answers] for name, items in answered.items()}
    return {
        "title": f"{against.name} ({results.method}, seed {results.seed})",
        "rows": rows,
        "notes": notes,
        "f1_changes": {row.name: row.f1.value for row in changes(with_answer, names)},
        "settings": [(name, here.get(name), there.get(name)) for name in differing],
        "changed": [(name, *most_changed(items, CHANGED)) for name, items in answered.items()],
    }


def _say_changes(compared: Mapping[str, Any], say: Say) -> None:
    title = f"this run less {compared['title']}, in points, with {LEVEL} % intervals over questions"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("data set")
    for column in ("EM", "F1", "gained", "lost", "questions"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in compared["rows"]:
        cells = []
        for change in (row.exact_match, row.f1):
            cells.append(f"{change.value:+.2f}")
            if change.low is not None:
                cells[-1] += f"\n{change.low:+.2f} to {change.high:+.2f}"
        table.add_row(row.name, *cells, str(row.gained), str(row.lost), str(row.total or ""))
    if compared["rows"]:
        say(table)
    for line in compared["notes"]:
        say(line)


def ranks_of(health: Sequence[Mapping[str, Any]], *, local_forward: bool) -> list[dict[str, Any]]:
    """A row per rank, with medians over the lines of health.jsonl; a single rank without a note has none.
    `local_forward`: whether a rank's forward passes wait for no other ranks' weights."""
    if not health:
        return []
    world = len(health[-1]["step_seconds"])  # at the end: a run may resume on other ranks
    lines = [line for line in health if len(line["step_seconds"]) == world]
    names = ("step_seconds", "data_seconds", "forward_seconds")
    seconds_R3 = np.median([[line[name] for name in names] for line in lines], axis=0).T
    usual = np.median([line["forward_seconds"] for line in lines])
    rows = []
    for rank, (step, data, forward) in enumerate(seconds_R3.tolist()):
        bad = [line["update"] for line in lines if rank in line["not_finite"]]
        notes = []
        if data > WAITING * step:
            notes.append("waits for data")
        if local_forward and forward > SLOW * usual:
            notes.append("slow forward passes")
        if bad:
            notes.append(f"not finite at {len(bad)} updates, first at {bad[0]}")
        if notes or 1 < world <= MAX_RANKS_SHOWN:
            memory = max(line["memory_mib"][rank] for line in lines)
            seconds = (step, data, forward)
            rows.append({"rank": rank, "seconds": seconds, "memory_mib": memory, "notes": ", ".join(notes)})
    return rows


def command(folder: Path, recipe: Recipe, batch: int) -> str:
    """The command that repeats this run, on the number of ranks that gives its global batch."""
    ranks = batch // batch_of_rank(recipe)
    parts = ["swep-ds", "train"]
    if ranks > 1:
        parts += ["--ranks", str(ranks)]
    parts += ["--ds_config", str(folder / DS_CONFIG), "--recipe", str(folder / RECIPE)]
    return f"{shlex.join(parts)} --output_dir NEW"


def _tables(results: Results | None, answered: AnsweredSets) -> Tables:
    scores = results.scores if results else {}
    if mean := out_of_domain_mean(scores):
        scores[OUT_OF_DOMAIN] = mean
    rows = [[name, score["exact_match"], score["f1"], score.get("total", "")] for name, score in scores.items()]
    examples = []
    for name, items in answered.items():
        wrong = sorted((item for item in in_fixed_order(items) if not item.right), key=lambda item: item.f1)
        for item in wrong[:WORST]:
            accepted = " | ".join(item.example.answers)
            examples.append([name, item.example.question, item.predicted, accepted, item.f1])
    return {
        "scores": (["data set", "EM", "F1", "questions"], rows),
        "worst examples": (["data set", "question", "predicted", "accepted", "F1"], examples),
    }
