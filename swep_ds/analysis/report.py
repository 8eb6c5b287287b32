"""`report.html`: what a run was, how it went and what it answers, in one page that needs nothing beside it.

Everything comes from the run's folder and, for the questions, from the test data as its recipe names them. What is
not there is left out, and the page says so.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from swep_ds.analysis.answers import Answered, most_changed, read_answered, worst
from swep_ds.analysis.charts import Chart, is_number, learning_curves, svg, throughput
from swep_ds.errors import InputError
from swep_ds.evaluation.results import Checked, Results, out_of_domain_mean, read_results
from swep_ds.files import read_json, read_lines, write_atomically
from swep_ds.kernels import MODES
from swep_ds.recipe import Recipe

TEMPLATE = "report.html.jinja"
WORST, CHANGED = 8, 6  # questions of each data set, those changed in each direction
LONGEST, LONGEST_CONTEXT = 400, 3000  # characters that are shown of a question or an answer, and of its text
RANKS = 16  # that are shown whether they stand out or not
SLOW = 1.5  # forward passes that stand out, times the median over ranks
WAITING = 0.1  # of an update: waiting for data that stands out
MIB = 2**20


class HealthLine(Checked):
    """A line of health.jsonl: over the updates since the line before, each rank's numbers."""

    update: int
    step_seconds: list[float]
    data_seconds: list[float]
    forward_seconds: list[float]
    memory_mib: list[float]
    not_finite: list[int]


class Report(NamedTuple):
    """The page, and as (columns, rows) the tables `scores` and `worst examples` in it."""

    html: str
    tables: dict[str, tuple[list[str], list[list[Any]]]]


def write_report(folder: Path, against: Path | None = None, output: Path | None = None) -> Report:
    """Makes the report of a run's folder and writes it there, or to `output`.

    Args:
        against: the folder of another run, as a rule plain fine-tuning, whose answers to the same questions differ.

    Raises:
        InputError: a folder without a run, with damaged files, or `against` without answers to these data sets.
    """
    report = make_report(folder, against)
    file = output or folder / "report.html"
    try:
        write_atomically(file, report.html)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}): name another --output") from None
    return report


def make_report(folder: Path, against: Path | None = None) -> Report:
    """As `write_report`, which writes it."""
    try:
        return _make_report(folder, against)
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename or folder}: was deleted while it was read: name the folder of a run that is there"
        ) from None


def _make_report(folder: Path, against: Path | None) -> Report:
    if not (folder / "recipe.yaml").is_file():
        raise InputError(f"{folder}: holds no recipe.yaml, so no run: name a run's folder")
    if against and not (against / "results.json").is_file():
        raise InputError(f"--against {against}: holds no results.json: name the folder of a run that is done")
    recipe = Recipe.load(str(folder / "recipe.yaml"))
    results = read_results(folder / "results.json") if (folder / "results.json").exists() else None
    other = read_results(against / "results.json") if against else None
    config, batch = (_read(folder / name) for name in ("ds_config.json", "batch.json"))
    lines = read_lines(folder / "metrics.jsonl")
    health, unread = _health(folder / "health.jsonl")
    answered, missing = _answered(folder, recipe, results, against)
    shared = [one for several in answered.values() for one in several if one.other is not None]
    if against and answered and not shared:
        raise InputError(f"--against {against}: answers none of the questions of {folder}: name a run on its data sets")
    from swep_ds.analysis.example_maps import heat_maps  # not earlier: it imports DeepSpeed

    maps, no_maps = heat_maps(folder, recipe, answered)
    speed = throughput(lines)
    content = {
        "title": f"{recipe.method.name}, {recipe.model.name}, seed {recipe.seed}",
        "folder": folder.resolve().name,
        "settings": _settings(recipe, results, config, batch),
        "recipe": recipe.dump(),
        "scores": _scores(results, other),
        "against": other and f"{other.method}, seed {other.seed}",
        "updates": lines[-1]["update"] if lines else 0,
        "charts": [(chart.title, Markup(svg(chart))) for chart in _charts(recipe, lines)],
        "maps": maps,
        "no_maps": no_maps,
        "worst": {name: worst(several, WORST) for name, several in answered.items()},
        "changed": _changed(answered),
        "missing": missing,
        "cost": _cost(results),
        "speed": speed and Markup(svg(speed)),
        "ranks": _ranks(health, own_forward=_zero_stage(config) < 3),
        "unread": unread,
        "results": results,
        "longest_context": LONGEST_CONTEXT,
        "repeat": _repeat(folder, results),
    }
    tables = {
        "scores": (["data set", "EM", "F1", "questions"], [one[:4] for one in content["scores"]]),
        "worst examples": (
            ["data set", "question", "predicted", "accepted", "F1"],
            [
                [name, one.example.question, one.predicted, " | ".join(one.example.answers), one.f1]
                for name, several in content["worst"].items()
                for one in several
            ],
        ),
    }
    return Report(_environment().get_template(TEMPLATE).render(content), tables)


def _charts(recipe: Recipe, lines: list[dict[str, Any]]) -> list[Chart]:
    mode = MODES.get(getattr(recipe.method, "noise", None), MODES["learned"])
    return learning_curves(lines, mode.prior_mean, getattr(recipe.method, "prior_variance", None))


def _environment() -> Environment:
    """Jinja that escapes every text, and complains of one that is not there."""
    loader = FileSystemLoader(Path(__file__).parent)
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["text"] = _text
    return made


def _text(text: str, longest: int = LONGEST) -> str:
    """As it can stand in a page: no control characters, no lone surrogates, not too long."""
    shown = "".join(one if one.isprintable() or one.isspace() or ord(one) > 0xFF else "�" for one in text[:longest])
    more = f" … ({len(text):,} characters)" if len(text) > longest else ""
    return shown.encode("utf-8", "replace").decode() + more


def _read(file: Path) -> dict[str, Any]:
    """A JSON object; empty where the file is not there."""
    if not file.exists():
        return {}
    try:
        content = read_json(file)
    except InputError as error:
        raise InputError(f"{error}: start the run again, which writes it anew") from None
    if not isinstance(content, dict):
        raise InputError(f"{file}: no JSON object: start the run again, which writes it anew")
    return content


def _health(file: Path) -> tuple[list[HealthLine], int]:
    """The lines of health.jsonl, and how many are none of this version."""
    good, bad = [], 0
    for line in read_lines(file):
        try:
            good.append(HealthLine.model_validate(line))
        except ValidationError:
            bad += 1
    return good, bad


def _zero_stage(config: dict[str, Any]) -> int:
    zero = config.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    return stage if stage in (0, 1, 2, 3) else 0


def _answered(
    folder: Path, recipe: Recipe, results: Results | None, against: Path | None
) -> tuple[dict[str, list[Answered]], list[str]]:
    """Questions by data set, and of which data sets there are none, with the reason."""
    found, missing = {}, []
    for name in results.eval if results else {}:
        try:
            found[name] = read_answered(folder, recipe, name, against)
        except InputError as error:
            missing.append(f"{name}: {error}")
    return found, missing


def _changed(answered: dict[str, list[Answered]]) -> dict[str, tuple[list[Answered], list[Answered]] | None]:
    """By data set what was gained and lost; None where the other run answered nothing."""
    return {
        name: most_changed(several, CHANGED) if any(one.other is not None for one in several) else None
        for name, several in answered.items()
    }


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
    """Rows of name, EM, F1, questions, F1 of the other run if it was tested on as many; the out-of-domain mean last."""
    own, theirs = (one.model_dump()["eval"] if one else {} for one in (results, other))
    alike = {name for name, one in own.items() if name in theirs and theirs[name]["total"] == one["total"]}
    rows = [
        [name, s["exact_match"], s["f1"], s["total"], theirs[name]["f1"] if name in alike else None]
        for name, s in own.items()
    ]
    if mean := out_of_domain_mean(own):
        same = out_of_domain_mean(theirs) if list(own) == list(theirs) and alike == own.keys() else None
        rows.append(["out-of-domain mean", mean["exact_match"], mean["f1"], "", same and same["f1"]])
    return rows


def _cost(results: Results | None) -> list[tuple[str, str]]:
    """The section `train` of results.json with units; of what is not known here the number."""
    units = {
        "examples": ("Training questions", lambda v: f"{v:,}"),
        "features": ("Their windows", lambda v: f"{v:,}"),
        "updates": ("Updates", lambda v: f"{v:,}"),
        "seconds": ("Training time", lambda v: f"{v / 60:,.1f} min" if v > 90 else f"{v:.1f} s"),
        "samples_per_second": ("Samples per second", lambda v: f"{v:,.1f}"),
        "tokens_per_second": ("Tokens per second", lambda v: f"{v:,.0f}"),
        "peak_memory_bytes": ("Peak memory of the rank that took most", lambda v: f"{v / MIB:,.0f} MiB"),
    }
    plain = {name: v for name, v in (results.train if results else {}).items() if is_number(v)}
    return [
        (units[name][0], units[name][1](value)) if name in units else (name.replace("_", " "), f"{value:,g}")
        for name, value in plain.items()
    ]


def _ranks(health: Sequence[HealthLine], *, own_forward: bool) -> list[dict[str, Any]]:
    """Rank by rank what an update took (medians over the logged ones), where there are several or one stands out.

    Args:
        own_forward: whether forward passes are a rank's own, and do not wait for other ranks' weights.
    """
    names = ("step_seconds", "data_seconds", "forward_seconds", "memory_mib")
    world = len(health[-1].step_seconds) if health else 0  # as the run ended: it may have come back on other ranks
    lines = [line for line in health if all(len(getattr(line, name)) == world for name in names)]
    if not lines or not world:
        return []
    usual = median(value for line in lines for value in line.forward_seconds)
    rows = []
    for rank in range(world):
        row = {name: median(getattr(line, name)[rank] for line in lines) for name in names[:3]}
        notes = []
        if row["data_seconds"] > WAITING * row["step_seconds"]:
            notes.append("waits for data")
        if own_forward and row["forward_seconds"] > SLOW * usual:
            notes.append("slow forward passes")
        if bad := [line.update for line in lines if rank in line.not_finite]:
            notes.append(f"not finite at update {bad[0]}" + (f" and {len(bad) - 1} more" if bad[1:] else ""))
        memory = max(line.memory_mib[rank] for line in lines)
        rows.append(row | {"rank": rank, "memory_mib": memory, "notes": ", ".join(notes)})
    return [row for row in rows if row["notes"] or 1 < world <= RANKS]


def _repeat(folder: Path, results: Results | None) -> str:
    """The command line that makes this run again."""
    parts = ["deepspeed", "--num_accelerators", str(results.world_size if results else 1), "scripts/train.py"]
    parts += ["--ds_config", str(folder / "ds_config.json"), "--recipe", str(folder / "recipe.yaml")]
    return f"{shlex.join(parts)} --output_dir NEW"
