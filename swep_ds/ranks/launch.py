"""The launcher's environment: `deepspeed`, `torchrun`, `srun`, or none for one process.

A variable that makes no sense is an `InputError` that names it, before anything waits for another rank.
"""

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from swep_ds.common.console import say_on_stderr
from swep_ds.common.errors import InputError, RunExit, reason

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ACCELERATORS = ("cuda", "cpu", "xpu", "npu", "mps", "hpu", "mlu", "sdaa", "supa", "klxpu")  # DeepSpeed's
CHOICES = {
    "DS_ACCELERATOR": ACCELERATORS,
    "SWEP_KERNELS": ("auto", "torch", "triton"),
    "TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO", "DETAIL"),
}
MAX_NUMBER = 10**9 - 1
MAX_RANKS = 10**6
RESOLVE_SECONDS = 30.0  # for the name of rank 0's host to resolve: a Kubernetes pod gets its own once it runs


class LaunchError(InputError):
    """The launcher's variables make no sense, so no rank can be chosen to report it: every process does."""


@dataclass(frozen=True)
class Launch:
    """How this process was started."""

    rank: int
    local_rank: int  # among the ranks of its node
    world_size: int
    master_addr: str | None  # None: one process without a launcher
    master_port: int | None
    job: str | None  # identifies the job on this node; None: not known

    def variables(self, port: int) -> dict[str, str]:
        """The variables that PyTorch and DeepSpeed read; `port` is for one process without a launcher."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.master_addr or "127.0.0.1",
            "MASTER_PORT": str(self.master_port or port),
            "SWEP_DS_LOCAL_ID": str(self.local_rank),
        }


def read_launch(env: Mapping[str, str] | None = None) -> Launch:
    """How this process was started, by `env` or its own environment.

    Raises:
        LaunchError: some variables are missing, are not numbers, are out of range, or contradict each other.
        InputError: a launcher started this process, and only the address or port of rank 0 is wrong.
    """
    env, ranks = os.environ if env is None else env, None
    try:
        of_slurm = "RANK" not in env and _number(env, "SLURM_STEP_NUM_TASKS", 1, MAX_RANKS, default=1) > 1
        if not of_slurm and "RANK" not in env and "WORLD_SIZE" not in env:
            return Launch(0, 0, 1, None, None, None)
        ranks = rank, local, world, job = _slurm_ranks(env) if of_slurm else _ranks(env)
        if of_slurm:
            # spread, as jobs that share a node have close numbers
            job_id, step = (_number(env, name, 0, 2**32 - 1) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
            number = 7919 * job_id + step
            port = _number(env, "MASTER_PORT", 1, 65535, default=20000 + number % 12000)
        else:
            port = _number(env, "MASTER_PORT", 1, 65535)
        address = _address(env["MASTER_ADDR"] if "MASTER_ADDR" in env else _first_host(env))
    except InputError as error:
        # a launcher has also started the node's first rank, which reports it
        if ranks and (job or "LOCAL_WORLD_SIZE" in env):
            raise
        raise LaunchError(str(error)) from None
    return Launch(rank, local, world, address, port, job)


def _ranks(env: Mapping[str, str]) -> tuple[int, int, int, str | None]:
    """(rank, local rank, world size, job) as set by `deepspeed`, `torchrun` or by hand."""
    if missing := [name for name in VARIABLES if name not in env]:
        raise InputError(
            f"the environment has some of the launcher's variables but not {', '.join(missing)}: start with "
            "`deepspeed`, `torchrun` or `srun`, or unset RANK and WORLD_SIZE for one process"
        )
    world = _number(env, "WORLD_SIZE", 1, MAX_RANKS)
    rank = _number(env, "RANK", 0, world - 1, "WORLD_SIZE")
    size = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in env else "WORLD_SIZE"  # torchrun sets the former
    local = _number(env, "LOCAL_RANK", 0, _number(env, size, 1, world, "WORLD_SIZE") - 1, size)
    # only the deepspeed launcher sets CROSS_SIZE; it is the parent of a node's ranks
    return rank, local, world, f"parent {os.getppid()}" if "CROSS_SIZE" in env else None


def _slurm_ranks(env: Mapping[str, str]) -> tuple[int, int, int, str]:
    world = _number(env, "SLURM_STEP_NUM_TASKS", 1, MAX_RANKS)
    rank = _number(env, "SLURM_PROCID", 0, world - 1, "SLURM_STEP_NUM_TASKS")
    local = _number(env, "SLURM_LOCALID", 0, world - 1, "SLURM_STEP_NUM_TASKS")
    return rank, local, world, f"Slurm {env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}"


def _first_host(env: Mapping[str, str]) -> str:
    if env.get("SLURM_STEP_NUM_NODES") == "1":  # a container need not have Slurm's commands
        return "127.0.0.1"
    command = ["scontrol", "show", "hostnames", env.get("SLURM_STEP_NODELIST", "")]
    try:
        listed = subprocess.run(
            command, capture_output=True, check=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL
        )
        return listed.stdout.split()[0]
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError) as error:
        why = "it names no host" if isinstance(error, IndexError) else error
        raise InputError(f"{' '.join(command)} failed ({why}): export MASTER_ADDR in the job script") from None


def is_first_on_node() -> bool:
    """Whether this is the first rank of its node; True if the variable that says so makes no sense."""
    env, local = os.environ, "0"
    if "RANK" in env:
        local = env.get("SWEP_DS_LOCAL_ID", env.get("LOCAL_RANK", "0"))
    elif "SLURM_STEP_ID" in env:
        local = env.get("SLURM_LOCALID", "0")
    return not re.fullmatch(r"\d{1,9}", local, re.ASCII) or int(local) == 0


def is_alone() -> bool:
    """Whether this process is the only rank, according to the environment."""
    world = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    return world.strip() == "1"


def report(end: RunExit) -> None:
    """Prints once, on the first rank of each node, what ended a run: all ranks of a job meet the same."""
    if (is_first_on_node() or isinstance(end, LaunchError)) and not end.reported:
        end.reported = True
        say_on_stderr(f"{end.title}: {end}")


def slurm_restarts() -> int:
    """How often Slurm has restarted this job; 0 outside Slurm. Raises InputError if that is not a number."""
    return _number(os.environ, "SLURM_RESTART_COUNT", 0, default=0)


def note_checkpoint(update: int) -> None:
    """Tells scripts/slurm/restart.sh that this start of the job has saved a checkpoint."""
    if file := os.environ.get("SWEP_DS_PROGRESS"):
        with suppress(OSError), open(file, "a", encoding="utf-8") as lines:
            lines.write(f"update {update}\n")


def visible_devices(variable: str, count: int) -> list[str]:
    """The names of this process's devices, to set `variable` (such as CUDA_VISIBLE_DEVICES) for a child process.

    Raises InputError if the variable does not name `count` different devices.
    """
    given = os.environ.get(variable)
    if not given:
        return [str(number) for number in range(count)]
    names = [name.strip() for name in given.split(",")]
    if len(names) != count or len(set(names)) != count or not all(names):
        _refuse(variable, given, f"must name each device once, and {count} of those named can be used")
    return names


def check_libraries() -> None:
    """Raises InputError if a variable that a library reads on import has a value that the library refuses."""
    for name, choices in CHOICES.items():
        value = os.environ.get(name, choices[0])
        if (value.upper() if choices[0].isupper() else value) not in choices:
            _refuse(name, value, f"must be one of {', '.join(choices)}")
    accelerator = os.environ.get("DS_ACCELERATOR", "cpu")
    if accelerator not in ("cuda", "cpu"):  # DeepSpeed looks for the others when it is imported, which takes seconds
        try:
            import deepspeed.accelerator  # noqa: F401
        except Exception as error:
            _refuse("DS_ACCELERATOR", accelerator, f"cannot be used here ({reason(error)})")


def _number(
    env: Mapping[str, str], name: str, least: int, most: int = MAX_NUMBER, of: str = "", *, default: int | None = None
) -> int:
    """A whole number from `least` to `most`; the variable `of` sets that limit."""
    text = env.get(name)
    if text is None:
        if default is None:
            raise InputError(f"environment variable {name} is not set: start with `deepspeed`, `torchrun` or `srun`")
        return default
    if re.fullmatch(r"\d{1,10}", text, re.ASCII) and least <= int(text) <= most:
        return int(text)
    limits = f"of at least {least}" if most == MAX_NUMBER else f"from {least} to {most}"
    _refuse(name, text, f"must be a whole number {limits}{f' ({of} is {env[of]})' if of else ''}")


def _address(name: str) -> str:
    began = time.monotonic()
    while True:
        try:
            if not name.strip():
                raise ValueError("it is empty")
            socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return name
        except (OSError, ValueError) as error:  # UnicodeError, a ValueError: a label is too long
            if isinstance(error, ValueError) or time.monotonic() - began > RESOLVE_SECONDS:
                why = error.strerror if isinstance(error, OSError) else str(error)
                _refuse("MASTER_ADDR", name, f"has no address ({why}): give name or address of the host of rank 0")
            time.sleep(1)


def _refuse(name: str, value: str, rule: str) -> NoReturn:
    shown = value if len(value) <= 80 else f"{value[:80]}..."
    fix = "" if ": " in rule else ": correct it or unset it"
    raise InputError(f"environment variable {name}={shown!r} {rule}{fix}")
