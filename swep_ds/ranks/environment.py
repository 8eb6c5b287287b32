"""How this process was started: the variables of `deepspeed`, `torchrun` or `srun`, or none for one process.

A variable that makes no sense is an `InputError` that names it, before anything waits for another rank.
"""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from swep_ds.common.console import say_on_stderr
from swep_ds.common.errors import InputError, RunExit

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MAX_PORT = 65535


class LaunchError(InputError):
    """This process cannot be a rank, and may be the only one that knows: every process reports it."""


@dataclass(frozen=True)
class Launch:
    """How this process was started."""

    rank: int
    local_rank: int  # among the ranks of its node
    world_size: int
    master_addr: str | None  # None: one process without a launcher
    master_port: int | None

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
    """
    env = os.environ if env is None else env
    if "RANK" not in env and _number(env, "SLURM_STEP_NUM_TASKS", 1, default=1) > 1:
        return _of_slurm(env)
    if "RANK" in env or "WORLD_SIZE" in env:
        return _of_launcher(env)
    return Launch(0, 0, 1, None, None)


def _of_launcher(env: Mapping[str, str]) -> Launch:
    """As `deepspeed` and `torchrun` set it, or a user by hand."""
    missing = [name for name in VARIABLES if name not in env]
    if missing:
        raise LaunchError(
            f"the environment has some of the launcher's variables but not {', '.join(missing)}: start with "
            "`deepspeed`, `torchrun` or `srun`, or unset RANK and WORLD_SIZE for one process"
        )
    world = _number(env, "WORLD_SIZE", 1)
    rank = _number(env, "RANK", 0, world - 1)
    local = _number(env, "LOCAL_RANK", 0, world - 1)
    return Launch(rank, local, world, env["MASTER_ADDR"], _number(env, "MASTER_PORT", 1, MAX_PORT))


def _of_slurm(env: Mapping[str, str]) -> Launch:
    world = _number(env, "SLURM_STEP_NUM_TASKS", 1)
    rank = _number(env, "SLURM_PROCID", 0, world - 1)
    local = _number(env, "SLURM_LOCALID", 0, world - 1)
    # spread, as jobs that share a node have close numbers
    number = 7919 * _number(env, "SLURM_JOB_ID", 0) + _number(env, "SLURM_STEP_ID", 0)
    port = _number(env, "MASTER_PORT", 1, MAX_PORT, default=20000 + number % 12000)
    address = env.get("MASTER_ADDR") or _first_host(env)
    return Launch(rank, local, world, address, port)


def _first_host(env: Mapping[str, str]) -> str:
    if env.get("SLURM_STEP_NUM_NODES") == "1":  # a container need not have Slurm's commands
        return "127.0.0.1"
    command = ["scontrol", "show", "hostnames", env.get("SLURM_STEP_NODELIST", "")]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise LaunchError(f"{' '.join(command)} failed ({error}): export MASTER_ADDR in the job script") from None
    return listed.split()[0]


def _number(
    env: Mapping[str, str], name: str, least: int, most: int | None = None, *, default: int | None = None
) -> int:
    """A whole number from `least` to `most`."""
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise LaunchError(f"environment variable {name} is not set: start with `deepspeed`, `torchrun` or `srun`")
    if text.isdecimal() and int(text) >= least and (most is None or int(text) <= most):
        return int(text)
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise LaunchError(f"environment variable {name}={text!r} must be a whole number {limits}: correct it or unset it")


def is_first_on_node() -> bool:
    """Whether this is the first rank of its node, which prints what all ranks would."""
    if "RANK" in os.environ:
        return os.environ.get("SWEP_DS_LOCAL_ID", os.environ.get("LOCAL_RANK", "0")) == "0"
    return "SLURM_STEP_ID" not in os.environ or os.environ.get("SLURM_LOCALID", "0") == "0"


def report(end: RunExit) -> None:
    """Prints once, on the first rank of each node, what ended a run: all ranks of a job meet the same."""
    if (is_first_on_node() or isinstance(end, LaunchError)) and not end.reported:
        end.reported = True
        say_on_stderr(f"{end.title}: {end}")


def slurm_restarts() -> int:
    """How often Slurm has restarted this job; 0 outside Slurm."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def note_checkpoint(update: int) -> None:
    """Tells scripts/slurm/restart.sh that this start of the job has saved a checkpoint."""
    if file := os.environ.get("SWEP_DS_PROGRESS"):
        with suppress(OSError), open(file, "a", encoding="utf-8") as lines:
            lines.write(f"update {update}\n")
