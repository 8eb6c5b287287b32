"""What `swep-ds submit` needs to know of Slurm: time limits, signals, and how `sbatch` answers."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from swep_ds.common.errors import InputError

LEAD_SECONDS = 120  # from the signal to the limit, in scripts/slurm/*.sbatch
EARLY_SECONDS = 60  # Slurm may send the signal earlier by this
# Inside another job the environment describes that job: its cores and their binding, its memory, its ranks. sbatch
# would pass it on. And sbatch prefers its variables to the #SBATCH lines of a script.
OF_ANOTHER_JOB = re.compile("(SLURM|SRUN|PMI|PMIX)_.*|SBATCH_(SIGNAL|REQUEUE|NO_REQUEUE|OPEN_MODE|EXPORT)")
OF_THE_SITE = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"}


# options of sbatch that decide the number of ranks -> the options of `swep-ds submit` for it
OF_RANKS = dict.fromkeys(("--nodes", "-N"), "--nodes")
OF_RANKS |= dict.fromkeys(
    ("--ntasks", "-n", "--ntasks-per-node", "--tasks-per-node"), "--gpus_per_node or --cpu_ranks_per_node"
)


def check_options(options: Sequence[str]) -> None:
    """Raises InputError: an extra argument is not an option of sbatch, or changes the number of ranks."""
    for argument in options:
        if not argument.startswith("-"):
            raise InputError(f"--sbatch={argument}: is not an option of sbatch: write --sbatch=--NAME=VALUE")
        if instead := OF_RANKS.get(argument.partition("=")[0]):
            raise InputError(f"--sbatch={argument}: give the number of ranks by {instead} instead")


def check_time(time: str | None, sbatch_options: Sequence[str]) -> None:
    """Raises InputError if the time limit ends before the signal, at which the ranks save, would come.

    Args:
        time: as in `--time`; None = the partition's limit.
        sbatch_options: other options of sbatch, which may give `--signal` as well.
    """
    seconds = LEAD_SECONDS
    for option in sbatch_options:
        if signal := re.fullmatch(r"--signal=.*@([0-9]{1,5})", option):
            seconds = int(signal[1])
    limit = _minutes(time) if time else None
    if limit is not None and 60 * limit <= seconds + EARLY_SECONDS:
        raise InputError(
            f"--time {time}: a start is asked to stop {seconds} s before its limit, and up to {EARLY_SECONDS} s "
            f"earlier, and would make no update: give more than {(seconds + EARLY_SECONDS) // 60} minutes"
        )


def _minutes(text: str) -> int | None:
    """Slurm's time limit in minutes, rounded up as Slurm does; None = no limit.
    Raises InputError: none of the forms that sbatch takes."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    if not re.fullmatch(r"(\d{1,9}-)?\d{1,9}(:\d{1,9}){0,2}", text, re.ASCII):
        raise InputError(f"--time {text}: not a Slurm time: give minutes, hours:minutes:seconds or days-hours:minutes")
    days, dash, clock = text.rpartition("-")
    numbers = clock.split(":")
    if not dash and len(numbers) < 3:
        numbers = ["0", *numbers]  # minutes, or minutes:seconds
    hours, minutes, seconds = map(int, [*numbers, "0", "0"][:3])
    return (24 * int(days or "0") + hours) * 60 + minutes + -(-seconds // 60) or None


def submit(command: Sequence[str], environment: dict[str, str], folder: Path) -> str:
    """Runs an sbatch command and returns the job's number; creates `folder` for its log, which Slurm does not.
    Raises InputError: there is no sbatch, or it refuses the job."""
    kept = dict(os.environ)
    if "SLURM_JOB_ID" in kept:
        kept = {name: kept[name] for name in kept if name in OF_THE_SITE or not OF_ANOTHER_JOB.fullmatch(name)}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        ended = subprocess.run(command, env=kept | environment, capture_output=True, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError("sbatch: no such command: submit on a machine of a Slurm cluster, or use --dry_run") from None
    if ended.returncode:
        reason = " ".join(re.sub("^sbatch: ", "", ended.stderr, flags=re.M).split())
        raise InputError(f"sbatch refused the job: {reason}")
    job = ended.stdout.strip().partition(";")[0]
    if not job.isdigit():
        raise InputError(f"sbatch gave no job number but {job[:80]!r}: check with squeue whether the job exists")
    return job
