"""Starts runs on this machine: the launcher's command line, and which devices or threads each run gets."""

import argparse
import os
import random
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import torch
from deepspeed.accelerator import get_accelerator

from swep_ds.common.errors import InputError


def environments(jobs: int, ranks: int | None, sharing: int = 1) -> list[dict[str, str]]:
    """For each of `jobs` simultaneous runs, the environment variables that give it its devices or its share of threads.

    A run has `ranks` processes, each with a device, which so many runs are `sharing`. Slurm (None) assigns devices by
    itself. Raises InputError: there are fewer devices than processes.
    """
    if ranks is None:
        return [{}] * jobs
    accelerator = get_accelerator()
    threads = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // (jobs * ranks)))}
    if accelerator.device_name() == "cpu":
        # named, so that DeepSpeed's launcher does not print in each of its processes that it takes the CPU
        return [threads | {"DS_ACCELERATOR": "cpu"}] * jobs
    count = accelerator.device_count()
    groups = count // ranks
    if jobs > groups * sharing:
        raise InputError(
            f"{jobs} run(s) of {ranks} rank(s) at a time, {sharing} to a device: there are {count} devices: lower one"
        )
    variable = accelerator.visible_devices_envs()[0]
    devices = [str(number) for number in range(count)]
    if given := os.environ.get(variable):
        devices = [name.strip() for name in given.split(",")]
    if sharing == 1:
        threads = {}
    chosen = []
    for job in range(jobs):
        first = job % groups * ranks
        chosen.append(threads | {variable: ",".join(devices[first : first + ranks])})
    return chosen


def launcher(ranks: int | None) -> list[str]:
    """The words before a script that start it: `srun` if `ranks` is None, else `python`, or `deepspeed` for several."""
    if ranks is None:
        return ["srun", sys.executable, "-u"]
    if ranks == 1:
        return [sys.executable, "-u"]
    # not "error", at which it ends with 400 characters about a rank that has said in one line why it ended
    options = ["--log_level", "critical", "--master_port", str(free_port())]
    if get_accelerator().device_name() == "cpu":  # otherwise it takes the devices that it sees, as `environments` says
        options += ["--num_accelerators", str(ranks)]
    return [sys.executable, "-u", "-m", "deepspeed.launcher.runner", *options]


def free_port() -> int:
    """A free TCP port of this machine, below those of outgoing connections, which may take one a second later."""
    for port in random.SystemRandom().sample(range(20000, 32000), 100):  # a seeded program keeps its random state
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))  # every address, as the store does
            return port
    raise OSError("none of 100 ports between 20000 and 32000 is free")


def become_launcher(ranks: int, command: str, more: Sequence[str] = ()) -> NoReturn:
    """Replaces this process by DeepSpeed's launcher, which starts `swep-ds COMMAND` with this process's options and
    `more`."""
    option = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    option.add_argument("--ranks")
    _, options = option.parse_known_args(sys.argv[1:])
    words = [*launcher(ranks), "--module", "swep_ds", command, *options, *more]
    safe_path = {"PYTHONSAFEPATH": "1"}  # from Python 3.11 on -m then imports nothing from the current folder
    os.execve(words[0], words, os.environ | environments(1, ranks)[0] | safe_path)
