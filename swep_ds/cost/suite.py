"""The training benchmark: a recipe's methods side by side, their profiles, and their operations at each ZeRO stage."""

import gc
import json
import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import torch
from torch.autograd import DeviceType
from torch.profiler import profile

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.cost import candidates as bench
from swep_ds.cost import launches
from swep_ds.cost.updates import EngineUpdate, Update, plain_update, published_update, trainer_update
from swep_ds.cost.ways import PLAIN, PUBLISHED, RANDOM, TRAINER, Plan
from swep_ds.evaluation.results import versions
from swep_ds.pipeline.prepare import Prepared, prepare, training_batches
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.training.ds_config import OFFLOADS, read_ds_config, zero_stage
from swep_ds.training.engine import build_engine

WIDTH = 170  # characters of the printed tables
SHOWN = 15  # rows of a profile's table
COLUMNS = {  # of the table: a figure, its title and the factor of its unit
    "zero_stage": ("ZeRO", 1),
    "median_update_seconds": ("ms", 1e3),
    "time_ratio": ("x first", 1),
    "time_ratio_to_first_way": ("x first way", 1),
    "median_process_seconds": ("host ms", 1e3),
    "process_ratio_to_first_way": ("x host", 1),
    "kernel_seconds": ("kernel ms", 1e3),
    "first_seconds": ("first s", 1),
    "samples_per_second": ("samples/s", 1),
    "flops_per_second": ("TFLOP/s", 1e-12),
    "share_of_peak": ("of peak", 1),
    "peak_bytes": ("peak MiB", 2**-20),
    "memory_ratio": ("x memory", 1),
    "padding": ("padding", 1),
}
Figures = dict[str, Any]


def side_by_side(plans: dict[str, Plan], *, updates: int, warmup: int, peak_flops: float | None = None) -> Figures:
    """Compares updates in turns, and peak memory. `plans` are by a candidate's name; `peak_flops` as in `figures`.

    Raises InputError: several ranks are to run what runs on one; or ZeRO-3 is to run beside others.
    """
    with ranks.process_group():
        _check(plans)
        first = next(iter(plans.values()))
        job = prepare(first.recipe, first.ds_config)
        largest = bench.largest_batch(job.batches)
        common = bench.sample(job.batches, warmup, updates)
        candidates = []
        flops = {}
        for name, plan in plans.items():
            update, peak = bench.measure_memory(partial(_build, plan), largest)
            if plan.loop == TRAINER and not accelerator.on_gpu():
                peak = None  # its thread's is not recorded
            candidate = bench.Candidate(name, plan.method, update, common, peak, _stage(update))
            candidates.append(candidate)
            if plan.loop != TRAINER and plan.method not in flops:  # PyTorch does not count those of another thread
                flops[plan.method] = bench.flops_per_token(update, largest)
            if plan.loop == PUBLISHED:  # also on batches as it makes them, whatever the lengths
                unsorted = Recipe.make(first.recipe, train={"group_by_length": False, "pad_to_multiple_of": 1})
                batches = training_batches(unsorted, job.tokenizer, job.features, 0, 1, accelerator.on_gpu())
                random = bench.sample(batches, warmup, updates)
                candidates.append(bench.Candidate(name + RANDOM, plan.method, update, random, peak))
        for candidate in candidates:
            candidate.flops_per_token = flops.get(candidate.method)
        bench.measure(candidates, warmup)
        rows = bench.figures(candidates, warmup, peak_flops)
        windows, tokens = largest.input_ids.shape
        speeds = {row["name"]: row["samples_per_second"] for row in rows}
        published = speeds.pop(PUBLISHED + RANDOM, None)
        ratios = {name: speed / published for name, speed in speeds.items()} if published else {}

        say = Console(width=WIDTH, quiet=not ranks.is_main()).print
        say(f"{updates} updates each, in turns; medians; peak memory on {windows} windows of {tokens} tokens")
        frame = pandas.DataFrame(rows).set_index("name")
        shown = {title: frame[name] * factor for name, (title, factor) in COLUMNS.items() if frame[name].notna().any()}
        if ratios:
            shown["x published"] = pandas.Series(ratios)
        stage = {"ZeRO": lambda number: "" if math.isnan(number) else f"{number:.0f}"}
        say(pandas.DataFrame(shown).to_string(float_format="{:,.3f}".format, formatters=stage, na_rep=""))
        compared = {"ranks": ranks.world_size(), "peak_memory_on": [windows, tokens], "rows": rows}
        return _about(first.recipe) | compared | {"samples_per_second_to_published": ratios}


def _check(plans: dict[str, Plan]) -> None:
    loops = {plan.loop for plan in plans.values()} - {PUBLISHED}
    if len(loops) > 1 and any(zero_stage(read_ds_config(loop)) == 3 for loop in loops - {PLAIN, TRAINER}):
        raise InputError("--ways: ZeRO-3 goes alone: there DeepSpeed replaces PyTorch's linear function for good")
    if ranks.world_size() > 1 and (alone := [name for name, plan in plans.items() if plan.on_one_rank]):
        raise InputError(f"{alone[0]}: runs on one rank: leave it out, or start one process")


def _build(plan: Plan) -> Update:
    job = prepare(plan.recipe, plan.ds_config)
    train = plan.recipe.train
    if plan.loop == PUBLISHED:
        return published_update(job.objective.qa, train)
    if plan.loop == PLAIN:
        return plain_update(job.objective, train)
    if plan.loop == TRAINER:
        return trainer_update(job.objective.qa.model, train)
    return EngineUpdate(_engine(plan.recipe, job))


def _stage(update: Update) -> int | None:
    return update.engine.stage if isinstance(update, EngineUpdate) else None


def profiles(plans: dict[str, Plan], *, updates: int, warmup: int) -> Figures:
    """Profiles each one's updates, one after the other.

    The tables are PyTorch's, of all updates. The figures list, the slowest first, an update's kernels on a GPU and its
    operations elsewhere, by name: `seconds` without what they call, and `calls`. Raises InputError: as `side_by_side`.
    """
    clock = "self_device_time_total" if accelerator.on_gpu() else "self_cpu_time_total"
    kind = DeviceType.CUDA if accelerator.on_gpu() else DeviceType.CPU
    profiled = {}
    stages = {}
    with ranks.process_group():
        _check(plans)
        for name, plan in plans.items():
            job = prepare(plan.recipe, plan.ds_config)
            batches = bench.sample(job.batches, 0, updates)
            update = _build(plan)
            stages[name] = _stage(update)
            # at ZeRO-3 the first two record the order of the modules
            for number in range(bench.FIRST * updates if accelerator.on_gpu() else max(2, warmup)):
                update(batches[number % updates], number)
            ranks.synchronize()
            with profile() as recorded:
                for number, batch in enumerate(batches):
                    update(batch, number)
                ranks.synchronize()
            events = recorded.key_averages()
            if ranks.is_main():
                print(f"{name}\n{events.table(sort_by=clock, row_limit=SHOWN, max_name_column_width=WIDTH // 2)}")
            rows = [
                {"name": event.key, "seconds": getattr(event, clock) / 1e6 / updates, "calls": event.count / updates}
                for event in events
                if bench.is_measured(event, kind)
            ]
            profiled[name] = sorted(rows, key=lambda row: -row["seconds"])
            if isinstance(update, EngineUpdate):
                update.engine.destroy()
            del job, update  # one at a time is in memory
            gc.collect()
        return _about(plan.recipe) | {"zero_stages": stages, "updates": updates, "profile": profiled}


def operations(plans: dict[str, Plan], ds_config: str) -> Figures:
    """Counts the operations of an update of each, at every ZeRO stage and in a loop of plain PyTorch.

    The other settings of `ds_config` hold at every stage; offload is left out. Raises InputError: on several ranks.
    """
    config = read_ds_config(ds_config)
    zero = {name: value for name, value in config.get("zero_optimization", {}).items() if name not in OFFLOADS}
    rows = []
    with ranks.process_group(), tempfile.TemporaryDirectory() as folder:
        if ranks.world_size() > 1:
            raise InputError("--operations counts on one rank: start one process")
        file = Path(folder) / "ds_config.json"
        for stage in (launches.PLAIN, 0, 1, 2, 3):  # ZeRO-3 last: it replaces PyTorch's linear for good
            zero["stage"] = 0 if stage == launches.PLAIN else stage
            file.write_text(json.dumps(config | {"zero_optimization": zero}), encoding="utf-8")
            for name, plan in plans.items():
                train = plan.recipe.train
                job = prepare(plan.recipe, str(file))
                batch = bench.largest_batch(job.batches)
                if stage == launches.PLAIN:
                    counts = launches.count_plain_launches(job.objective, batch, train)
                else:
                    engine = _engine(plan.recipe, job)
                    counts = launches.count_launches(engine, batch)
                    engine.destroy()
                rows.append({"name": name, "stage": stage, **counts})
    rows.sort(key=lambda row: [*plans].index(row["name"]))
    Console(width=WIDTH).print(pandas.DataFrame(rows).to_string(index=False))
    return _about(plan.recipe) | {"operations": rows}


def _engine(recipe: Recipe, job: Prepared) -> Any:
    return build_engine(job.objective, job.config, recipe.train, job.batches.updates)


def _about(recipe: Recipe) -> Figures:
    return {
        "hardware": accelerator.product_name() or f"{torch.get_num_threads()} CPU threads",
        "versions": versions(),
        "model": recipe.model.name,
        "micro_batch_size": recipe.train.micro_batch_size,
        "precision": recipe.train.precision,
    }
