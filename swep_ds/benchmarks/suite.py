"""The training benchmark: a recipe's methods side by side, their training loops, and how they scale."""

import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator
from torch import nn

from swep_ds import ranks
from swep_ds.benchmarks import breakdown, scaling
from swep_ds.benchmarks import profile as hot_spots
from swep_ds.benchmarks.candidates import (
    Candidate,
    contend,
    contend_plain,
    engine_update,
    figures,
    hardware,
    largest_batch,
    measure,
    sample,
    table,
)
from swep_ds.benchmarks.flops import count
from swep_ds.benchmarks.published import PlainTraining, Published, random_batches
from swep_ds.console import Console
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.errors import InputError
from swep_ds.evaluation.results import versions
from swep_ds.pipeline.run import Job, prepare
from swep_ds.ranks import accelerator
from swep_ds.recipe import Recipe
from swep_ds.training.ds_config import zero_stage
from swep_ds.training.engine import build_engine

WIDTH = 170  # of the printed tables
RANDOM = ":random"  # of the published procedure's name, where it runs on its own batches


def side_by_side(recipes: dict[str, Recipe], ds_config: str, plain: str, *, updates: int, warmup: int) -> dict:
    """Updates in turns and peak memory of all, then the training loop of each that has one, on half of the updates.

    Args:
        plain: the name among `recipes` of the published procedure, if it is there.

    Raises:
        InputError: several ranks, or an epoch has fewer updates.
    """
    with ranks.process_group():
        if ranks.world_size() > 1:
            raise InputError("updates and their memory are compared on one rank: add --loop, or start one process")
        first = next(iter(recipes.values()))
        job = prepare(first, ds_config)
        _check(job.batches.updates_per_epoch, updates, "an epoch has")
        largest = largest_batch(job.batches).to(ranks.device())
        batches = sample(job.batches, warmup, updates)
        common = _load(batches)
        candidates = []
        for name, recipe in recipes.items():
            if name == plain:
                random = sample(random_batches(job.batches), warmup, updates)
                candidates += _published(name, recipe, ds_config, largest, _load(random))
                continue
            one = contend(name, lambda recipe=recipe: _engine(recipe, ds_config)[0], recipe.train.execution, largest)
            one.batches = common
            candidates.append(one)
        for one in candidates:
            one.batches = one.batches or common
        measure(candidates, warmup)
        rows = figures(candidates, warmup, first.train.precision)
        say = Console(width=WIDTH).print
        say(table(rows, updates, largest.input_ids.shape))
        against = _against_published(rows, plain + RANDOM)
        for name, times in against.items():
            say(f"{name}: {times:.2f} times the published procedure's samples per second, each on batches of its own")
        loops = {
            one.name: breakdown.break_down(one.engine, batches, recipes[one.name], max(1, updates // 2))
            for one in candidates
            if one.engine
        }
        if loops:
            say(breakdown.table(loops))
        return {
            **_about(first, job),
            "peak_memory_on": list(largest.input_ids.shape),
            "rows": rows,
            "samples_per_second_to_published": against,
            "loop": loops,
        }


def loops(recipes: dict[str, Recipe], ds_config: str, *, updates: int, warmup: int) -> dict | None:
    """The training loop of each, one after the other, on all ranks; None but on rank 0.

    Raises:
        InputError: too little data.
    """

    def work(engine, job: Job, recipe: Recipe) -> tuple[dict, float, dict]:
        batches = sample(job.batches, 1, updates)
        flops = _warm_up(engine, recipe, _load(batches), max(2, warmup))
        return breakdown.break_down(engine, batches, recipe, updates), flops, _sizes(engine.module, job)

    with ranks.process_group():
        about, found = _each(recipes, ds_config, updates, work)
        if not ranks.is_main():
            return None
        rows, flops, sizes = ({name: one[k] for name, one in found.items()} for k in range(3))
        Console(width=WIDTH).print(breakdown.table(rows))
        largest = max(sizes.values(), key=lambda one: one["parameters"])
        return {**about, **largest, "flops": flops, "loop": rows}


def profiles(recipes: dict[str, Recipe], ds_config: str, *, updates: int, warmup: int) -> dict | None:
    """What the updates of each spend their time in (`hot_spots`), one after the other; None but on rank 0.

    Raises:
        InputError: too little data.
    """

    def work(engine, job: Job, recipe: Recipe) -> list[dict[str, Any]]:
        batches = _load(sample(job.batches, 0, updates))
        _warm_up(engine, recipe, batches, max(2, warmup))
        return hot_spots.hot_spots(_next_update(engine, recipe, batches), updates)

    with ranks.process_group():
        about, found = _each(recipes, ds_config, updates, work)
        if not ranks.is_main():
            return None
        for name, rows in found.items():
            Console(width=WIDTH).print(hot_spots.table(name, rows))
        return {**about, "updates": updates, "hot_spots": found}


def _each(recipes: dict[str, Recipe], ds_config: str, updates: int, work: Callable) -> tuple[dict, dict[str, Any]]:
    """What was measured on, and what `work` finds of each engine; one engine at a time is in memory."""
    found = {}
    for name, recipe in recipes.items():
        engine, job = _engine(recipe, ds_config)
        _check(job.batches.updates_per_epoch, updates, "an epoch has")
        found[name] = work(engine, job, recipe)
        about = {**_about(recipe, job), "ranks": ranks.world_size()}
        engine.destroy()
        del engine, job
        _clear()
    return about, found


def _warm_up(engine, recipe: Recipe, batches: list, updates: int) -> float:
    """So many updates (at ZeRO-3 the first ones learn the order of the modules); a rank's FLOPs of a mean one."""
    engine.train()
    update = engine_update(engine, recipe.train.execution)
    for number in range(updates):
        update(batches[number % len(batches)], number)
    needed = count(engine.module, engine.module.qa, update, batches[0])
    lengths = [batch.attention_mask.sum(1).tolist() for batch in batches]
    return sum(map(needed.of, lengths)) / len(batches)


def _next_update(engine, recipe: Recipe, batches: list[Batch]) -> Callable[[], None]:
    update, numbered = engine_update(engine, recipe.train.execution), itertools.cycle(enumerate(batches))

    def run() -> None:
        number, batch = next(numbered)
        update(batch, number)

    return run


def rank_by_rank(command: list[str]) -> dict[str, Any]:
    """Runs `command`, which writes to the --json file it is given, on 1 and 2 ranks; then the model of more.

    On a machine with GPUs no more ranks than GPUs are started; a CPU rank computes with one thread.
    """
    measured = []
    for world in (1, 2):
        if accelerator.on_gpu() and accelerator.device_count() < world:
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "loop.json"
            launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world)]
            launcher += ["--master_port", str(ranks.free_port())]
            ended = subprocess.run(
                [*launcher, *command, "--json", str(file)], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
            )
            if ended.returncode:
                raise SystemExit(f"error: the benchmark's loop on {world} rank(s) failed: see above")
            measured.append(json.loads(file.read_text(encoding="utf-8")))
    say = Console(width=WIDTH).print
    if len(measured) == 2:
        one, two = (run["loop"] for run in measured)
        for name, row in two.items():
            times = row["samples_per_second"] / one[name]["samples_per_second"]
            say(f"{name}: {times:.2f} times the samples per second of 1 rank on 2")
    rows = scaling.predict(measured[0])
    text, shown = scaling.tables(measured[0], rows)
    say(text)
    say(shown)
    return {"measured": measured, "assumptions": asdict(scaling.cluster(measured[0])), "model": rows}


def _published(name: str, recipe: Recipe, ds_config: str, largest: Batch, random: list[Batch]) -> list[Candidate]:
    """On the batches of the others, and as `name:random` on its own."""

    def make() -> PlainTraining:
        qa = prepare(recipe, ds_config).objective.qa
        return PlainTraining(Published(qa).to(ranks.device()), recipe.train)

    same = contend_plain(name, make, largest)
    own = Candidate(
        name + RANDOM,
        same.forwards,
        same.extra_parameters,
        same.flops,
        same.update,
        same.state_bytes,
        same.peak_bytes,
        batches=random,
    )
    return [same, own]


def _against_published(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    speeds = {row["name"]: row["samples_per_second"] for row in rows}
    own = speeds.get(name)
    return {other: speed / own for other, speed in speeds.items() if own and other != name}


def _engine(recipe: Recipe, ds_config: str) -> tuple[Any, Job]:
    job = prepare(recipe, ds_config)
    return build_engine(job.objective, job.config, recipe.train, job.batches.updates), job


def _check(there: int, updates: int, of: str) -> None:
    if there < updates:
        raise InputError(f"{of} {there} updates, and {updates} are asked for: lower --updates, or name more data")


def _load(batches: TrainingBatches) -> list[Batch]:
    return [batches[number].to(ranks.device()) for number in range(len(batches))]


def _about(recipe: Recipe, job: Job) -> dict[str, Any]:
    return {
        "hardware": hardware(),
        "versions": versions(),
        "model": recipe.model.name,
        "micro_batch_size": recipe.train.micro_batch_size,
        "precision": recipe.train.precision,
        "zero_stage": zero_stage(job.config),
    }


def _sizes(module: nn.Module, job: Job) -> dict[str, Any]:
    """What `scaling.predict` needs to know of a model."""
    return {
        "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in module.parameters()),
        "modules": sum(1 for one in module.modules() if any(True for _ in one.parameters(recurse=False))),
        "width": 2 if job.config["bf16"]["enabled"] or job.config["fp16"]["enabled"] else 4,
        "reduce_bucket": int(job.config["zero_optimization"].get("reduce_bucket_size", 5e8)),
    }


def _clear() -> None:
    gc.collect()  # the engine's reference cycles hold the device's memory
    get_accelerator().empty_cache()
