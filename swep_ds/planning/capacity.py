"""The devices that a plan is for, and whether what a run takes fits on them."""

import re
from dataclasses import dataclass

import psutil

from swep_ds.errors import InputError, printable
from swep_ds.planning.memory import States
from swep_ds.ranks import accelerator

USABLE = 0.9  # share of a device's memory; its context, workspaces and fragmentation take the rest
GIB = 2**30


@dataclass(frozen=True)
class Devices:
    """`count` devices with `memory` bytes each, and `host` bytes of CPU memory beside them (None = not known)."""

    count: int
    memory: int
    on_gpu: bool
    host: int | None

    @staticmethod
    def parse(text: str) -> "Devices":
        """Reads --plan's value: "8x80" is 8 GPUs of 80 GiB each; "" is what this machine has.
        Raises InputError: `text` is anything else."""
        if not text:
            ram = psutil.virtual_memory().total
            sizes = accelerator.total_memory()
            return Devices(len(sizes), min(sizes), True, ram) if sizes else Devices(1, ram, False, ram)
        match = re.fullmatch(r"(\d{1,6})x(\d{1,6}(?:\.\d{1,6})?)", text, re.ASCII)
        if not match or not int(match[1]) or float(match[2]) < 0.001:
            value = printable(text[:100])
            raise InputError(f"--plan {value}: write it as NUMBERxGIB, such as 8x80 for 8 GPUs of 80 GiB each")
        return Devices(int(match[1]), int(float(match[2]) * GIB), True, None)

    def host_bytes(self, states: States) -> int:
        """CPU memory of all ranks at the worst moment: what they load, or what they offload."""
        offloaded = states.host + states.host_step
        return self.count * (max(states.loading, offloaded) if self.on_gpu else offloaded)

    def hold(self, states: States, activations: int, evaluation: int = 0) -> bool:
        """Whether all of it fits. CPU memory that is not known counts as enough."""
        host, peak = self.host_bytes(states), states.peak(activations, evaluation)
        if not self.on_gpu:
            return peak + host <= USABLE * self.memory
        return peak <= USABLE * self.memory and (self.host is None or host <= USABLE * self.host)

    def __str__(self) -> str:
        kind = "GPU(s)" if self.on_gpu else "CPU process(es)"
        return f"{self.count} {kind} of {gib(self.memory)}"


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
