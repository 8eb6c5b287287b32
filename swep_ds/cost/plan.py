"""What a run would take, before it starts: parameters, updates, memory at each ZeRO stage, and which ds_configs fit.

No weights are read: the model is built from its config on the meta device. Tokenizer and training data are read as in a
run; a model without a tokenizer is planned for windows of `data.max_length` tokens. All bytes are estimates.
"""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.table import Table
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.pages import template
from swep_ds.cost.activations import count_activations
from swep_ds.cost.memory import HALF, ModelStates, States
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.methods import build as build_method
from swep_ds.methods.objective import Objective
from swep_ds.models.folders import resolve_model
from swep_ds.pipeline.build import build_objective, load_model, run_tokenizer, training_batches, training_features
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.export import FILE_BYTES
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.sweeps.sweep import Cell
from swep_ds.training.ds_config import complete_ds_config

# the fastest first: partitioning more costs communication, offload waits for the bus. ZeRO-0 takes more memory than
# ZeRO-1 and gives the device more operations in every precision (docs/measurements/cpu-training.md).
ORDER = ["zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "zero0"]
USABLE = 0.9  # share of a device's memory; its context, workspaces and fragmentation take the rest
GIB = 2**30
CAPTION = f"""\
peak = the largest of start (until the engine is built), training, evaluation and export. What fits takes at most
{USABLE:.0%} of the free memory. CPU: all ranks together, what they offload, or the float32 weights that each holds
there until they are on its device (ZeRO-3 leaves them in their files). On disk: each checkpoint, and with the exported
model all that are there at once."""


@dataclass(frozen=True)
class Devices:
    """`count` devices with `memory` free bytes each, and `host` bytes of CPU memory for all (None = not known)."""

    count: int
    memory: int
    on_gpu: bool
    host: int | None

    @staticmethod
    def parse(text: str) -> "Devices":
        """Reads --plan's value: "8x80" is 8 GPUs of 80 GiB each; "2xcpu" is 2 processes that share this machine's CPU
        memory; "" is what this machine has. Raises InputError: `text` is anything else."""
        ram = psutil.virtual_memory()
        if not text and (free := accelerator.free_memory()):
            return Devices(len(free), min(free), True, ram.available)
        if cpus := re.fullmatch(r"([1-9]\d*)xcpu", text or "1xcpu"):
            return Devices(int(cpus[1]), ram.available, False, ram.available)
        match = re.fullmatch(r"([1-9]\d*)x(\d+(?:\.\d+)?)", text)
        if not match or float(match[2]) == 0:
            known = "such as 8x80 for 8 GPUs of 80 GiB each, or as 2xcpu for 2 processes on this machine's CPU"
            raise InputError(f"--plan {text}: write it as NUMBERxGIB, {known}")
        return Devices(int(match[1]), int(float(match[2]) * GIB), True, None)

    def hold(self, peak: int, host: int) -> bool:
        """Whether a device holds `peak` bytes, and CPU memory `host` bytes; unknown CPU memory counts as enough."""
        return peak <= USABLE * self.memory and (self.host is None or host <= USABLE * self.host)


def plan(recipe: Recipe, devices: Devices, ds_config: str | None, command: Sequence[str]) -> None:
    """Prints the plan of a recipe, or of both stages of a recipe with `pretrain`, for one ds_config or for the shipped
    ones (None). `command` are the options of `swep-ds train` that name the recipe and change it.

    Raises InputError: there is no such model, the training data cannot be read, or no ds_config can be planned for.
    """
    names = [ds_config] if ds_config else ORDER
    console = Console(width=160)
    fitting = names  # in all stages, which one command runs
    for number, stage in enumerate(recipe.stages):
        if recipe.pretrain:
            console.print(("first stage (pretrain)", "\nsecond stage")[number])
        rows = plan_stage(stage, devices, names, console)
        fitting = [name for name in fitting if name in rows and devices.hold(rows[name]["peak"], rows[name]["CPU"])]
    if fitting:
        start = ["swep-ds", "train", "--ds_config", fitting[0], *command]
        if devices.count > 1:
            start[2:2] = ["--ranks", str(devices.count)]
        if accelerator.on_gpu() and not devices.on_gpu:
            start.insert(0, "DS_ACCELERATOR=cpu")
        console.print(f"use {Path(fitting[0]).name}, the fastest that fits:")
        console.print(f"    {shlex.join(start)}")
        return
    size = "max_tokens" if recipe.train.max_tokens else "micro_batch_size"
    hint = "set train.activation_checkpointing=true, lower eval.batch_size where evaluation takes the most, or use more"
    hint += " or larger devices; zero3_offload_nvme keeps the weights on disk"
    console.print(f"none fits: lower train.{size} and raise train.gradient_accumulation_steps, {hint}")


def plan_stage(recipe: Recipe, devices: Devices, names: Sequence[str], console: Console) -> dict[str, dict[str, int]]:
    """Prints what one training takes; returns the table's rows by ds_config: bytes by column."""
    train = recipe.train
    tokenizer = None
    try:
        tokenizer = run_tokenizer(recipe)
    except InputError as error:
        data = f"updates and tokens: not known, because {error}"
    objective = _objective(recipe, tokenizer)
    states, refused = _states(recipe, objective, names, devices)
    model, method = (sum(p.numel() for p in module.parameters()) for module in (objective.qa, objective.method))
    length = recipe.data.max_length
    # a checkpoint is written before the oldest is deleted; the best one up to each of those that are kept stays too
    saves = train.keep_checkpoints + 1
    if recipe.eval.select_on:
        saves += train.keep_checkpoints
    if tokenizer is not None:
        data, length, updates = _data(recipe, tokenizer, devices)
        saves = min(saves, math.ceil(updates / train.checkpoint_every))
    count = train.micro_batch_size
    if train.max_tokens:  # the windows of the longest length are the widest: attention grows with its square
        count = math.ceil(train.max_tokens / length)
    answer = None
    if recipe.task == "generative" and (recipe.data.eval or recipe.data.holdout_fraction):
        answer = recipe.data.max_length, recipe.eval.max_answer_tokens
    batch = _batch(recipe, count, length)
    counted = count_activations(objective, batch, train, on_gpu=devices.on_gpu, answer=answer)
    answers = recipe.eval.batch_size * recipe.eval.beams * counted.answer
    context = {"recipe": recipe, "train": train, "devices": devices, "model": model, "method": method, "data": data}
    context |= {"count": count, "length": length, "counted": counted, "answers": answers, "refused": refused}
    context["words"] = _words(recipe, objective, states, devices)
    held = counted.checkpointed if train.activation_checkpointing else counted.plain
    weights = model * HALF.get(train.precision, 4)
    if train.average != "none":  # the last weights are exported, too
        weights *= 2
    rows = {name: _row(state, held, answers, counted.casts, devices, weights, saves) for name, state in states.items()}
    console.print(template("cost/plan.jinja", gib=_gib).render(context).rstrip())
    console.print(_table(rows, [name for name, row in rows.items() if devices.hold(row["peak"], row["CPU"])]))
    return rows


def _states(
    recipe: Recipe, objective: Objective, names: Sequence[str], devices: Devices
) -> tuple[dict[str, States], list[InputError]]:
    """Model states by ds_config, and what is wrong with the others. Raises InputError: none can be planned for."""
    train = recipe.train
    setup = {"world_size": devices.count, "backwards": len(objective.parts(train.execution))}
    setup |= {"hidden_size": objective.qa.hidden_size, "on_cpu": not devices.on_gpu}
    states = {}
    refused = []
    for name in names:
        try:
            config = complete_ds_config(name, train, **setup)
            model = ModelStates(objective, config, train, devices.count, on_cpu=not devices.on_gpu)
            states[name] = model.planned()
        except InputError as error:
            refused.append(error)
    if not states:
        raise refused[0]
    return states, refused


def _words(recipe: Recipe, objective: Objective, states: dict[str, States], devices: Devices) -> dict[str, Any]:
    """What the word embeddings take, which are frozen from then on: bytes of all model states with one ds_config, of
    the word embeddings, and of these where they are frozen."""
    [name, *_] = states
    words = objective.qa.words.requires_grad_(False).weight
    frozen = _states(recipe, objective, [name], devices)[0][name]
    whole, rest = (state.phases(0)["training"] for state in (states[name], frozen))
    kept = words.numel() / sum(map(torch.numel, objective.parameters())) * frozen.parameters
    return {
        "config": Path(name).stem,
        "number": len(words),
        "whole": whole,
        "trained": whole - rest + kept,
        "kept": kept,
    }


def _objective(recipe: Recipe, tokenizer: PreTrainedTokenizerFast | None) -> Objective:
    """On the meta device, without activation checkpointing, which `count_activations` counts by layer."""
    train = recipe.train.model_copy(update={"activation_checkpointing": False})
    model = recipe.model
    if model.attention == "flash_attention_2":  # may not be installed; it saves what SDPA's fused kernels save
        model = model.model_copy(update={"attention": "auto"})
    changed = recipe.model_copy(update={"train": train, "model": model})
    qa = load_model(changed, tokenizer, model.name, weights=False)
    if recipe.task == "generative":
        # transformers ties every T5's head weights in the config, and unties them when it loads files with two tables,
        # as published T5 v1.1, Flan-T5 and mT5 have them
        published, _ = PreTrainedConfig.get_config_dict(resolve_model(model.name))
        head = qa.model.get_output_embeddings()
        if published.get("tie_word_embeddings") is False and head.weight is qa.model.get_input_embeddings().weight:
            head.weight = nn.Parameter(torch.empty_like(head.weight))
    with torch.device("meta"):
        return build_objective(recipe, qa)


def _data(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, devices: Devices) -> tuple[str, int, int]:
    """A line about the training data, the width of the widest batch, and the updates. The test sets may be missing."""
    questions, batches = _batches(recipe, tokenizer, devices.count, on_gpu=devices.on_gpu)
    seen = range(batches.updates)
    if not batches.mix:  # each epoch then has all windows, while one of a mix may see only a part of a source
        seen = seen[: batches.updates_per_epoch]
    tokens = sum(int(batches.lengths[batches.windows(update)].sum()) for update in seen)
    shapes = [(len(batches.windows(update)), batches.width(update)) for update in seen]
    positions = sum(count * width for count, width in shapes)
    text = (
        f"data: {questions:,} questions, {len(batches.lengths):,} windows; {batches.updates:,} updates of "
        f"{batches.size}, {tokens / len(seen):,.0f} tokens each; padding {1 - tokens / positions:.1%}; "
        f"{len(set(shapes)):,} shapes"
    )
    return text, max(width for _, width in shapes), batches.updates


def _batches(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, ranks: int, *, on_gpu: bool
) -> tuple[int, TrainingBatches]:
    """(number of training questions, rank 0's `TrainingBatches`). The test sets may be missing."""
    data = recipe.data.model_copy(update={"eval": {}})
    training, _ = load_examples(recipe.model_copy(update={"data": data}), [])
    features = training_features(recipe, tokenizer, training)
    return len(training), training_batches(recipe, tokenizer, features, 0, ranks, on_gpu)


def plan_sweep(cells: Sequence[Cell], ranks: int) -> None:
    """Prints a line for each variant of a sweep, at each of its points: runs, those that are done, and updates of a run
    and passes of an update. Raises InputError: the training data or the tokenizer of a run cannot be read."""
    table = Table("variant")
    for column in ("runs", "done", "updates", "passes"):
        table.add_column(column, justify="right")
    counted: dict[str, int] = {}  # updates, by what decides them
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(", ".join([cell.variant, *cell.labels.values()]), []).append(cell)
    for row, of_row in rows.items():
        recipe = of_row[0].recipe
        updates = 0
        for stage in recipe.stages:
            key = f"{stage.model.name} {stage.data.model_dump_json()} {stage.train.model_dump_json()}"
            if key not in counted:
                counted[key] = _batches(stage, run_tokenizer(stage), ranks, on_gpu=True)[1].updates
            updates += counted[key]
        passes = sum(pass_.forwards for pass_ in build_method(recipe.method, 4, 4).passes(0.0)) / 3
        done = sum(cell.results() is not None for cell in of_row)
        table.add_row(row, f"{len(of_row)}", f"{done}", f"{updates:,}", f"{passes:.3g}")
    table.add_row("all", f"{len(cells)}", style="bold")
    Console(width=160).print(table)


def _batch(recipe: Recipe, count: int, length: int) -> Batch:
    """A micro-batch of `count` windows of this length; only its shapes count."""
    ids = torch.ones(count, length, dtype=torch.int64)
    row = torch.zeros(count, dtype=torch.int64)
    shares = torch.ones(count)
    labels = {"start_position": row, "end_position": row}
    if recipe.task == "generative":
        labels = {"target_ids": torch.ones(count, recipe.data.max_target_length, dtype=torch.int64)}
    return Batch(ids, ids, sample_id=row, weight=shares, token_weight=shares, lengths=(length,) * count, **labels)


def _row(
    state: States, activations: int, answers: int, casts: int, devices: Devices, weights: int = 0, saves: int = 1
) -> dict[str, int]:
    """Bytes by column of the table. `weights` are those of the exported model, which are written in parts, and `saves`
    the most checkpoints that are there at once."""
    copies = casts
    if state.partitioned:
        copies = 0
    if devices.on_gpu:
        phases = state.phases(activations + copies, answers + copies)
        peak = max(phases.values())
        host = max(state.loading, state.host)
    else:  # CPU memory is the device's as well
        phases = state.phases(activations + copies, answers + copies, min(weights, FILE_BYTES))
        phases = {name: size + state.host for name, size in phases.items()}
        phases["start"] -= state.moments
        peak = host = max(phases.values())
    row = {name: getattr(state, name) for name in ("parameters", "optimizer", "gradients")}
    row |= {"activations": activations + copies, **phases, "peak": peak, "CPU": devices.count * host}
    return row | {"checkpoint": state.saved, "disk": saves * state.saved + weights}


def _table(rows: dict[str, dict[str, int]], fitting: Sequence[str]) -> Table:
    unit, size_of_unit = "MiB", 2**20
    if max(row["peak"] for row in rows.values()) >= GIB:
        unit, size_of_unit = "GiB", GIB
    title = f"memory per device, and disk, in {unit} (estimates)"
    table = Table(title=title, title_justify="left", caption=CAPTION, caption_justify="left")
    table.add_column("ds_config", no_wrap=True)
    for column in [*next(iter(rows.values())), ""]:
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in rows.items():
        sizes = [f"{size / size_of_unit:,.1f}" for size in row.values()]
        table.add_row(Path(name).stem, *sizes, "fits" if name in fitting else "too much")
    return table


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
