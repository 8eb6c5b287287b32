"""The training benchmark: a recipe's methods side by side, their profiles, and their operations at each ZeRO stage."""

import gc
import math
from functools import partial
from typing import Any

import pandas
import torch
from torch.autograd import DeviceType
from torch.profiler import profile

from benchmarks.training import candidates as bench
from benchmarks.training import launches
from benchmarks.training.updates import EngineUpdate, Published, Update, engine_of, plain_update, trainer_update
from benchmarks.training.ways import PLAIN, PUBLISHED, RANDOM, TRAINER, Way
from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.evaluation.results import versions
from swep_ds.models.backends import HALVES
from swep_ds.pipeline.build import training_batches
from swep_ds.pipeline.checks import read_and_check
from swep_ds.pipeline.prepare import prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.training.ds_config import read_ds_config, zero_stage
from swep_ds.training.engine import build_engine

WIDTH = 170  # characters of the printed tables
SHOWN = 15  # rows of a profile's table
COLUMNS = {  # the table's: a figure, its title and the factor of its unit
    "zero_stage": ("ZeRO", 1),
    "median_update_seconds": ("ms", 1e3),
    "time_ratio": ("x", 1),
    "median_process_seconds": ("host ms", 1e3),
    "process_ratio": ("x host", 1),
    "kernel_seconds": ("kernel ms", 1e3),
    "first_seconds": ("first s", 1),
    "samples_per_second": ("samples/s", 1),
    "speed_to_published": ("x published", 1),
    "flops_per_second": ("TFLOP/s", 1e-12),
    "share_of_peak": ("of peak", 1),
    "peak_bytes": ("peak MiB", 2**-20),
    "memory_ratio": ("x memory", 1),
    "padding": ("padding", 1),
}
Figures = dict[str, Any]


def side_by_side(ways: dict[str, Way], *, updates: int, warmup: int, peak_flops: float | None = None) -> Figures:
    """Compares updates in turns, and peak memory. `ways` are by a candidate's name; `peak_flops` as in `figures`.

    Raises InputError: several ranks are to run what runs on one; a way cannot have what it adds by a +; or ZeRO-3 is to
    run beside others.
    """
    with ranks.process_group():
        _check(ways)
        first = next(iter(ways.values()))
        job = prepare(read_and_check(first.recipe, first.ds_config))
        largest = bench.largest_batch(job.batches)
        common = bench.sample(job.batches, warmup, updates)
        candidates = []
        flops = {}
        for name, way in ways.items():
            update, peak = bench.measure_memory(partial(_build, way), largest)
            if way.loop == TRAINER and not accelerator.on_gpu():
                peak = None  # its thread's is not recorded
            candidates.append(bench.Candidate(name, way.method, update, common, peak))
            if way.loop != TRAINER and way.method not in flops:  # PyTorch does not count those of another thread
                flops[way.method] = bench.flops_per_token(update, largest)
            if way.loop == PUBLISHED:  # also on batches as it makes them, whatever the lengths
                unsorted = Recipe.make(first.recipe, train={"group_by_length": False, "pad_to_multiple_of": 1})
                batches = training_batches(unsorted, job.tokenizer, job.features, 0, 1, accelerator.on_gpu())
                random = bench.sample(batches, warmup, updates)
                candidates.append(bench.Candidate(name + RANDOM, way.method, update, random, peak))
        bench.measure(candidates, warmup)
        rows = bench.figures(candidates, warmup, flops, peak_flops)
        windows, tokens = largest.input_ids.shape

        say = Console(width=WIDTH, quiet=not ranks.is_main()).print
        say(f"{updates} updates each, in turns; medians; peak memory on {windows} windows of {tokens} tokens")
        frame = pandas.DataFrame(rows).set_index("name")
        figures = frame.dropna(axis="columns", how="all")
        shown = {title: figures[name] * factor for name, (title, factor) in COLUMNS.items() if name in figures}
        shown["compared with"] = frame["compared_with"]
        stage = {"ZeRO": lambda number: "" if math.isnan(number) else f"{number:.0f}"}
        say(pandas.DataFrame(shown).to_string(float_format="{:,.3f}".format, formatters=stage, na_rep=""))
        compared = {"ranks": ranks.world_size(), "peak_memory_on": [windows, tokens], "rows": rows}
        return _about(first.recipe) | compared


def _check(ways: dict[str, Way]) -> None:
    loops = {way.loop for way in ways.values()} - {PUBLISHED}
    for name, way in ways.items():
        if way.has_engine:
            _check_engine(way, beside=len(loops) > 1)
        elif ranks.world_size() > 1:
            raise InputError(f"{name}: runs on one rank: leave it out, or start one process")


def _check_engine(way: Way, beside: bool) -> None:
    config = read_ds_config(way.loop)
    stage = zero_stage(config)
    word = "+".join([way.loop, *way.settings])
    if stage == 3 and "compile" in way.settings:
        raise InputError(f"--ways {word}: ZeRO-3 gathers weights between layers: leave +compile out, or take zero1")
    if stage == 3 and beside:
        raise InputError("--ways: ZeRO-3 goes alone: there DeepSpeed replaces PyTorch's linear function for good")


def _build(way: Way) -> Update:
    job = prepare(read_and_check(way.recipe, way.ds_config))
    train = way.recipe.train
    if way.loop == PUBLISHED:
        return plain_update(Published(job.objective.qa), train)
    if way.loop == PLAIN:
        return plain_update(job.objective, train)
    if way.loop == TRAINER:
        return trainer_update(job.objective.qa.model, train)
    engine = build_engine(job.objective, job.config, train, job.batches.updates)
    if "graphs" in way.settings and engine.graphs is None:
        raise InputError(
            f"{way.method}: CUDA graphs need a GPU, ZeRO-1 without offload, and a method and a model that can be "
            "replayed: leave +graphs out of --ways"
        )
    return EngineUpdate(engine)


def profiles(ways: dict[str, Way], *, updates: int, warmup: int) -> Figures:
    """Profiles each one's updates, one after the other.

    The tables are PyTorch's, of all updates. The figures list, the slowest first, an update's kernels on a GPU and its
    operations elsewhere, by name: `seconds` without what they call, and `calls`. Raises InputError: as `side_by_side`.
    """
    clock = "self_device_time_total" if accelerator.on_gpu() else "self_cpu_time_total"
    kind = DeviceType.CUDA if accelerator.on_gpu() else DeviceType.CPU
    profiled = {}
    stages = {}
    with ranks.process_group():
        _check(ways)
        first = next(iter(ways.values()))
        batches = bench.sample(prepare(read_and_check(first.recipe, first.ds_config)).batches, 0, updates)
        for name, way in ways.items():
            update = _build(way)
            engine = engine_of(update)
            stages[name] = engine.stage if engine else None
            # at ZeRO-3 the first two record the order of the modules
            for number in range(bench.first_passes(update) * updates if accelerator.on_gpu() else max(2, warmup)):
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
            if engine:
                engine.destroy()
            del engine, update  # one at a time is in memory
            gc.collect()
        return _about(first.recipe) | {"zero_stages": stages, "updates": updates, "profile": profiled}


def operations(ways: dict[str, Way]) -> Figures:
    """Counts the operations of an update of each, with the shipped ds_config of every ZeRO stage and in a loop of plain
    PyTorch. Raises InputError: on several ranks."""
    rows = []
    with ranks.process_group():
        if ranks.world_size() > 1:
            raise InputError("--operations counts on one rank: start one process")
        for stage in (launches.PLAIN, 0, 1, 2, 3):  # ZeRO-3 last: it replaces PyTorch's linear for good
            for name, way in ways.items():
                train = way.recipe.train
                if stage == 0 and train.precision in HALVES:
                    continue  # refused there
                if stage == launches.PLAIN:
                    job = prepare(read_and_check(way.recipe, "zero1"))
                    counts = launches.count_plain_launches(job.objective, bench.largest_batch(job.batches), train)
                else:
                    job = prepare(read_and_check(way.recipe, f"zero{stage}"))
                    engine = build_engine(job.objective, job.config, train, job.batches.updates)
                    counts = launches.count_launches(engine, bench.largest_batch(job.batches))
                    engine.destroy()
                rows.append({"name": name, "stage": stage, **counts})
    rows.sort(key=lambda row: [*ways].index(row["name"]))
    Console(width=WIDTH).print(pandas.DataFrame(rows).to_string(index=False))
    return _about(way.recipe) | {"operations": rows}


def _about(recipe: Recipe) -> Figures:
    return {
        "hardware": accelerator.product_name() or f"{torch.get_num_threads()} CPU threads",
        "versions": versions(),
        "model": recipe.model.name,
        "micro_batch_size": recipe.train.micro_batch_size,
        "precision": recipe.train.precision,
    }
