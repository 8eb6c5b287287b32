"""What `swep-ds submit` needs to know of Slurm: time limits, signals, and how `sbatch` answers."""

import os
import re
import subprocess
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from swep_ds.common.errors import InputError

LEAD_SECONDS = 120  # from the signal to the limit, in scripts/slurm/*.sbatch
EARLY_SECONDS = 60  # Slurm may send the signal earlier by this
# Inside another job the environment describes that job: its cores and their binding, its memory, its ranks. sbatch
# would pass it on. And sbatch prefers its variables to the #SBATCH lines of a script.
OF_ANOTHER_JOB = re.compile("(SLURM|SRUN|PMI|PMIX)_.*|SBATCH_(SIGNAL|REQUEUE|NO_REQUEUE|OPEN_MODE|EXPORT)")
OF_THE_SITE = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"}


# option of sbatch -> the option of `swep-ds submit` that decides the number of ranks
OF_RANKS = dict.fromkeys(("--nodes", "-N"), "--nodes")
OF_RANKS |= dict.fromkeys(
    ("--ntasks", "-n", "--ntasks-per-node", "--tasks-per-node"), "--gpus_per_node or --cpu_ranks_per_node"
)


def check_options(options: Sequence[str]) -> None:
    """Raises InputError: an extra argument is not an option of sbatch, or changes the number of ranks."""
    for argument, before in zip(options, ["", *options], strict=False):
        is_value = before.startswith("-") and "=" not in before  # of the option before it
        if not argument.startswith("-") and not is_value:
            raise InputError(f"--sbatch={argument}: is not an option of sbatch: write --sbatch=--{argument}")
    for name, instead in OF_RANKS.items():
        if values := _values(options, name):
            raise InputError(f"--sbatch={name}: {values[-1]}: give the number of ranks by {instead} instead")


def check_time(time: str | None, sbatch_options: Sequence[str]) -> None:
    """Raises InputError if no rank would save at the signal, or if the time limit ends before it would come.

    Args:
        time: as in `--time`; None = the partition's limit.
        sbatch_options: other options of sbatch, which may give `--time` and `--signal` as well.
    """
    seconds = LEAD_SECONDS
    if signals := _values(sbatch_options, "--signal"):
        # `B:` would signal only the batch script
        match = re.fullmatch(r"(?:R:)?(?:(?:SIG)?(?:USR1|TERM|INT)|10|15|2)(?:@([0-9]{1,5}))?", signals[-1], re.I)
        if not match:
            raise InputError(
                f"--sbatch=--signal={signals[-1]}: no rank would save at it: give USR1, TERM or INT to all steps, as "
                f"USR1@{LEAD_SECONDS} does"
            )
        seconds = int(match[1] or 60)
    time = (_values(sbatch_options, "--time", "-t") or [time])[-1]
    limit = None if time is None else _minutes(time)
    if limit is None:
        return
    if 60 * limit <= seconds + EARLY_SECONDS:
        raise InputError(
            f"--time {time}: a start is asked to stop {seconds} s before its limit, and up to {EARLY_SECONDS} s "
            f"earlier, and would make no update: give more than {(seconds + EARLY_SECONDS) // 60} minutes"
        )


def _values(options: Sequence[str], *names: str) -> list[str]:
    """What is given for an option of any of the names, as `--time=1`, `-t1`, or `-t` and `1`."""
    values = []
    for option, following in zip_longest(options, options[1:], fillvalue=""):
        for name in names:
            if option == name:
                values.append(following)
            elif option.startswith(f"{name}=" if name.startswith("--") else name):
                values.append(option.removeprefix(name).lstrip("= "))
    return values


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
    inside = "SLURM_JOB_ID" in os.environ
    kept = {k: v for k, v in os.environ.items() if not inside or k in OF_THE_SITE or not OF_ANOTHER_JOB.fullmatch(k)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        streams = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
        ended = subprocess.run(command, env=kept | environment, **streams)
    except FileNotFoundError:
        raise InputError("sbatch: no such command: submit on a machine of a Slurm cluster, or use --dry_run") from None
    except OSError as error:
        raise InputError(f"--output_dir {folder}: cannot be created ({error.strerror})") from None
    if ended.returncode:
        reason = " ".join(re.sub("^sbatch: ", "", ended.stderr, flags=re.M).split())
        raise InputError(f"sbatch refused the job: {reason}")
    job = ended.stdout.strip().partition(";")[0]
    if not job.isdigit():
        raise InputError(f"sbatch gave no job number but {job[:80]!r}: check with squeue whether the job exists")
    return job
