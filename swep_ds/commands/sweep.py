"""Trains every variant of a sweep with every seed, and prints one table of their scores.

    swep-ds sweep quickstart_methods            # all methods on the embedded corpus, briefly
    swep-ds sweep SWEEP.yaml --output_dir runs/mine --jobs 2 --set data.train=train-v1.1.json

A sweep file names a recipe, variants (rows) with their settings, axes such as models or shares of the training
questions, and seeds: `swep-ds recipes --schema sweep` lists all fields. Each cell is an ordinary run in its own folder,
with its log next to it.
Start the command again to run what is not done yet; --table only makes the table of what is done, as `swep-ds table`
does, in the sweep's folder, and --plan runs nothing. What a run would be refused for is checked before all runs.
Exit codes: 0: done. 1: a run failed or is missing from the table (the others ran). 2: bad input (one line says what
and how to fix it). 75: stopped, with its runs, by SIGINT, SIGTERM or SIGHUP. With --cell: the exit code of the run.
"""

import argparse
import os
import sys
from pathlib import Path

from swep_ds.commands.cli import Parser, add_set_option, at_least
from swep_ds.common.console import Console
from swep_ds.common.errors import EXIT_DONE, EXIT_FAULT, EXIT_STOPPED, InputError
from swep_ds.common.files import DEFAULT_DS_CONFIG, ds_config_path, shipped, user_path
from swep_ds.sweeps.sweep import Cell, describe, last_attempt, read_sweep


def parser() -> argparse.ArgumentParser:
    options = Parser(description=__doc__)
    options.add_argument("sweep", help="name of a shipped sweep, or a YAML file")
    text = f"DeepSpeed configuration (default: the sweep's, else {DEFAULT_DS_CONFIG})"
    options.add_argument("--ds_config", help=text)
    add_set_option(options, "every run")
    options.add_argument("--output_dir", type=user_path, help="for the runs and the table (default: runs/SWEEP)")
    options.add_argument("--jobs", type=at_least(1), default=1, help="runs at a time")
    options.add_argument("--ranks", type=at_least(1), metavar="N", default=1, help="processes of each run")
    text = "how many runs may share a device; a CPU takes any"
    options.add_argument("--runs_per_device", type=at_least(1), default=1, help=text)
    options.add_argument("--srun", action="store_true", help="start a run with srun, on all tasks of the Slurm job")
    mode = options.add_mutually_exclusive_group()
    mode.add_argument("--cell", type=int, metavar="N", help="only run cell N, counted from 0, and make no table")
    mode.add_argument("--table", action="store_true", help="only make the table of what is done")
    text = "run nothing: check what a start would refuse, and print each variant's runs, updates and passes"
    mode.add_argument("--plan", action="store_true", help=text)
    return options


def read(arguments: argparse.Namespace) -> tuple[Path, list[Cell], list[str]]:
    """(the sweep's folder, its cells, the script and the options that they share, the ds_config last; for --table
    none)."""
    folder = arguments.output_dir or Path("runs") / Path(arguments.sweep).stem
    chosen, cells = read_sweep(arguments.sweep, folder, arguments.set)
    if arguments.table:
        if not folder.is_dir():
            raise InputError(f"--output_dir {folder}: no such folder: name the one that the sweep ran in")
        return folder, cells, []
    ds_config = arguments.ds_config or chosen.ds_config or DEFAULT_DS_CONFIG
    ds_config_path(ds_config)  # before the first run starts
    return folder, cells, [str(shipped("scripts") / "train.py"), "--recipe", chosen.recipe, "--ds_config", ds_config]


def sweep() -> None:
    arguments = parser().parse_args()
    if arguments.srun and max(arguments.jobs, arguments.ranks) > 1:
        raise InputError("--srun takes all tasks of the Slurm job for one run: leave out --jobs and --ranks")
    if arguments.srun and "SLURM_JOB_ID" not in os.environ:
        raise InputError("--srun: this is no Slurm job: use --jobs and --ranks, or `swep-ds submit sweep`")
    folder, cells, command = read(arguments)
    if arguments.cell is not None and not 0 <= arguments.cell < len(cells):
        raise InputError(f"--cell {arguments.cell}: the sweep has {len(cells)}, from 0 to {len(cells) - 1}")
    chosen = cells
    if arguments.cell is not None:
        chosen = [cells[arguments.cell]]
    known = arguments.ranks
    if arguments.srun:
        arguments.ranks = known = None
        tasks = os.environ.get("SLURM_NTASKS", "")  # which srun starts
        if tasks.isdecimal():
            known = int(tasks)
    if not arguments.table:
        from swep_ds.sweeps.conditions import check_runs, check_start

        if len(chosen) > 1 or arguments.plan:  # a single run checks itself
            check_runs(chosen)
        check_start(cells, chosen, command[-1], known)
    if arguments.plan:
        from swep_ds.cost.plan import plan_sweep

        plan_sweep(cells, known or 1)
        return
    from swep_ds.analysis.formats import publish  # here and below: after the settings are checked
    from swep_ds.analysis.runs import runs_of_cells

    describe(cells, folder)
    failed = []
    if not arguments.table:
        failed = _run(arguments, cells, chosen, command)
    if publish(runs_of_cells(cells), folder).missing or failed:
        sys.exit(EXIT_FAULT)


def _run(arguments: argparse.Namespace, cells: list[Cell], chosen: list[Cell], command: list[str]) -> list[Cell]:
    """Runs the chosen cells and returns those that failed. Exits here after --cell, or if a signal stopped the runs."""
    from swep_ds.sweeps.queue import run_queue

    devices = {"jobs": arguments.jobs, "ranks": arguments.ranks, "sharing": arguments.runs_per_device}
    failed, stopped = run_queue(chosen, command, **devices)
    if stopped:  # a table can take minutes
        done = sum(cell.results() is not None for cell in cells)
        Console().print(f"stopped: {done} of {len(cells)} runs are done; the same command resumes, --table shows these")
        sys.exit(EXIT_STOPPED)
    if arguments.cell is not None:
        [cell] = chosen
        if cell.results() is not None:
            sys.exit(EXIT_DONE)
        _, code = last_attempt(cell.folder)
        sys.exit(code or EXIT_FAULT)
    return failed
