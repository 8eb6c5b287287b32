"""What `swep-ds submit` needs to know of Slurm: its environment, and how `sbatch` answers."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from swep_ds.common.errors import InputError

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
