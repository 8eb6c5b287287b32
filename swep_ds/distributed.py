"""Ranks: found in the environment of `deepspeed`, `torchrun`, `srun` or plain `python`, and ended cleanly.

Notable (DeepSpeed 0.19):
- On CPU, `init_distributed` would compile a shared-memory operator (40 s) that leaves 69 MB per rank in /dev/shm
  for good; it is switched off, gloo alone does the work.
- Without `engine.destroy()`, barrier and `destroy_process_group()` a few per cent of runs die at interpreter exit.
"""

import logging
import os
import socket
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import datasets
import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
import transformers
from deepspeed.accelerator import get_accelerator

from swep_ds.command import is_first_on_node, report
from swep_ds.errors import InputError, TrainingDiverged

T = TypeVar("T")


@contextmanager
def process_group() -> Iterator[None]:
    """Joins the process group and leaves it cleanly; inside, `rank()`, `world_size()` and `device()` hold.

    Raises:
        InputError: a launcher set some of the rank variables, but not all.
        InputError, TrainingDiverged: of the block, which must raise them on all ranks alike (`agree`). Any other
            exception on one rank ends the job through its launcher.
    """
    _complete_environment()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    backend = get_accelerator().communication_backend_name()
    if get_accelerator().device_name() == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        backend = "gloo"
    else:
        local, devices = int(os.environ["LOCAL_RANK"]), get_accelerator().device_count()
        if local >= devices:
            raise InputError(
                f"rank {os.environ['RANK']} wants device {local} of a node with {devices}: start fewer ranks"
            )
        get_accelerator().set_device(local)
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    try:
        yield
        dist.barrier()
    except (InputError, TrainingDiverged) as error:
        report(error)  # before the launcher sees one rank end and kills the others
        dist.barrier()
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _complete_environment() -> None:
    """Fills in what `srun` and plain `python` do not set."""
    env = os.environ
    if "RANK" not in env and int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        if "MASTER_ADDR" not in env:
            command = ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]]
            try:
                listed = subprocess.run(command, capture_output=True, text=True, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise InputError(
                    f"{' '.join(command)} failed ({error}): export MASTER_ADDR in the job script"
                ) from None
            env["MASTER_ADDR"] = listed.stdout.split()[0]
        unique = 100 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])
        env.setdefault("MASTER_PORT", str(20000 + unique % 20000))
        env["RANK"], env["LOCAL_RANK"] = env["SLURM_PROCID"], env["SLURM_LOCALID"]
        if torch.cuda.device_count() == 1:
            env["LOCAL_RANK"] = "0"  # --gpus-per-task=1 shows every task one device, its own
        env["SWEP_DS_LOCAL_ID"] = env["SLURM_LOCALID"]
        env["WORLD_SIZE"] = env["SLURM_STEP_NUM_TASKS"]
    if "RANK" not in env and "WORLD_SIZE" not in env:
        env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    missing = [n for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if n not in env]
    if missing:
        raise InputError(
            f"the environment has some of the launcher's variables but not {', '.join(missing)}: start with "
            "`deepspeed`, `torchrun` or `srun`, or unset RANK and WORLD_SIZE for one process"
        )


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def rank() -> int:
    return dist.get_rank()


def world_size() -> int:
    return dist.get_world_size()


def is_main() -> bool:
    return rank() == 0


def device() -> torch.device:
    return torch.device(get_accelerator().current_device_name())


def synchronize() -> None:
    """Waits for the device, so that a clock read next tells the truth."""
    if device().type != "cpu":
        get_accelerator().synchronize()


def gather(value: T) -> list[T]:
    """Every rank's picklable value, in rank order, on all ranks."""
    values: list = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def agree(step: Callable[[], T]) -> T:
    """Runs `step` on every rank; if it raises InputError on any, raises that error on all of them."""
    value, fault = None, None
    try:
        value = step()
    except InputError as error:
        fault = str(error)
    faults = gather(fault)
    if any(faults):
        number, message = next((n, m) for n, m in enumerate(faults) if m)
        hosts = gather(socket.gethostname())
        where = "" if all(m == message for m in faults) else f" (on rank {number}, host {hosts[number]})"
        raise InputError(message + where)
    return value


def first_on_each_node(step: Callable[[], T]) -> T:
    """Runs `step` on each node's first rank, then on the others, which find what it left in the node's cache."""
    first = is_first_on_node()
    value = agree(lambda: step() if first else None)
    return agree(lambda: value if first else step())
