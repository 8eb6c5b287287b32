"""What a run would take, before it is started: parameters, updates, memory at each ZeRO stage, what fits.

Nothing is trained, downloaded or allocated: the model is built from its config on the meta device. Every number of
bytes is an estimate; model states follow DeepSpeed's own allocations (`training.memory`), activations are counted in a
forward without data (`training.activations`). Where something cannot be known here, the plan says so and goes on.
"""

import itertools
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerFast

from swep_ds import run
from swep_ds.data.batches import Batch
from swep_ds.errors import InputError
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models.names import load_tokenizer, resolve_model
from swep_ds.recipe import Recipe
from swep_ds.training.activations import Activations, count_activations
from swep_ds.training.ds_config import resolve_ds_config
from swep_ds.training.memory import States, model_states

# the simplest first: what is spread costs communication, what is offloaded waits for the bus
ORDER = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
USABLE = 0.9  # of a device's memory; the rest is for its context, workspaces and fragmentation
MOST_DEVICES = 1024
PARTS = ("parameters", "optimizer", "buffers", "gradients", "passing")  # of States
Say = Callable[..., None]
GIB = 2**30
WIDTH = 150  # of what is printed


@dataclass(frozen=True)
class Devices:
    """`memory` bytes on each of `count`; `host`: bytes of CPU memory beside them, None = not known."""

    count: int
    memory: int
    on_gpu: bool
    host: int | None

    @staticmethod
    def parse(text: str) -> "Devices":
        """From --plan's value: "8x80" is 8 GPUs of 80 GiB each; "" is what this machine has.

        Raises:
            InputError: anything else.
        """
        if not text:
            ram = psutil.virtual_memory().total
            count = torch.cuda.device_count()
            sizes = [torch.cuda.get_device_properties(number).total_memory for number in range(count)]
            return Devices(count, min(sizes), True, ram) if sizes else Devices(1, ram, False, ram)
        match = re.fullmatch(r"(\d+)x(\d+(?:\.\d+)?)", text)
        if not match or not int(match[1]) or not float(match[2]):
            raise InputError(f"--plan {text}: write it as NUMBERxGIB, such as 8x80 for 8 GPUs of 80 GiB each")
        return Devices(int(match[1]), int(float(match[2]) * GIB), True, None)

    def hold(self, states: States, activations: int) -> bool:
        """Whether it fits; CPU memory that is not known is taken to be enough."""
        host = self.count * (states.host + states.host_step)
        if not self.on_gpu:
            return states.peak(activations) + host <= USABLE * self.memory
        return states.peak(activations) <= USABLE * self.memory and (self.host is None or host <= USABLE * self.host)

    def __str__(self) -> str:
        what = "GPU(s)" if self.on_gpu else "CPU process(es)"
        return f"{self.count} {what} of {_gib(self.memory)}"


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
    configs = [Path(ds_config)] if ds_config else [shipped / f"{name}.json" for name in names]
    console = Console(width=WIDTH, highlight=False, markup=False, soft_wrap=True)
    if recipe.pretrain:
        console.print("first stage (pretrain)")
        _plan(recipe.first_stage(), devices, configs, command, console.print)
        console.print("\nsecond stage")
    _plan(recipe, devices, configs, command, console.print)


def _plan(recipe: Recipe, devices: Devices, configs: Sequence[Path], command: Sequence[str], say: Say) -> None:
    train = recipe.train
    tokenizer, missing = _tokenizer(recipe.model.name)
    objective = _objective(recipe, tokenizer)
    own, added = (sum(p.numel() for p in module.parameters()) for module in (objective.qa, objective.method))
    model = _Model(
        recipe,
        configs,
        [tuple(parameter.shape) for parameter in objective.parameters()],
        objective.micro_steps(train.execution),
        objective.qa.hidden_size,
    )
    states = model.states(devices)
    how = f"{train.precision}, {train.optimizer}, {train.execution} execution"
    say(f"{recipe.method.name} on {recipe.model.name}: {how}")
    say(f"devices: {devices}")
    say(f"parameters: {own:,} of the model, {added:,} of the method")
    length = _say_data(recipe, tokenizer, missing, devices.count, say)
    checkpointing = objective.qa.model.supports_gradient_checkpointing
    try:
        activations = count_activations(objective, _batch(recipe, length), train, on_gpu=devices.on_gpu)
    except RuntimeError as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        say(f"activations: not known, because the model cannot be run without data ({reason}); they come on top")
        activations = Activations(0, 0)
    else:
        checkpointed = f"; {_gib(activations.checkpointed)} with activation checkpointing" if checkpointing else ""
        windows = f"{train.micro_batch_size} x {length:,} tokens"
        say(f"activations of the widest micro-batch, {windows} (estimate): {_gib(activations.plain)}{checkpointed}")
    held = activations.checkpointed if train.activation_checkpointing else activations.plain
    say(_table(states, held, devices))
    _say_choice(model, devices, states, activations, checkpointing, command, say)


@dataclass(frozen=True)
class _Model:
    recipe: Recipe
    configs: Sequence[Path]
    shapes: list[tuple[int, ...]]  # of all parameters, the method's last
    micro_steps: int
    hidden_size: int

    def states(self, devices: Devices) -> dict[Path, States]:
        """By ds_config."""
        return {path: self._states(path, devices) for path in self.configs}

    def _states(self, path: Path, devices: Devices) -> States:
        train = self.recipe.train
        config = resolve_ds_config(
            str(path),
            self.recipe,
            world_size=devices.count,
            micro_steps=self.micro_steps,
            hidden_size=self.hidden_size,
            on_cpu=not devices.on_gpu,
        )
        try:
            return model_states(
                self.shapes,
                config,
                precision=train.precision,
                optimizer=train.optimizer,
                world_size=devices.count,
                on_gpu=devices.on_gpu,
            )
        except NotImplementedError as error:
            raise InputError(f"{path}: --plan does not know the memory of {error}: leave --ds_config out") from None


def _objective(recipe: Recipe, tokenizer: PreTrainedTokenizerFast | None) -> Objective:
    """On the meta device, without activation checkpointing: that is counted by layer."""
    model, train = recipe.model, recipe.train.model_copy(update={"activation_checkpointing": False})
    if model.attention == "flash_attention_2":  # what it saves is what SDPA's fused kernels save
        model = model.model_copy(update={"attention": "sdpa"})
    recipe = recipe.model_copy(update={"model": model, "train": train})
    qa = run.load_model(recipe, tokenizer, model.name, weights=False)
    with torch.device("meta"):
        return Objective(qa, build(recipe.method, qa.hidden_size, qa.embedding_size), recipe.seed)


def _tokenizer(name: str) -> tuple[PreTrainedTokenizerFast | None, str]:
    """The tokenizer, or None and why."""
    try:
        tokenizer = load_tokenizer(name)
    except InputError as error:
        return None, str(error)
    folder = Path(resolve_model(name))
    files = {"tokenizer.json", *tokenizer.vocab_files_names.values()}
    # of a folder with a config alone, transformers makes a tokenizer without words
    if folder.is_dir() and not any((folder / file).is_file() for file in files):
        return None, f"model.name {name}: the folder has no tokenizer files"
    return tokenizer, ""


def _say_data(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast | None, missing: str, world_size: int, say: Say
) -> int:
    """Prints what is known of the data; returns the length of the longest window."""
    try:
        if tokenizer is None:
            raise InputError(missing)
        # only what is trained on: test sets need not be at hand
        data = recipe.data.model_copy(update={"eval": {}})
        training, _ = run.load_examples(recipe.model_copy(update={"data": data}))
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
        f"{batches.global_batch} windows, {tokens / len(seen):,.0f} tokens each; padding {1 - tokens / positions:.1%}"
    )
    return int(np.max([lengths.max() for lengths in seen]))


def _batch(recipe: Recipe, length: int) -> Batch:
    """The widest one; of its values nothing is used."""
    count = recipe.train.micro_batch_size
    ids, row = torch.ones(count, length, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    shares = torch.ones(count)
    batch = Batch(input_ids=ids, attention_mask=ids, sample_id=row, weight=shares, token_weight=shares)
    if recipe.task == "generative":
        return batch._replace(target_ids=torch.ones(count, recipe.data.max_target_length, dtype=torch.int64))
    return batch._replace(start_position=row, end_position=row)


def _table(states: dict[Path, States], activations: int, devices: Devices) -> Table:
    large = max(one.peak(activations) for one in states.values()) >= GIB
    unit, name = (GIB, "GiB") if large else (2**20, "MiB")
    table = Table(title=f"memory per device, {name} (estimates)", title_justify="left", caption_justify="left")
    table.add_column("ds_config", no_wrap=True)
    for title in (*PARTS, "activations", "step", "peak", "CPU", ""):
        table.add_column(title, justify="right", no_wrap=True)
    for path, one in states.items():
        parts = [getattr(one, part) for part in PARTS]
        host = devices.count * (one.host + one.host_step)
        sizes = (*parts, activations, one.step, one.peak(activations), host)
        shown = [f"{size / unit:,.1f}" for size in sizes]
        table.add_row(path.stem, *shown, "fits" if devices.hold(one, activations) else "too much")
    table.caption = (
        "peak = parameters + optimizer + buffers + the larger of gradients + passing + activations and step.\n"
        f"What fits takes at most {USABLE:.0%} of the memory. CPU: what all ranks offload."
    )
    return table


def _say_choice(
    model: _Model,
    devices: Devices,
    states: dict[Path, States],
    activations: Activations,
    can_checkpoint: bool,
    command: Sequence[str],
    say: Say,
) -> None:
    """Prints the simplest ds_config that fits and its command line, with the least change of the recipe it takes.

    Offloading comes last: it costs more time than smaller micro-batches and activation checkpointing.
    """
    train = model.recipe.train
    widths = [width for width in range(train.micro_batch_size, 0, -1) if train.micro_batch_size % width == 0]
    checkpoints = sorted({train.activation_checkpointing, can_checkpoint or train.activation_checkpointing})
    for offloads, checkpoint, width in itertools.product((False, True), checkpoints, widths):
        held = (activations.checkpointed if checkpoint else activations.plain) * width // train.micro_batch_size
        fitting = [path for path, one in states.items() if (one.host > 0) == offloads and devices.hold(one, held)]
        if not fitting:
            continue
        changes = []
        if width < train.micro_batch_size:
            steps = train.gradient_accumulation_steps * train.micro_batch_size // width
            changes += [f"train.micro_batch_size={width}", f"train.gradient_accumulation_steps={steps}"]
        if checkpoint != train.activation_checkpointing:
            changes.append("train.activation_checkpointing=true")
        say(f"take {fitting[0].name}, " + (f"with {' '.join(changes)}:" if changes else "the simplest that fits:"))
        say(f"    {_start(fitting[0], devices, [*command, *(part for one in changes for part in ('--set', one))])}")
        return
    # what is left of the activations takes the same on any number of devices
    count = devices.count
    while count < MOST_DEVICES:
        count *= 2
        more = replace(devices, count=count, host=None)
        if any(more.hold(one, held) for one in model.states(more).values()):
            say(f"none fits, even with {_words(width, checkpoint)}: take {count} such devices, or larger ones")
            return
    say(f"none fits, even with {_words(width, checkpoint)}, on any number of such devices: take larger ones")
    if devices.host is not None:
        say("ds_configs/zero3_offload_nvme.json keeps the states on disk")


def _words(width: int, checkpoint: bool) -> str:
    return f"micro-batches of {width} window(s)" + (" and activation checkpointing" if checkpoint else "")


def _start(path: Path, devices: Devices, command: Sequence[str]) -> str:
    launcher = ["deepspeed", "--num_gpus", str(devices.count)] if devices.on_gpu else ["python"]
    return shlex.join([*launcher, "scripts/train.py", "--ds_config", f"{path.parent.name}/{path.name}", *command])


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
