"""`report.html`: a run's result, answers, course and settings, in one page that needs no other file.

Everything comes from the run's folder and, for the questions, from the test data that its recipe names. What is missing
is left out, and the page says so.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from swep_ds.analysis import run_facts
from swep_ds.analysis.answers import KINDS, Answered, by_kind, excerpt, most_changed, read_answered, worst
from swep_ds.analysis.charts import Chart, learning_curves, svg, throughput
from swep_ds.analysis.confidence import confidence
from swep_ds.analysis.domains import changes, domains, with_answer
from swep_ds.analysis.noise_report import noise_effect, noise_size
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json, read_lines, write_atomically
from swep_ds.common.settings import flatten
from swep_ds.evaluation.results import OUT_OF_DOMAIN, RESULTS, Results, out_of_domain_mean, read_results
from swep_ds.kernels import MODES
from swep_ds.pipeline.folder import DS_CONFIG, HEALTH_FILE, METRICS_FILE, RunFolder
from swep_ds.pipeline.recipe import Recipe

log = logging.getLogger(__name__)
TEMPLATE = "report.html.jinja"
WORST, CHANGED = 8, 4  # questions of each data set in the table of worst answers; those changed, in each direction
OPEN_DOMAINS, OPEN_MAPS = 3, 2  # data sets whose answers, and whose heat maps, are not folded
MORE = 4  # answers of each kind and data set that are folded
OPEN_CHARTS = ("Loss", "Validation", "Deviation of the noise")  # the first two of these are not folded
MAX_SHOWN = 400  # characters that are shown of a text


class Report(NamedTuple):
    """The page, and its tables `scores` and `worst examples` as (columns, rows)."""

    html: str
    tables: dict[str, tuple[list[str], list[list[Any]]]]


def write_report(folder: Path, against: Path | None = None, output: Path | None = None) -> Report:
    """Makes the report of a run's folder and writes it there, or to `output`.

    Args:
        against: the folder of another run, usually plain fine-tuning, to compare the answers with.

    Raises:
        InputError: a folder without a run or with damaged files, or `against` without answers to these questions.
    """
    report = make_report(folder, against)
    file = output or folder / "report.html"
    try:
        write_atomically(file, report.html)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}): name another --output") from None
    return report


def make_report(folder: Path, against: Path | None = None) -> Report:
    """As `write_report`, but writes nothing."""
    recipe = RunFolder(folder).read_recipe()
    if against:
        RunFolder(against).check_finished()
    results = read_results(folder / RESULTS) if (folder / RESULTS).exists() else None
    config, batch = _read_object(folder / DS_CONFIG), RunFolder(folder).read_batch([])
    health, unread = run_facts.read_health(folder / HEALTH_FILE)
    answered, missing = _read_all(folder, recipe, results, against)
    compared = _compared(folder, recipe, answered, results, against) if against else None
    from swep_ds.analysis.example_maps import heat_maps  # imports DeepSpeed: not before the checks

    by_domain = domains(results, answered) if results and results.eval else None
    content = {
        "title": recipe.title,
        "results": results,
        "provenance": {"run": folder.resolve().name, **(results.provenance if results else {})},
        "domains": by_domain,
        "divided": _divided(results),
        "against": compared,
        **_counts(answered),
        "answers": [_answers(name, items) for name, items in answered.items()],
        "open_domains": OPEN_DOMAINS,
        "open_maps": OPEN_MAPS,
        "missing": missing,
        "confidence": _confidence(answered, results),
        "maps": heat_maps(folder, recipe, answered),
        "cost": run_facts.cost(results),
        "ranks": run_facts.ranks(health, local_forward=run_facts.zero_stage(config) < 3),
        "unread": unread,
        "settings": run_facts.settings(recipe, results, config, batch),
        "recipe": recipe.dump(),
        "repeat": run_facts.command(folder, recipe, results),
        **_course(recipe, read_lines(folder / METRICS_FILE)),
    }
    return Report(_render(content), _tables(results, answered))


def _read_all(
    folder: Path, recipe: Recipe, results: Results | None, against: Path | None
) -> tuple[dict[str, list[Answered]], list[str]]:
    """The questions by data set, and why other data sets have none."""
    answered, missing = {}, []
    for name in results.eval if results else {}:
        try:
            answered[name] = read_answered(folder, recipe, name, against)
        except InputError as error:
            missing.append(f"{name}: {error}")
            log.warning("the report is without the answers to %s (%s)", name, error)
    return answered, missing


def _compared(
    folder: Path, recipe: Recipe, answered: Mapping[str, Sequence[Answered]], results: Results | None, against: Path
) -> dict[str, Any]:
    """The page's comparison with the other run.

    Raises:
        InputError: it answered none of the questions, or its files are damaged.
    """
    if answered and not any(item.other is not None for items in answered.values() for item in items):
        raise InputError(f"--against {against}: answers none of the questions of {folder}: name a run on its data sets")
    other = read_results(against / RESULTS)
    title = f"{other.method}, seed {other.seed}"
    here = _settings(folder, recipe, results)
    there = _settings(against, RunFolder(against).read_recipe(), other)
    names = list(results.eval) if results else []
    rows = changes(answered, names)
    return {
        "title": title,
        "rows": rows,
        "f1_changes": {row.name: row.f1.value for row in changes(with_answer(answered), names)},
        "left_out": [name for name in names if name not in {row.name for row in rows}],
        "settings": [
            (name, here.get(name, "–"), there.get(name, "–"))
            for name in {**here, **there}
            if here.get(name) != there.get(name)
        ],
        "changed": [(name, *most_changed(items, CHANGED)) for name, items in answered.items()],
    }


def _settings(folder: Path, recipe: Recipe, results: Results | None) -> dict[str, Any]:
    """The settings of a run, flat, and its global batch."""
    batch = RunFolder(folder).global_batch(recipe, results.world_size if results else 1)
    return flatten(recipe.model_dump(mode="json")) | {"global batch": batch}


def _divided(results: Results | None) -> list[tuple[str, list[float | int | None]]]:
    """Data sets with unanswerable questions: EM, F1 and number of all, EM and number of the unanswerable."""
    names = ("exact_match", "f1", "total", "no_answer_exact_match", "no_answer_total")
    scores = results.eval.items() if results else ()
    return [(name, [getattr(score, part) for part in names]) for name, score in scores if score.no_answer_total]


def _counts(answered: Mapping[str, Sequence[Answered]]) -> dict[str, Any]:
    """How many answers of each kind the data sets have; "unanswerable" is a kind only where some question is."""
    declinable = any(not item.example.answers for items in answered.values() for item in items)
    kinds = {kind: title for kind, title in KINDS.items() if declinable or kind != "unanswerable"}
    counts = []
    for name, items in answered.items():
        of_kind = by_kind(items)
        counts.append((name, {kind: len(of_kind[kind]) for kind in kinds}, len(items)))
    return {"kinds": kinds, "counts": counts}


def _answers(name: str, items: Sequence[Answered]) -> dict[str, Any]:
    """An answer of each kind, in the text, and a few more."""
    kinds = {kind: of_kind for kind, of_kind in by_kind(items).items() if of_kind}
    return {
        "name": name,
        "first": [(kind, _shown(of_kind[0])) for kind, of_kind in kinds.items()],
        "more": [
            (kind, [_shown(item) for item in of_kind[1 : 1 + MORE]]) for kind, of_kind in kinds.items() if of_kind[1:]
        ],
    }


def _shown(item: Answered) -> tuple[Answered, Any]:
    return item, excerpt(item)


def _confidence(answered: Mapping[str, Sequence[Answered]], results: Results | None) -> dict[str, Any] | None:
    known = confidence(answered)
    if known is None:
        return None
    scores = results.eval if results else {}
    calibrated = [(row, scores[row[0]].coverage_change) for row in known.calibrated if row[0] in scores]
    rows = {"rows": known.rows, "calibrated": calibrated}
    return {"statement": known.statement, **rows, "charts": _drawn(known.charts)}


def _course(recipe: Recipe, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The learning curves and the noise, from metrics.jsonl."""
    mode = MODES.get(getattr(recipe.method, "noise", None), MODES["learned"])
    variance = getattr(recipe.method, "prior_variance", None)
    charts = learning_curves(lines, mode.prior_mean, variance)
    first = [chart for title in OPEN_CHARTS for chart in charts if chart.title == title]
    first = [*first, *(chart for chart in charts if chart not in first)][:2]
    folded = [chart for chart in charts if chart not in first]
    speed = throughput(lines)
    return {
        "updates": lines[-1]["update"] if lines else 0,
        "charts": _drawn(first),
        "more_charts": _drawn([*folded, speed] if speed else folded),
        "noise_size": noise_size(lines, mode.prior_mean, variance),
        "effect": noise_effect(lines, trained_shuffled=getattr(recipe.method, "noise", None) == "shuffled"),
    }


def _drawn(charts: Sequence[Chart]) -> list[tuple[str, Markup]]:
    return [(chart.title, Markup(svg(chart))) for chart in charts]


def _tables(results: Results | None, answered: Mapping[str, Sequence[Answered]]) -> dict:
    scores = results.scores if results else {}
    rows = [[name, score["exact_match"], score["f1"], score["total"]] for name, score in scores.items()]
    if mean := out_of_domain_mean(scores):
        rows.append([OUT_OF_DOMAIN, mean["exact_match"], mean["f1"], ""])
    examples = [
        [name, item.example.question, item.predicted, " | ".join(item.example.answers), item.f1]
        for name, items in answered.items()
        for item in worst(items, WORST)
    ]
    return {
        "scores": (["data set", "EM", "F1", "questions"], rows),
        "worst examples": (["data set", "question", "predicted", "accepted", "F1"], examples),
    }


def _render(content: Mapping[str, Any]) -> str:
    # escapes every text, and fails on a missing one
    options = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    jinja = Environment(loader=FileSystemLoader(Path(__file__).parent), **options)
    jinja.filters["text"] = _printable
    return jinja.get_template(TEMPLATE).render(content)


def _printable(text: str, longest: int = MAX_SHOWN) -> str:
    """The text without control characters and lone surrogates, cut to `longest`."""
    shown = "".join(c if c.isprintable() or c.isspace() or ord(c) > 0xFF else "�" for c in text[:longest])
    more = f" … ({len(text):,} characters)" if len(text) > longest else ""
    return shown.encode("utf-8", "replace").decode() + more


def _read_object(file: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no file."""
    if not file.exists():
        return {}
    fix = "start the run again, which rewrites it"
    try:
        content = read_json(file)
    except InputError as error:
        raise InputError(f"{error}: {fix}") from None
    if not isinstance(content, dict):
        raise InputError(f"{file}: is not a JSON object: {fix}")
    return content
