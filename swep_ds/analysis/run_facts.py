"""What a run's report tells of the run itself: settings, cost, ranks, and the command that repeats it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from swep_ds.analysis.charts import is_number
from swep_ds.common.files import read_lines
from swep_ds.evaluation.results import Checked, Results
from swep_ds.pipeline.folder import DS_CONFIG, RECIPE, GlobalBatch, RunFolder, batch_of_rank
from swep_ds.pipeline.recipe import PretrainSection, Recipe

MAX_RANKS_SHOWN = 16  # with more ranks, only those with a note are shown
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


def read_health(file: Path) -> tuple[list[HealthLine], int]:
    """The lines of health.jsonl, and how many others are not of this version."""
    lines, unread = [], 0
    for line in read_lines(file):
        try:
            lines.append(HealthLine.model_validate(line))
        except ValidationError:
            unread += 1
    return lines, unread


def zero_stage(config: dict[str, Any]) -> int:
    zero = config.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    return stage if stage in (0, 1, 2, 3) else 0


def _first_stage(pretrain: PretrainSection) -> str:
    updates = f", at most {pretrain.max_updates:,} updates" if pretrain.max_updates else ""
    questions = f", at most {pretrain.max_train_examples:,} questions" if pretrain.max_train_examples else ""
    return f"{pretrain.epochs:g} epochs{updates} on {pretrain.train}{questions}"


def settings(recipe: Recipe, results: Results | None, config: dict, batch: GlobalBatch | None) -> list[tuple[str, str]]:
    data, train = recipe.data, recipe.train
    sources = {
        "held-out articles": data.holdout_fraction and f"{100 * data.holdout_fraction:.3g} % of the training articles",
        "share of the questions": data.train_fraction != 1 and f"{100 * data.train_fraction:.3g} %",
        "at most": data.max_train_examples and f"{data.max_train_examples:,} questions",
        "augmented with": data.augmented,
    }
    fields = recipe.method.model_dump(exclude={"name"}).items()
    method = [f"{name} {value}" for name, value in fields if value is not None]
    tests = [f"{name}: {source}" for name, source in data.eval.items()]
    length = f"{train.epochs:g} epochs" + (f", at most {train.max_updates:,} updates" if train.max_updates else "")
    size = str(batch.windows) if batch else "not known"
    size += f" x {train.max_tokens} positions" if train.max_tokens else ""
    limit = f", {data.max_eval_examples:,} questions of each" if data.max_eval_examples else ""
    rows = [
        ("Method", f"{recipe.method.name}" + (f": {', '.join(method)}" if method else "")),
        ("Model", f"{recipe.model.name}, {recipe.task}"),
        ("Trained on", "; ".join([data.train, *(f"{name}: {value}" for name, value in sources.items() if value)])),
        ("First stage", recipe.pretrain and _first_stage(recipe.pretrain)),
        ("Tested on", ("; ".join(tests) or "nothing else") + limit),
        ("Windows", f"{data.max_length} tokens, a new one every {data.doc_stride}"),
        ("Training", f"{length}, global batch {size}, {train.execution} execution"),
        ("Optimizer", f"{train.optimizer}, learning rate {train.learning_rate:g}, {train.schedule} schedule"),
        ("Seed", str(recipe.seed)),
        ("Ranks", str(results.world_size) if results else "not known"),
        ("ZeRO stage", str(zero_stage(config)) if config else "not known"),
        ("Precision", train.precision),
    ]
    return [(name, value) for name, value in rows if value]


def cost(results: Results | None) -> list[tuple[str, str]]:
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


def ranks(health: Sequence[HealthLine], *, local_forward: bool) -> list[dict[str, Any]]:
    """A row per rank, with medians over the logged updates; a single rank without a note has none.

    Args:
        local_forward: whether a rank's forward passes wait for no other ranks' weights.
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
        notes += ["slow forward passes"] if local_forward and forward > SLOW * usual else []
        notes += [f"not finite at update {bad[0]}" + (f" and {len(bad) - 1} more" if bad[1:] else "")] if bad else []
        memory = max(line.memory_mib[rank] for line in lines)
        rows.append({"rank": rank, "seconds": (step, data, forward), "memory_mib": memory, "notes": ", ".join(notes)})
    return [row for row in rows if row["notes"] or 1 < world <= MAX_RANKS_SHOWN]


def command(folder: Path, recipe: Recipe, results: Results | None) -> str:
    """The command that repeats this run, on the number of ranks that gives its global batch. Its last start may have
    had another number."""
    batch = RunFolder(folder).global_batch(recipe, results.world_size if results else 1)
    ranks = batch // batch_of_rank(recipe)
    parts = ["swep-ds", "train", *(["--ranks", str(ranks)] if ranks > 1 else [])]
    parts += ["--ds_config", str(folder / DS_CONFIG), "--recipe", str(folder / RECIPE)]
    return f"{shlex.join(parts)} --output_dir NEW"
