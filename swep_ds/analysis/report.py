"""`report.html`: a run's settings, course and answers, in one page that needs no other file.

Everything comes from the run's folder and, for the questions, from the test data that its recipe names. What is missing
is left out, and the page says so.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from swep_ds.analysis.answers import most_changed, read_answered, worst
from swep_ds.analysis.charts import is_number, learning_curves, svg, throughput
from swep_ds.analysis.noise_effect import noise_effect
from swep_ds.errors import InputError
from swep_ds.evaluation.results import Checked, Results, out_of_domain_mean, read_results
from swep_ds.files import read_json, read_lines, write_atomically
from swep_ds.kernels import MODES
from swep_ds.recipe import Recipe

TEMPLATE = "report.html.jinja"
WORST, CHANGED = 8, 6  # questions of each data set that are shown; those changed, in each direction
LONGEST, LONGEST_CONTEXT = 400, 3000  # characters that are shown of a question or an answer, and of its text
MOST_RANKS = 16  # with more ranks, only those with a note are shown
SLOW = 1.5  # a rank's forward passes are slow above this multiple of the median over ranks
WAITING = 0.1  # a rank waits for data above this share of an update


class HealthLine(Checked):
    """A line of health.jsonl: for each rank, numbers over the updates since the line before."""

    update: int
    step_seconds: list[float]
    data_seconds: list[float]
    forward_seconds: list[float]
    memory_mib: list[float]
    not_finite: list[int]


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
    try:
        return _make_report(folder, against)
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename or folder}: was deleted while it was read: name the folder of a run that exists"
        ) from None


def _make_report(folder: Path, against: Path | None) -> Report:
    if not (folder / "recipe.yaml").is_file():
        raise InputError(f"{folder}: holds no recipe.yaml, so no run: name a run's folder")
    if against and not (against / "results.json").is_file():
        raise InputError(f"--against {against}: holds no results.json: name the folder of a finished run")
    recipe = Recipe.load(str(folder / "recipe.yaml"))
    results = read_results(folder / "results.json") if (folder / "results.json").exists() else None
    other = read_results(against / "results.json") if against else None
    config, batch = (_read_object(folder / name) for name in ("ds_config.json", "batch.json"))
    lines = read_lines(folder / "metrics.jsonl")
    health, unread = _read_health(folder / "health.jsonl")
    answered, missing = {}, []  # questions by data set; why other data sets have none
    for name in results.eval if results else {}:
        try:
            answered[name] = read_answered(folder, recipe, name, against)
        except InputError as error:
            missing.append(f"{name}: {error}")
    compared = {name: any(item.other is not None for item in items) for name, items in answered.items()}
    if against and answered and not any(compared.values()):
        raise InputError(f"--against {against}: answers none of the questions of {folder}: name a run on its data sets")
    from swep_ds.analysis.example_maps import heat_maps  # imports DeepSpeed: not before the checks

    maps, no_maps = heat_maps(folder, recipe, answered)
    mode = MODES.get(getattr(recipe.method, "noise", None), MODES["learned"])
    charts = learning_curves(lines, mode.prior_mean, getattr(recipe.method, "prior_variance", None))
    speed = throughput(lines)
    scores, worst_answers = _scores(results, other), {name: worst(items, WORST) for name, items in answered.items()}
    content = {
        "title": f"{recipe.method.name}, {recipe.model.name}, seed {recipe.seed}",
        "folder": folder.resolve().name,
        "settings": _settings(recipe, results, config, batch),
        "recipe": recipe.dump(),
        "scores": scores,
        "against": other and f"{other.method}, seed {other.seed}",
        "updates": lines[-1]["update"] if lines else 0,
        "charts": [(chart.title, Markup(svg(chart))) for chart in charts],
        "effect": noise_effect(lines),
        "maps": maps,
        "no_maps": no_maps,
        "worst": worst_answers,
        "changed": {name: compared[name] and most_changed(items, CHANGED) for name, items in answered.items()},
        "missing": missing,
        "cost": _cost(results),
        "speed": speed and Markup(svg(speed)),
        "ranks": _ranks(health, own_forward=_zero_stage(config) < 3),
        "unread": unread,
        "results": results,
        "longest_context": LONGEST_CONTEXT,
        "repeat": _command(folder, results),
    }
    examples = [
        [name, item.example.question, item.predicted, " | ".join(item.example.answers), item.f1]
        for name, items in worst_answers.items()
        for item in items
    ]
    tables = {
        "scores": (["data set", "EM", "F1", "questions"], [row[:4] for row in scores]),
        "worst examples": (["data set", "question", "predicted", "accepted", "F1"], examples),
    }
    # escapes every text, and fails on a missing one
    options = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    jinja = Environment(loader=FileSystemLoader(Path(__file__).parent), **options)
    jinja.filters["text"] = _printable
    return Report(jinja.get_template(TEMPLATE).render(content), tables)


def _printable(text: str, longest: int = LONGEST) -> str:
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
        raise InputError(f"{file}: no JSON object: {fix}")
    return content


def _read_health(file: Path) -> tuple[list[HealthLine], int]:
    """The lines of health.jsonl, and how many others are not of this version."""
    lines, unread = [], 0
    for line in read_lines(file):
        try:
            lines.append(HealthLine.model_validate(line))
        except ValidationError:
            unread += 1
    return lines, unread


def _zero_stage(config: dict[str, Any]) -> int:
    zero = config.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    return stage if stage in (0, 1, 2, 3) else 0


def _settings(recipe: Recipe, results: Results | None, config: dict, batch: dict) -> list[tuple[str, str]]:
    data, train = recipe.data, recipe.train
    sources = {
        "held-out articles": data.holdout_fraction and f"{data.holdout_fraction:.0%} of the training articles",
        "share of the questions": data.train_fraction != 1 and f"{data.train_fraction:.0%}",
        "at most": data.max_train_examples and f"{data.max_train_examples:,} questions",
        "augmented with": data.augmented,
    }
    method = [f"{name} {value}" for name, value in recipe.method.model_dump().items() if name != "name"]
    tests = [f"{name}: {source}" for name, source in data.eval.items()]
    length = f"{train.epochs:g} epochs" + (f", at most {train.max_updates:,} updates" if train.max_updates else "")
    size = f"{batch.get('windows', 'not known')}" + (f" x {train.max_tokens} positions" if train.max_tokens else "")
    limit = f", {data.max_eval_examples:,} questions of each" if data.max_eval_examples else ""
    rows = [
        ("Method", f"{recipe.method.name}" + (f": {', '.join(method)}" if method else "")),
        ("Model", f"{recipe.model.name}, {recipe.task}"),
        ("Trained on", "; ".join([data.train, *(f"{name}: {value}" for name, value in sources.items() if value)])),
        ("First stage", recipe.pretrain and f"{recipe.pretrain.epochs:g} epochs on {recipe.pretrain.train}"),
        ("Tested on", ("; ".join(tests) or "nothing else") + limit),
        ("Windows", f"{data.max_length} tokens, a new one every {data.doc_stride}"),
        ("Training", f"{length}, global batch {size}, {train.execution} execution"),
        ("Optimizer", f"{train.optimizer}, learning rate {train.learning_rate:g}, {train.schedule} schedule"),
        ("Seed", str(recipe.seed)),
        ("Ranks", str(results.world_size) if results else "not known"),
        ("ZeRO stage", str(_zero_stage(config)) if config else "not known"),
        ("Precision", train.precision),
    ]
    return [(name, value) for name, value in rows if value]


def _scores(results: Results | None, other: Results | None) -> list[list]:
    """Rows of (name, EM, F1, questions, the other run's F1 on as many questions or None); the shifted mean is last."""
    scores, others = (run.model_dump()["eval"] if run else {} for run in (results, other))
    alike = {name for name in scores if name in others and others[name]["total"] == scores[name]["total"]}
    rows = [
        [name, score["exact_match"], score["f1"], score["total"], others[name]["f1"] if name in alike else None]
        for name, score in scores.items()
    ]
    if mean := out_of_domain_mean(scores):
        other_mean = out_of_domain_mean(others) if list(scores) == list(others) and alike == scores.keys() else None
        rows.append(["out-of-domain mean", mean["exact_match"], mean["f1"], "", other_mean and other_mean["f1"]])
    return rows


def _cost(results: Results | None) -> list[tuple[str, str]]:
    """The numbers in the section `train` of results.json, with units if this function knows them."""
    formats = {
        "examples": ("Training questions", "{:,}"),
        "features": ("Their windows", "{:,}"),
        "updates": ("Updates", "{:,}"),
        "samples_per_second": ("Samples per second", "{:,.1f}"),
        "tokens_per_second": ("Tokens per second", "{:,.0f}"),
    }
    rows = []
    for name, value in (results.train if results else {}).items():
        if not is_number(value):
            continue
        if name == "seconds":
            rows.append(("Training time", f"{value / 60:,.1f} min" if value > 90 else f"{value:.1f} s"))
        elif name == "peak_memory_bytes":
            rows.append(("Peak memory, highest of all ranks", f"{value / 2**20:,.0f} MiB"))
        else:
            title, form = formats.get(name, (name.replace("_", " "), "{:,g}"))
            rows.append((title, form.format(value)))
    return rows


def _ranks(health: Sequence[HealthLine], *, own_forward: bool) -> list[dict[str, Any]]:
    """A row per rank, with medians over the logged updates; a single rank without a note has none.

    Args:
        own_forward: whether a rank's forward passes wait for no other ranks' weights.
    """
    names = ("step_seconds", "data_seconds", "forward_seconds", "memory_mib")
    world = len(health[-1].step_seconds) if health else 0  # at the end: a run may resume on other ranks
    lines = [line for line in health if all(len(getattr(line, name)) == world for name in names)]
    if not lines or not world:
        return []
    usual = median(value for line in lines for value in line.forward_seconds)
    rows = []
    for rank in range(world):
        step, data, forward = (median(getattr(line, name)[rank] for line in lines) for name in names[:3])
        bad = [line.update for line in lines if rank in line.not_finite]
        notes = ["waits for data"] if data > WAITING * step else []
        notes += ["slow forward passes"] if own_forward and forward > SLOW * usual else []
        notes += [f"not finite at update {bad[0]}" + (f" and {len(bad) - 1} more" if bad[1:] else "")] if bad else []
        memory = max(line.memory_mib[rank] for line in lines)
        rows.append({"rank": rank, "seconds": (step, data, forward), "memory_mib": memory, "notes": ", ".join(notes)})
    return [row for row in rows if row["notes"] or 1 < world <= MOST_RANKS]


def _command(folder: Path, results: Results | None) -> str:
    """The command line that makes this run again."""
    parts = ["deepspeed", "--num_accelerators", str(results.world_size if results else 1), "scripts/train.py"]
    parts += ["--ds_config", str(folder / "ds_config.json"), "--recipe", str(folder / "recipe.yaml")]
    return f"{shlex.join(parts)} --output_dir NEW"
