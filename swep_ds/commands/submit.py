"""Submits a training, or a sweep as an array with a task per run, to Slurm. No ssh: `srun` starts one task per GPU.

    swep-ds submit train --nodes 2 --gpus_per_node 8 --time 12:00:00 --partition gpu -- --recipe bert_base_squad
    swep-ds submit sweep --gpus_per_node 1 --parallel 4 -- quickstart_methods --output_dir runs/methods

The options after `--` are those of `swep-ds train` or `swep-ds sweep`. They are checked before the job is queued.
--dry_run prints all that would be submitted. On SIGUSR1, which Slurm sends shortly before the time limit, or `scancel
--signal=USR1 JOB` at any time, a job saves and is queued again; so is one that dies of a signal or with its node, at
most --max_restarts times. docs/clusters.md says what each exit code does.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from swep_ds.commands import sweep as sweep_command
from swep_ds.commands import train as train_command
from swep_ds.commands.cli import Parser, at_least
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_text, shipped
from swep_ds.pipeline.folder import RunFolder

# Inside another job the environment describes that job: its cores and their binding, its memory, its ranks. sbatch
# would pass it on. And sbatch prefers its variables to the #SBATCH lines of a script.
OF_ANOTHER_JOB = re.compile("(SLURM|SRUN|PMI|PMIX)_.*|SBATCH_(SIGNAL|REQUEUE|NO_REQUEUE|OPEN_MODE|EXPORT)")
OF_THE_SITE = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"}
# options of sbatch that decide the number of ranks; the value may follow -N and -n at once
OF_RANKS = re.compile("-[Nn].*|--(nodes|ntasks|ntasks-per-node|tasks-per-node)(=.*)?")


def parser() -> argparse.ArgumentParser:
    options = Parser(description=__doc__)
    options.add_argument("kind", choices=("train", "sweep"), help="what to submit")
    options.add_argument("--nodes", type=at_least(1), default=1, help="nodes of a run")
    tasks = options.add_mutually_exclusive_group(required=True)
    tasks.add_argument("--gpus_per_node", type=at_least(1), help="ranks per node, each with a GPU")
    tasks.add_argument("--cpu_ranks_per_node", type=at_least(1), help="ranks per node, for a run without GPUs")
    options.add_argument("--cpus_per_rank", type=at_least(1), help="cores of each rank (default: the cluster's)")
    options.add_argument("--time", help="limit of each start, such as 12:00:00 (default: the partition's)")
    options.add_argument("--partition", help="partition of the nodes (default: the cluster's)")
    options.add_argument("--parallel", type=at_least(1), help="for a sweep: runs at a time (default: no limit)")
    options.add_argument("--max_restarts", type=at_least(0), default=20, help="restarts of a job")
    text = "an extra sbatch option, such as --sbatch=--qos=high; may be repeated"
    options.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help=text)
    options.add_argument("--dry_run", action="store_true", help="print what would be submitted, and submit nothing")
    return options


def training(options: list[str], ranks: int, *, on_cpu: bool) -> tuple[list[str], Path]:
    """Checks a training. Returns (options of sbatch, the run's folder)."""
    arguments = train_command.parser().parse_args(options)
    if arguments.resume != "auto":
        raise InputError(f"--resume {arguments.resume}: every start of the job would repeat it: leave it out")
    if arguments.ranks is not None:
        raise InputError("--ranks: srun starts the ranks: leave it out")
    if arguments.plan is not None:
        raise InputError("--plan: trains nothing: run it without submit")
    recipe, ds_config, folder = train_command.read(arguments)
    folder = folder.absolute()

    from swep_ds.pipeline.checks import check_ds_config  # imports PyTorch, for seconds

    RunFolder(folder).check_owner(recipe)
    check_ds_config(recipe, ds_config, folder, ranks, on_cpu=on_cpu)
    return [f"--job-name={folder.name}", f"--output={folder}.slurm-%j.log"], folder


def sweep(options: list[str], parallel: int | None, ranks: int, *, on_cpu: bool) -> tuple[list[str], Path]:
    """Checks a sweep. Returns (options of sbatch, for the cells that are not done, and the sweep's folder)."""
    arguments = sweep_command.parser().parse_args(options)
    if arguments.table or arguments.plan or arguments.cell is not None or max(arguments.jobs, arguments.ranks) > 1:
        raise InputError("leave out --jobs, --ranks, --cell, --table and --plan: the array replaces them")
    folder, cells, command = sweep_command.read(arguments)
    folder = folder.absolute()
    unfinished = [str(number) for number, cell in enumerate(cells) if cell.results() is None]
    if not unfinished:
        raise InputError(f"--output_dir {folder}: all {len(cells)} runs of the sweep are done: see --table")
    array = ",".join(unfinished)
    if parallel:
        array += f"%{parallel}"

    from swep_ds.sweeps.conditions import check_start  # imports PyTorch, for seconds

    check_start(cells, cells, command[-1], ranks, on_cpu=on_cpu)
    return [f"--job-name={folder.name}", f"--array={array}", f"--output={folder}/slurm-%A_%a.log"], folder


def submit() -> None:
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    arguments = parser().parse_args(words[:split])
    options = words[split + 1 :]
    if "--" not in words:
        raise InputError(f"put the options of `swep-ds {arguments.kind}` after `--`")
    for argument in arguments.sbatch:
        if not argument.startswith("-"):
            raise InputError(f"--sbatch={argument}: is not an option of sbatch: write --sbatch=--NAME=VALUE")
        if OF_RANKS.fullmatch(argument):
            instead = "--nodes with --gpus_per_node or --cpu_ranks_per_node"
            raise InputError(f"--sbatch={argument}: give the number of ranks by {instead} instead")
    tasks = arguments.gpus_per_node or arguments.cpu_ranks_per_node
    ranks = arguments.nodes * tasks
    on_cpu = arguments.gpus_per_node is None
    if arguments.kind == "sweep":
        chosen, folder = sweep(options, arguments.parallel, ranks, on_cpu=on_cpu)
        logs = folder
    elif arguments.parallel:
        raise InputError("--parallel is for sweeps: a training is one job")
    else:
        chosen, folder = training(options, ranks, on_cpu=on_cpu)
        logs = folder.parent
    if not any(option.startswith("--output_dir") for option in options):
        options += ["--output_dir", str(folder)]  # a restarted job finds its run even if the defaults change
    resources = {
        "nodes": arguments.nodes,
        "ntasks-per-node": tasks,
        # per node, not per task: ranks of a node that see each other's GPUs exchange data directly
        "gpus-per-node": arguments.gpus_per_node,
        "cpus-per-task": arguments.cpus_per_rank,
        "time": arguments.time,
        "partition": arguments.partition,
    }
    command = ["sbatch", "--parsable", "--export=ALL"]
    command += [f"--{name}={value}" for name, value in resources.items() if value is not None]
    scripts = shipped("scripts")
    script = scripts / "slurm" / f"{arguments.kind}.sbatch"
    command += [*chosen, *arguments.sbatch, str(script), *options]
    environment = {
        "SWEP_DS_ROOT": str(scripts.parent),
        "SWEP_DS_PYTHON": sys.executable,
        "SWEP_DS_MAX_RESTARTS": str(arguments.max_restarts),
        "SWEP_DS_LOGS": str(logs),
    }
    if not arguments.dry_run:
        print(f"job {_queue(command, environment, logs)}, its log is in {logs}")
        return
    print(shlex.join([*(f"{name}={value}" for name, value in environment.items()), *command]))
    for file in (script, script.with_name("restart.sh")):
        print(f"\n# {file}\n{read_text(file)}", end="")


def _queue(command: list[str], environment: dict[str, str], folder: Path) -> str:
    """Runs an sbatch command and returns the job's number; creates `folder` for its log, which Slurm does not."""
    kept = dict(os.environ)
    if "SLURM_JOB_ID" in kept:
        kept = {name: kept[name] for name in kept if name in OF_THE_SITE or not OF_ANOTHER_JOB.fullmatch(name)}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        ended = subprocess.run(command, env=kept | environment, capture_output=True, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError("sbatch: no such command: submit on a machine of a Slurm cluster, or use --dry_run") from None
    if ended.returncode:
        raise InputError(f"sbatch refused the job: {' '.join(ended.stderr.split())}")
    return ended.stdout.strip().partition(";")[0]
