"""How this process was started: the variables of `deepspeed`, `torchrun` or `srun`, or none for one process."""

import logging
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from swep_ds.common.console import say_on_stderr
from swep_ds.common.errors import InputError, RunExit

log = logging.getLogger(__name__)
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class LaunchError(InputError):
    """This process cannot be a rank, and may be the only one that knows: every process reports it."""


def read_launch(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The `VARIABLES` as a launcher set them; empty for one process without a launcher.

    Raises LaunchError: some are missing, or Slurm does not tell the first host.
    """
    if "RANK" not in env and int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        # spread, as jobs that share a node have close numbers
        port = 20000 + (7919 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])) % 12000
        return {
            "RANK": env["SLURM_PROCID"],
            "LOCAL_RANK": env["SLURM_LOCALID"],
            "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"],
            "MASTER_ADDR": env.get("MASTER_ADDR") or _first_host(env),
            "MASTER_PORT": env.get("MASTER_PORT", str(port)),
        }
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return {}
    missing = [name for name in VARIABLES if name not in env]
    if missing:
        raise LaunchError(
            f"the environment has some of the launcher's variables but not {', '.join(missing)}: start with "
            "`deepspeed`, `torchrun` or `srun`, or unset RANK and WORLD_SIZE for one process"
        )
    return {name: env[name] for name in VARIABLES}


def _first_host(env: Mapping[str, str]) -> str:
    if env.get("SLURM_STEP_NUM_NODES") == "1":  # a container need not have Slurm's commands
        return "127.0.0.1"
    command = ["scontrol", "show", "hostnames", env.get("SLURM_STEP_NODELIST", "")]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise LaunchError(f"{' '.join(command)} failed ({error}): export MASTER_ADDR in the job script") from None
    return listed.split()[0]


def is_first_on_node() -> bool:
    """Whether this is the first rank of its node, which prints what all ranks would."""
    if "RANK" in os.environ:
        return os.environ.get("SWEP_DS_LOCAL_ID", os.environ.get("LOCAL_RANK", "0")) == "0"
    return "SLURM_STEP_ID" not in os.environ or os.environ.get("SLURM_LOCALID", "0") == "0"


@cache
def warn_once(text: str) -> None:
    """Warns on each node, and only once of what is read several times."""
    if is_first_on_node():
        log.warning("%s", text)


def report(end: RunExit) -> None:
    """Prints once, on the first rank of each node, what ended a run: all ranks of a job meet the same."""
    if (is_first_on_node() or isinstance(end, LaunchError)) and not end.reported:
        end.reported = True
        say_on_stderr(f"{end.title}: {end}")


def note_checkpoint(update: int) -> None:
    """Tells scripts/slurm/restart.sh that this start of the job has saved a checkpoint."""
    if file := os.environ.get("SWEP_DS_PROGRESS"):
        with suppress(OSError), open(file, "a", encoding="utf-8") as lines:
            lines.write(f"update {update}\n")
