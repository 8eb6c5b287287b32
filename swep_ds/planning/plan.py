"""What a run would take, before it is started: parameters, updates, memory at each ZeRO stage, what fits.

Nothing is trained, no weights are read and no memory is taken for them: the model is built from its config on the meta
device. Tokenizer and training data are read as a run would, from the hub where they are named there and can be reached.
Every number of bytes is an estimate; model states follow DeepSpeed's own allocations (`training.memory`), activations
are counted in a forward without data (`training.activations`). Where something cannot be known here, the plan says so
and goes on.
"""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from swep_ds.console import Console
from swep_ds.data.batches import Batch
from swep_ds.errors import InputError
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models.hub import load_tokenizer, resolve_model
from swep_ds.pipeline import run
from swep_ds.pipeline.examples import load_examples
from swep_ds.planning.activations import Activations, Search, count_activations
from swep_ds.planning.capacity import GIB, USABLE, Devices, Stage, checkpointings, choose, devices_that_do, gib
from swep_ds.planning.memory import States, model_states
from swep_ds.recipe import Recipe
from swep_ds.training.ds_config import read_ds_config, resolve_ds_config

# the simplest first: what is spread costs communication, what is offloaded waits for the bus
ORDER = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
MOST_DEVICES = 1024
PARTS = ("parameters", "optimizer", "buffers", "gradients", "passing")  # of States
Say = Callable[..., None]
WIDTH = 160  # of what is printed


def plan(recipe: Recipe, devices: Devices, ds_config: str | None, shipped: Path, command: Sequence[str]) -> None:
    """Prints the plan of a recipe; of both stages, if it has two.

    Args:
        ds_config: path of the file to look at; None = those in the folder `shipped`.
        command: the options of scripts/train.py that name the recipe and change it.

    Raises:
        InputError: no such model, a ds_config that contradicts the recipe, offload to disk.
    """
    # Adafactor factors whole matrices: `resolve_ds_config`
    names = ORDER[:1] if recipe.train.optimizer == "adafactor" else ORDER
    configs = {f"ds_configs/{name}.json": shipped / f"{name}.json" for name in names}
    if ds_config:
        configs = {ds_config: Path(ds_config)}
    say = Console(width=WIDTH).print
    stages = []
    if recipe.pretrain:
        say("first stage (pretrain)")
        stages.append(_stage(recipe.first_stage(), "pretrain", devices, configs, say))
        say("\nsecond stage")
    stages.append(_stage(recipe, "train", devices, configs, say))
    _say_choice(stages, devices, command, say)


def _stage(recipe: Recipe, section: str, devices: Devices, configs: dict[str, Path], say: Say) -> Stage:
    """Prints what one training takes."""
    train = recipe.train
    if train.max_tokens:
        widest = train.max_tokens // recipe.data.max_length
        raise InputError(
            f"train.max_tokens {train.max_tokens}: --plan counts windows: give train.max_tokens=null and "
            f"train.micro_batch_size={max(widest, 1)}, which are as many positions"
        )
    tokenizer, missing = _tokenizer(recipe.model.name)
    objective = _objective(recipe, tokenizer)
    own, added = (sum(p.numel() for p in module.parameters()) for module in (objective.qa, objective.method))
    states = _states(recipe, objective, configs, devices)
    how = f"{train.precision}, {train.optimizer}, {train.execution} execution"
    say(f"{recipe.method.name} on {recipe.model.name}: {how}")
    say(f"devices: {devices}")
    say(f"parameters: {own:,} of the model, {added:,} of the method")
    width, steps = train.micro_batch_size, train.gradient_accumulation_steps
    whole = width * steps * devices.count
    say(f"global batch: {width:,} windows x {steps:,} accumulated x {devices.count:,} device(s) = {whole:,}")
    length = _say_data(recipe, tokenizer, missing, devices.count, say)
    supported = objective.qa.model.supports_gradient_checkpointing
    search = _search(recipe)
    try:
        activations = count_activations(objective, _batch(recipe, length), train, on_gpu=devices.on_gpu, search=search)
    except RuntimeError as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        say(f"activations: not known, because the model cannot be run without data ({reason}); they come on top")
        activations = Activations(0, 0)
    else:
        _say_activations(activations, supported, f"{width} x {length:,} tokens", say)
    stage = Stage(
        section,
        train,
        states,
        activations,
        tested=recipe.eval.batch_size if search else 0,
        # of a method that reads ahead the recipe refuses it
        can_checkpoint=supported and not recipe.method.uses_model,
        fixed=any(_decides_micro_batch(path) for path in configs.values()),
    )
    if activations.answer:
        say(
            f"evaluation: {stage.tested} windows x {search.beams} beams keep "
            f"{gib(stage.tested * activations.answer)} of keys and values (estimate)"
        )
    say(_table(stage, devices))
    return stage


def _say_activations(activations: Activations, supported: bool, windows: str, say: Say) -> None:
    checkpointed = f"; {gib(activations.checkpointed)} with activation checkpointing" if supported else ""
    say(f"activations of the widest micro-batch, {windows} (estimate): {gib(activations.plain)}{checkpointed}")
    if activations.casts:
        say(f"autocast's copies of the weights, below ZeRO-3: {gib(activations.casts)}")


def _states(
    recipe: Recipe, objective: Objective, configs: dict[str, Path], devices: Devices
) -> Callable[[int], dict[str, States]]:
    """By ds_config, for a number of devices."""
    shapes = [tuple(parameter.shape) for parameter in objective.parameters()]
    train = recipe.train
    # for all numbers: a file that fixes train_batch_size goes together with one alone
    resolved = {
        name: resolve_ds_config(
            str(path),
            recipe,
            world_size=devices.count,
            micro_steps=objective.micro_steps(train.execution),
            hidden_size=objective.qa.hidden_size,
            on_cpu=not devices.on_gpu,
        )
        for name, path in configs.items()
    }

    def states(count: int) -> dict[str, States]:
        found = {}
        for name, config in resolved.items():
            how = {"precision": train.precision, "optimizer": train.optimizer}
            try:
                found[name] = model_states(shapes, config, world_size=count, **how)
            except NotImplementedError as error:
                raise InputError(f"{name}: --plan does not know the memory of {error}: leave --ds_config out") from None
        return found

    return states


def _decides_micro_batch(path: Path) -> bool:
    config = read_ds_config(str(path))
    fields = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return any(isinstance(config.get(field), int) for field in fields)


def _objective(recipe: Recipe, tokenizer: PreTrainedTokenizerFast | None) -> Objective:
    """On the meta device, without activation checkpointing: that is counted by layer."""
    model, train = recipe.model, recipe.train.model_copy(update={"activation_checkpointing": False})
    flash = model.attention == "flash_attention_2"
    if flash:  # it need not be installed here; what it saves is what SDPA's fused kernels save
        model = model.model_copy(update={"attention": "auto"})
    recipe = recipe.model_copy(update={"model": model, "train": train})
    qa = run.load_model(recipe, tokenizer, model.name, weights=False)
    if flash and not qa.model._supports_flash_attn:
        kind = qa.model.config.model_type
        raise InputError(f"model.attention flash_attention_2: transformers has none for {kind}: set it to auto")
    if recipe.task == "generative":
        _untie(qa.model, model.name)
    with torch.device("meta"):
        return Objective(qa, build(recipe.method, qa.hidden_size, qa.embedding_size), recipe.seed)


def _untie(model: PreTrainedModel, name: str) -> None:
    """Gives the head weights of its own where the config says so, as published T5 v1.1, Flan-T5 and mT5 have them.

    transformers ties every T5's in the config, and unties them when it loads files with two tables.
    """
    config, _ = PreTrainedConfig.get_config_dict(resolve_model(name))
    head = model.get_output_embeddings()
    if config.get("tie_word_embeddings") is False and head.weight is model.get_input_embeddings().weight:
        head.weight = nn.Parameter(torch.empty_like(head.weight))


def _search(recipe: Recipe) -> Search | None:
    """How answers are generated, if they are."""
    if recipe.task == "extractive" or not (recipe.data.eval or recipe.data.holdout_fraction):
        return None
    return Search(recipe.data.max_length, recipe.eval.max_answer_tokens, recipe.eval.beams)


def _tokenizer(name: str) -> tuple[PreTrainedTokenizerFast | None, str]:
    """The tokenizer, or None and why."""
    try:
        return load_tokenizer(name), ""
    except InputError as error:
        return None, str(error)


def _say_data(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast | None, missing: str, world_size: int, say: Say
) -> int:
    """Prints what is known of the data; returns the length of the longest window."""
    try:
        if tokenizer is None:
            raise InputError(missing)
        # only what is trained on: test sets need not be at hand
        data = recipe.data.model_copy(update={"eval": {}})
        training, _ = load_examples(recipe.model_copy(update={"data": data}))
        features = run.training_features(recipe, tokenizer, training)
    except InputError as error:
        say(f"updates and tokens: not known, because {error}")
        return recipe.data.max_length
    batches = run.training_batches(recipe, tokenizer, features, 0, world_size)
    # an epoch's updates are made of the same windows
    seen = [batches.lengths[batches.windows(u)] for u in range(min(batches.updates, batches.updates_per_epoch))]
    tokens, positions = sum(int(n.sum()) for n in seen), sum(int(n.max()) * len(n) for n in seen)
    say(
        f"data: {len(training):,} questions, {len(features.dataset):,} windows; {batches.updates:,} updates of "
        f"{batches.size}, {tokens / len(seen):,.0f} tokens each; padding {1 - tokens / positions:.1%}"
    )
    return int(np.max([lengths.max() for lengths in seen]))


def _batch(recipe: Recipe, length: int) -> Batch:
    """The widest one; of its values nothing is used."""
    count = recipe.train.micro_batch_size
    ids, row = torch.ones(count, length, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    shares = torch.ones(count)
    batch = Batch(input_ids=ids, attention_mask=ids, sample_id=row, weight=shares, token_weight=shares)
    batch = batch._replace(lengths=(length,) * count)
    if recipe.task == "generative":
        return batch._replace(target_ids=torch.ones(count, recipe.data.max_target_length, dtype=torch.int64))
    return batch._replace(start_position=row, end_position=row)


def _table(stage: Stage, devices: Devices) -> Table:
    """The recipe's own settings with every ds_config."""
    rows = []
    for name, one in stage.states(devices.count).items():
        held = stage.held(one, stage.train.micro_batch_size, stage.train.activation_checkpointing)
        evaluation = stage.answering(one, stage.tested)
        parts = [getattr(one, part) for part in PARTS]
        peak = one.peak(held, evaluation)
        sizes = (*parts, held, one.step, one.reading + evaluation, peak, devices.host_bytes(one))
        rows.append((Path(name).stem, sizes, "fits" if devices.hold(one, held, evaluation) else "too much"))
    unit, word = (GIB, "GiB") if max(sizes[-2] for _, sizes, _ in rows) >= GIB else (2**20, "MiB")
    table = Table(title=f"memory per device, {word} (estimates)", title_justify="left", caption_justify="left")
    table.add_column("ds_config", no_wrap=True)
    for title in (*PARTS, "activations", "step", "evaluation", "peak", "CPU", ""):
        table.add_column(title, justify="right", no_wrap=True)
    for name, sizes, verdict in rows:
        table.add_row(name, *(f"{size / unit:,.1f}" for size in sizes), verdict)
    table.caption = (
        "peak = parameters + optimizer + buffers + the largest of gradients + passing + activations, step and "
        "evaluation.\n"
        f"What fits takes at most {USABLE:.0%} of the memory. CPU: of all ranks together, what they offload, or the "
        "float32 weights\nthat each has there until they are on its device (ZeRO-3 leaves them in their files)."
    )
    return table


def _say_choice(stages: Sequence[Stage], devices: Devices, command: Sequence[str], say: Say) -> None:
    """Prints the simplest ds_config that fits and its command line, with the least change of the recipe it takes."""
    if chosen := choose(stages, devices):
        name, changes = chosen
        say(f"take {Path(name).name}, " + (f"with {' '.join(changes)}:" if changes else "the simplest that fits:"))
        say(f"    {_start(name, devices, [*command, *(part for one in changes for part in ('--set', one))])}")
        return
    narrowest = min(stage.widths()[-1] for stage in stages)
    most = f"micro-batches of {narrowest} window(s)"
    most += " and activation checkpointing" if checkpointings(stages)[-1] else ""
    if count := devices_that_do(stages, devices, MOST_DEVICES):
        times = count // devices.count
        say(
            f"none fits, even with {most}: take {count} such devices, or larger ones. The global batch grows with the "
            f"devices, to {times} times the windows: lower the accumulation to keep it"
        )
        return
    say(f"none fits, even with {most}, on any number of such devices: take larger ones")
    if devices.host is not None:
        say("ds_configs/zero3_offload_nvme.json keeps the weights on disk")


def _start(name: str, devices: Devices, command: Sequence[str]) -> str:
    launcher = ["deepspeed", "--num_gpus", str(devices.count)] if devices.on_gpu else ["python"]
    return shlex.join([*launcher, "scripts/train.py", "--ds_config", name, *command])
