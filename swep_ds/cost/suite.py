"""The training benchmark: a recipe's methods side by side, their profiles, and their operations at each ZeRO stage."""

import gc
import json
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
from swep_ds.evaluation.results import versions
from swep_ds.pipeline.prepare import Prepared, prepare, training_batches
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.training.ds_config import OFFLOADS, read_ds_config, zero_stage
from swep_ds.training.engine import build_engine

WIDTH = 170  # characters of the printed tables
SHOWN = 15  # rows of a profile's table
RANDOM = ":random"  # suffix of the published procedure's name where it runs on its own random batches
Figures = dict[str, Any]


def side_by_side(recipes: dict[str, Recipe], ds_config: str, plain: str, *, updates: int, warmup: int) -> Figures:
    """Compares updates in turns, and peak memory. `recipes` are by candidate; `plain` names the published procedure.

    Raises InputError: several ranks are to run the published procedure, which has one.
    """
    with ranks.process_group():
        if ranks.world_size() > 1 and plain in recipes:
            raise InputError(f"{plain}: runs on one rank: name other --methods, or start one process")
        first = next(iter(recipes.values()))
        job = prepare(first, ds_config)
        largest = bench.largest_batch(job.batches)
        common = bench.sample(job.batches, warmup, updates)
        candidates = []
        for name, recipe in recipes.items():
            make = partial(_build, recipe, ds_config, published=name == plain)
            update, peak = bench.measure_memory(make, largest)
            flops = bench.flops_per_token(update, largest)
            candidates.append(bench.Candidate(name, update, flops, peak, common))
            if name == plain:  # also on batches as it makes them, whatever the lengths
                unsorted = Recipe.make(first, train={"group_by_length": False, "pad_to_multiple_of": 1})
                batches = training_batches(unsorted, job.tokenizer, job.features, 0, 1, accelerator.on_gpu())
                random = bench.sample(batches, warmup, updates)
                candidates.append(bench.Candidate(name + RANDOM, update, flops, peak, random))
        bench.measure(candidates, warmup)
        rows = bench.figures(candidates, warmup)

        say = Console(width=WIDTH, quiet=not ranks.is_main()).print
        windows, tokens = largest.input_ids.shape
        say(f"{updates} updates each, in turns; medians; peak memory on {windows} windows of {tokens} tokens")
        frame = pandas.DataFrame(rows).set_index("name").dropna(axis=1, how="all")
        frame["ms/update"] = 1000 * frame.pop("median_update_seconds")
        frame["TFLOP/s"] = frame.pop("flops_per_second") / 1e12
        frame["peak MiB"] = frame.pop("peak_bytes") / 2**20
        say(frame.T.to_string(float_format="{:,.3f}".format))
        speeds = {row["name"]: row["samples_per_second"] for row in rows}
        published = speeds.pop(plain + RANDOM, None)
        ratios = {name: speed / published for name, speed in speeds.items()} if published else {}
        for name, ratio in ratios.items():
            say(f"{name}: {ratio:.2f} times the published procedure's samples per second, each on batches of its own")
        compared = {"ranks": ranks.world_size(), "peak_memory_on": [windows, tokens], "rows": rows}
        about = _about(first) | {"zero_stage": zero_stage(job.config)}
        return about | compared | {"samples_per_second_to_published": ratios}


def _build(recipe: Recipe, ds_config: str, *, published: bool) -> bench.Update:
    job = prepare(recipe, ds_config)
    if published:
        return bench.published_update(job.objective.qa, recipe.train)
    return bench.engine_update(_engine(recipe, job), recipe.train.execution)


def profiles(recipes: dict[str, Recipe], ds_config: str, *, updates: int, warmup: int) -> Figures:
    """Profiles each one's updates, one after the other.

    The tables are PyTorch's, of all updates. The figures list, the slowest first, an update's kernels on a GPU and its
    operations elsewhere, by name: `seconds` without what they call, and `calls`.
    """
    clock = "self_device_time_total" if accelerator.on_gpu() else "self_cpu_time_total"
    kind = DeviceType.CUDA if accelerator.on_gpu() else DeviceType.CPU
    profiled = {}
    with ranks.process_group():
        for name, recipe in recipes.items():
            job = prepare(recipe, ds_config)
            batches = bench.sample(job.batches, 0, updates)
            engine = _engine(recipe, job)
            update = bench.engine_update(engine, recipe.train.execution)
            for number in range(max(2, warmup)):  # at ZeRO-3 the first two record the order of the modules
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
                if event.device_type == kind and not event.is_user_annotation
            ]
            profiled[name] = sorted(rows, key=lambda row: -row["seconds"])
            engine.destroy()
            del engine, update  # one engine at a time is in memory
            gc.collect()
        about = _about(recipe) | {"zero_stage": zero_stage(job.config)}
        return about | {"updates": updates, "profile": profiled}


def operations(recipes: dict[str, Recipe], ds_config: str) -> Figures:
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
            for name, recipe in recipes.items():
                job = prepare(recipe, str(file))
                batch = bench.largest_batch(job.batches)
                if stage == launches.PLAIN:
                    counts = launches.count_plain_launches(job.objective.to(ranks.device()), batch, recipe.train)
                else:
                    engine = _engine(recipe, job)
                    counts = launches.count_launches(engine, batch, recipe.train.execution)
                    engine.destroy()
                rows.append({"name": name, "stage": stage, **counts})
    rows.sort(key=lambda row: [*recipes].index(row["name"]))
    Console(width=WIDTH).print(pandas.DataFrame(rows).to_string(index=False))
    return _about(recipe) | {"operations": rows}


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
