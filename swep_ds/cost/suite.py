"""The training benchmark: a recipe's methods side by side, their training loops, profiles, and how they scale."""

import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.cost import breakdown, launches, profile, scaling
from swep_ds.cost.candidates import (
    EngineTraining,
    build_candidate,
    engine_update,
    figures,
    largest_batch,
    measure,
    sample,
    table,
)
from swep_ds.cost.flops import count
from swep_ds.cost.published import PlainTraining, Published
from swep_ds.data.batches import Batch, TrainingBatches
from swep_ds.evaluation.results import versions
from swep_ds.pipeline.prepare import Prepared, prepare, training_batches
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.training.ds_config import OFFLOADS, read_ds_config, zero_stage
from swep_ds.training.engine import build_engine

WIDTH = 170  # characters of the printed tables
RANDOM = ":random"  # suffix of the published procedure's name where it runs on its own random batches
Figures = dict[str, Any]


def side_by_side(recipes: dict[str, Recipe], ds_config: str, plain: str, *, updates: int, warmup: int) -> Figures:
    """Compares updates in turns and peak memory, then each engine's training loop, on half of the updates.

    Args:
        recipes: by candidate name.
        plain: the name of the published procedure; `recipes` may contain it.

    Raises:
        InputError: there are several ranks, or an epoch has fewer updates.
    """
    with ranks.process_group():
        if ranks.world_size() > 1:
            raise InputError("updates and their memory are compared on one rank: add --loop, or start one process")
        first = next(iter(recipes.values()))
        job = prepare(first, ds_config)
        _check(job, updates)
        largest = largest_batch(job.batches).to(ranks.device())
        batches = sample(job.batches, warmup, updates)
        common = _load(batches)
        candidates = []
        for name, recipe in recipes.items():
            make = _published if name == plain else _under_engine
            candidates.append(build_candidate(name, partial(make, recipe, ds_config), largest))
            if name == plain:
                random = _load(sample(_random_batches(first, job), warmup, updates))
                candidates.append(replace(candidates[-1], name=name + RANDOM, batches=random, seconds=[]))
        for candidate in candidates:
            candidate.batches = candidate.batches or common
        measure(candidates, warmup)
        rows = figures(candidates, warmup, first.train.precision)
        say = Console(width=WIDTH).print
        say(table(rows, updates, largest.input_ids.shape))
        speeds = {row["name"]: row["samples_per_second"] for row in rows}
        published = speeds.pop(plain + RANDOM, None)
        ratios = {name: speed / published for name, speed in speeds.items()} if published else {}
        for name, ratio in ratios.items():
            say(f"{name}: {ratio:.2f} times the published procedure's samples per second, each on batches of its own")
        loops = {}
        for candidate in candidates:
            if engine := candidate.training.engine:
                recipe = recipes[candidate.name]
                loops[candidate.name] = breakdown.break_down(engine, batches, recipe, max(1, updates // 2))
        if loops:
            say(breakdown.table(loops))
        return {
            **_about(first, job),
            "peak_memory_on": list(largest.input_ids.shape),
            "rows": rows,
            "samples_per_second_to_published": ratios,
            "loop": loops,
        }


def loops(recipes: dict[str, Recipe], ds_config: str, *, updates: int, warmup: int) -> Figures | None:
    """Takes each training loop apart, one after the other, on all ranks; returns None except on rank 0.
    Raises InputError: an epoch has fewer updates."""

    def work(engine, job: Prepared, recipe: Recipe) -> tuple[Figures, float, Figures]:
        batches = sample(job.batches, 1, updates)
        flops = _warm_up(engine, recipe, _load(batches), warmup)
        return breakdown.break_down(engine, batches, recipe, updates), flops, _sizes(engine.module, job)

    with ranks.process_group():
        about, results = _one_by_one(recipes, ds_config, updates, work)
        if not ranks.is_main():
            return None
        rows, flops, sizes = ({name: result[k] for name, result in results.items()} for k in range(3))
        Console(width=WIDTH).print(breakdown.table(rows))
        largest = max(sizes.values(), key=lambda size: size["parameters"])
        return {**about, **largest, "flops": flops, "loop": rows}


def profiles(recipes: dict[str, Recipe], ds_config: str, *, updates: int, warmup: int) -> Figures | None:
    """Profiles each one's updates, one after the other; returns None except on rank 0.
    Raises InputError: an epoch has fewer updates."""

    def work(engine, job: Prepared, recipe: Recipe) -> list[Figures]:
        batches = _load(sample(job.batches, 0, updates))
        _warm_up(engine, recipe, batches, warmup)
        update, numbered = engine_update(engine, recipe.train.execution), itertools.cycle(enumerate(batches))

        def next_update() -> None:
            number, batch = next(numbered)
            update(batch, number)

        return profile.profile_updates(next_update, updates)

    with ranks.process_group():
        about, results = _one_by_one(recipes, ds_config, updates, work)
        if not ranks.is_main():
            return None
        for name, rows in results.items():
            Console(width=WIDTH).print(profile.table(name, rows))
        return {**about, "updates": updates, "profile": results}


def operations(recipes: dict[str, Recipe], ds_config: str) -> Figures:
    """Counts the operations of an update of each, at every ZeRO stage and in a loop of PyTorch's alone.

    Args:
        ds_config: its other settings hold at every stage; offload is left out.

    Raises:
        InputError: there are several ranks.
    """
    rows = []
    with ranks.process_group(), tempfile.TemporaryDirectory() as folder:
        if ranks.world_size() > 1:
            raise InputError("--operations counts on one rank: start one process")
        for stage in (launches.PLAIN, *scaling.STAGES):  # ZeRO-3 last: it replaces PyTorch's linear for good
            file = _at_stage(ds_config, 0 if stage == launches.PLAIN else stage, Path(folder))
            for name, recipe in recipes.items():
                job = prepare(recipe, file)
                batch = largest_batch(job.batches).to(ranks.device())
                if stage == launches.PLAIN:
                    counts = launches.count_plain_launches(job.objective.to(ranks.device()), batch, recipe.train)
                else:
                    engine = build_engine(job.objective, job.config, recipe.train, job.batches.updates)
                    counts = launches.count_launches(engine, batch, recipe.train.execution)
                    engine.destroy()
                rows.append({"name": name, "stage": stage, **counts})
        rows.sort(key=lambda row: [*recipes].index(row["name"]))
        Console(width=WIDTH).print(launches.table(rows, recipe.train.precision))
        about = {name: value for name, value in _about(recipe, job).items() if name != "zero_stage"}
        return {**about, "operations": rows}


def _at_stage(ds_config: str, stage: int, folder: Path) -> str:
    """Writes a ds_config with another ZeRO stage, without offload; returns its path."""
    config = read_ds_config(ds_config)
    zero = {name: value for name, value in config.get("zero_optimization", {}).items() if name not in OFFLOADS}
    file = folder / f"zero{stage}.json"
    file.write_text(json.dumps(config | {"zero_optimization": zero | {"stage": stage}}), encoding="utf-8")
    return str(file)


def _one_by_one(
    recipes: dict[str, Recipe], ds_config: str, updates: int, work: Callable
) -> tuple[Figures, dict[str, Any]]:
    """What was measured on, and what `work` returns for each engine; one engine at a time is in memory."""
    results = {}
    for name, recipe in recipes.items():
        engine, job = _engine(recipe, ds_config)
        _check(job, updates)
        results[name] = work(engine, job, recipe)
        about = {**_about(recipe, job), "ranks": ranks.world_size()}
        engine.destroy()
        del engine, job
        gc.collect()  # the engine's reference cycles hold the device's memory
        get_accelerator().empty_cache()
    return about, results


def _warm_up(engine, recipe: Recipe, batches: list[Batch], updates: int) -> float:
    """At least two updates (at ZeRO-3 they record the order of the modules); returns a rank's FLOPs of a mean one."""
    engine.train()
    update = engine_update(engine, recipe.train.execution)
    for number in range(max(2, updates)):
        update(batches[number % len(batches)], number)
    flops = count(engine.module, engine.module.qa, update, batches[0])
    lengths = [batch.attention_mask.sum(1).tolist() for batch in batches]
    return sum(map(flops.of, lengths)) / len(batches)


def rank_by_rank(command: list[str], counting: list[str]) -> Figures:
    """Runs `command` on 1 and 2 ranks; then models more ranks, with the operations that `counting` counts on one.

    Both are scripts with arguments, and write to the --json file that they are given. On a machine with GPUs there are
    at most as many ranks as GPUs; a CPU rank computes with one thread.
    """
    worlds = [world for world in (1, 2) if not accelerator.on_gpu() or accelerator.device_count() >= world]
    measured = [_launch(command, world) for world in worlds]
    rows = _launch(counting, 1)["operations"]
    operations = [[row["stage"], row["name"], row["all"]] for row in rows if row["stage"] != launches.PLAIN]
    say = Console(width=WIDTH).print
    if len(measured) == 2:
        alone, paired = (run["loop"] for run in measured)
        for name, row in paired.items():
            ratio = row["samples_per_second"] / alone[name]["samples_per_second"]
            say(f"{name}: {ratio:.2f} times the samples per second of 1 rank on 2")
    job = measured[0] | {"operations": operations}
    rows = scaling.predict(job)
    for shown in scaling.tables(job, rows):
        say(shown)
    about = {"operations": operations, "assumptions": asdict(scaling.cluster(job))}
    return {"measured": measured, **about, "model": rows}


def _launch(command: list[str], world: int) -> Figures:
    """What a script with its arguments writes to --json on so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world)]
        launcher += ["--master_port", str(ranks.free_port())]
        ended = subprocess.run(
            [*launcher, *command, "--json", str(file)], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
        )
        if ended.returncode:
            raise SystemExit(f"error: the benchmark on {world} rank(s) failed: see above")
        return json.loads(file.read_text(encoding="utf-8"))


def _published(recipe: Recipe, ds_config: str) -> PlainTraining:
    return PlainTraining(Published(prepare(recipe, ds_config).objective.qa).to(ranks.device()), recipe.train)


def _under_engine(recipe: Recipe, ds_config: str) -> EngineTraining:
    return EngineTraining(_engine(recipe, ds_config)[0], recipe.train.execution)


def _engine(recipe: Recipe, ds_config: str) -> tuple[Any, Prepared]:
    job = prepare(recipe, ds_config)
    return build_engine(job.objective, job.config, recipe.train, job.batches.updates), job


def _check(job: Prepared, updates: int) -> None:
    if job.batches.updates_per_epoch < updates:
        raise InputError(
            f"an epoch has {job.batches.updates_per_epoch} updates, and {updates} are asked for: lower --updates, or "
            "name more data"
        )


def _random_batches(recipe: Recipe, job: Prepared) -> TrainingBatches:
    """The job's windows as the published procedure batches them, whatever their lengths."""
    train = recipe.train.model_copy(update={"group_by_length": False})
    return training_batches(recipe.model_copy(update={"train": train}), job.tokenizer, job.features, 0, 1)


def _load(batches: TrainingBatches) -> list[Batch]:
    return [batches[number].to(ranks.device()) for number in range(len(batches))]


def _about(recipe: Recipe, job: Prepared) -> Figures:
    return {
        "hardware": accelerator.product_name() or f"{torch.get_num_threads()} CPU threads",
        "versions": versions(),
        "model": recipe.model.name,
        "micro_batch_size": recipe.train.micro_batch_size,
        "precision": recipe.train.precision,
        "zero_stage": zero_stage(job.config),
    }


def _sizes(module: nn.Module, job: Prepared) -> Figures:
    """What `scaling.predict` needs to know of a model."""
    return {
        "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in module.parameters()),
        "modules": sum(1 for m in module.modules() if any(True for _ in m.parameters(recurse=False))),
        "width": 2 if job.config["bf16"]["enabled"] or job.config["fp16"]["enabled"] else 4,
        "reduce_bucket": int(job.config["zero_optimization"].get("reduce_bucket_size", 5e8)),
    }
