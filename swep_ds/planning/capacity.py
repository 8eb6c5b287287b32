"""What fits on given devices: which ds_config, and the least change of the recipe that it takes.

Both stages of a recipe with `pretrain` run under one command, so that one ds_config and one choice of activation
checkpointing must do for both; their micro-batches are their own.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import psutil

from swep_ds.errors import InputError, printable
from swep_ds.planning.activations import Activations
from swep_ds.planning.memory import States
from swep_ds.ranks import accelerator
from swep_ds.recipe import TrainSection

USABLE = 0.9  # of a device's memory; the rest is for its context, workspaces and fragmentation
GIB = 2**30


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
            sizes = accelerator.total_memory()
            return Devices(len(sizes), min(sizes), True, ram) if sizes else Devices(1, ram, False, ram)
        match = re.fullmatch(r"(\d{1,6})x(\d{1,6}(?:\.\d{1,6})?)", text, re.ASCII)
        if not match or not int(match[1]) or float(match[2]) < 0.001:
            named = printable(text[:100])
            raise InputError(f"--plan {named}: write it as NUMBERxGIB, such as 8x80 for 8 GPUs of 80 GiB each")
        return Devices(int(match[1]), int(float(match[2]) * GIB), True, None)

    def host_bytes(self, states: States) -> int:
        """CPU memory of all ranks at the worst moment: of what they load, or of what they offload."""
        offloaded = states.host + states.host_step
        return self.count * (max(states.loading, offloaded) if self.on_gpu else offloaded)

    def hold(self, states: States, activations: int, evaluation: int = 0) -> bool:
        """Whether it fits; CPU memory that is not known is taken to be enough."""
        host, peak = self.host_bytes(states), states.peak(activations, evaluation)
        if not self.on_gpu:
            return peak + host <= USABLE * self.memory
        return peak <= USABLE * self.memory and (self.host is None or host <= USABLE * self.host)

    def __str__(self) -> str:
        what = "GPU(s)" if self.on_gpu else "CPU process(es)"
        return f"{self.count} {what} of {gib(self.memory)}"


@dataclass(frozen=True)
class Stage:
    """One training of a recipe, and what it takes.

    section: of the recipe, that its micro-batch size stands in.
    states: on a number of devices, by ds_config as the user would name it, the simplest first.
    tested: windows that are evaluated at once; 0 = none are.
    fixed: whether a ds_config of the user's own decides the micro-batch.
    """

    section: str
    train: TrainSection
    states: Callable[[int], dict[str, States]]
    activations: Activations
    tested: int
    can_checkpoint: bool
    fixed: bool

    def widths(self) -> list[int]:
        """Micro-batch sizes that keep the global batch, the widest first."""
        width = self.train.micro_batch_size
        return [width] if self.fixed else [one for one in range(width, 0, -1) if width % one == 0]

    def held(self, states: States, width: int, checkpointing: bool) -> int:
        """Activations of an update."""
        one = self.activations
        windows = (one.checkpointed if checkpointing else one.plain) * width // self.train.micro_batch_size
        return windows + self._casts(states)

    def answering(self, states: States, count: int) -> int:
        """What evaluation takes with so many windows at once."""
        return count * self.activations.answer + self._casts(states)

    def _casts(self, states: States) -> int:
        return 0 if states.spread else self.activations.casts


@dataclass(frozen=True)
class Fit:
    """Settings with which a stage fits."""

    stage: Stage
    width: int
    checkpointing: bool
    tested: int

    def changes(self) -> list[str]:
        """Of the recipe, as --set takes them."""
        train, found = self.stage.train, []
        if self.width < train.micro_batch_size:
            steps = train.gradient_accumulation_steps * train.micro_batch_size // self.width
            section = self.stage.section
            found += [f"{section}.micro_batch_size={self.width}", f"{section}.gradient_accumulation_steps={steps}"]
        if self.checkpointing != train.activation_checkpointing:
            found.append("train.activation_checkpointing=true")
        if self.tested < self.stage.tested:
            found.append(f"eval.batch_size={self.tested}")
        return found


def choose(stages: Sequence[Stage], devices: Devices) -> tuple[str, list[str]] | None:
    """The ds_config with which all stages fit, and the least changes for it; None = nothing does.

    The widest micro-batches first, then the simplest ds_config, then the largest evaluation batch. Offloading comes
    last: it costs more time than smaller micro-batches and activation checkpointing.
    """
    states = [stage.states(devices.count) for stage in stages]
    for offloads in (False, True):
        for checkpointing in checkpointings(stages):
            found = []
            for name in states[0]:
                if (states[0][name].host > 0) == offloads:
                    fits = [
                        _fit(stage, one[name], devices, checkpointing)
                        for stage, one in zip(stages, states, strict=True)
                    ]
                    if None not in fits:
                        found.append((name, fits))
            if found:
                name, fits = min(found, key=lambda one: _narrowing(one[1]))  # of equals the first
                return name, list(dict.fromkeys(change for fit in fits for change in fit.changes()))
    return None


def devices_that_do(stages: Sequence[Stage], devices: Devices, most: int) -> int | None:
    """How many of these would do, twice as many at a time; None = not even `most`."""
    count = devices.count
    while count < most:
        count *= 2
        if choose(stages, replace(devices, count=count, host=None)):
            return count
    return None


def checkpointings(stages: Sequence[Stage]) -> list[bool]:
    """Choices of activation checkpointing, the recipe's first."""
    chosen = stages[0].train.activation_checkpointing
    return [False, True] if all(stage.can_checkpoint for stage in stages) and not chosen else [chosen]


def _fit(stage: Stage, states: States, devices: Devices, checkpointing: bool) -> Fit | None:
    for width in stage.widths():
        held = stage.held(states, width, checkpointing)
        for tested in _halvings(stage.tested):
            if devices.hold(states, held, stage.answering(states, tested)):
                return Fit(stage, width, checkpointing, tested)
    return None


def _halvings(count: int) -> Iterator[int]:
    yield count
    while count > 1:
        count //= 2
        yield count


def _narrowing(fits: Sequence[Fit]) -> float:
    """How many times smaller the micro-batches are, over all stages."""
    product = 1.0
    for fit in fits:
        product *= fit.stage.train.micro_batch_size / fit.width
    return product


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
