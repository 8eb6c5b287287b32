"""Submits a training, or a sweep as an array with a task per run, to Slurm. No ssh: `srun` starts one task per GPU.

    python scripts/slurm/submit.py train --nodes 2 --gpus_per_node 8 --time 12:00:00 --partition gpu -- \\
        --ds_config ds_configs/zero2.json --recipe bert_base_squad
    python scripts/slurm/submit.py sweep --gpus_per_node 1 --parallel 4 -- quickstart_methods --output_dir runs/methods

What stands behind `--` are the options of scripts/train.py or scripts/sweep.py; they are looked at here, so that a
mistake does not wait in the queue. --dry_run prints all that would be submitted. A job that is asked to stop (by
SIGUSR1: shortly before its time limit, or by `scancel --signal=USR1 JOB`) saves and queues again, as does one that dies
of a signal or with its node, --max_restarts times at most; docs/clusters.md says what each exit code does.
Exit codes: 0 submitted; 2 bad input (one line says what and how to mend it).
"""

import argparse
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

from swep_ds.cli import Parser, main
from swep_ds.errors import InputError
from swep_ds.files import read_text
from swep_ds.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent.parent
LEAD_SECONDS = 120  # from the signal to the limit, in *.sbatch
EARLY_SECONDS = 60  # by which Slurm may send it earlier
SCRIPTS = {kind: ROOT / "scripts" / "slurm" / f"{kind}.sbatch" for kind in ("train", "sweep")}


def submit() -> None:
    own, behind, options = _split(sys.argv[1:])
    arguments = _parser().parse_args(own)
    if not behind:
        raise InputError(f"put the options of scripts/{arguments.kind}.py behind `--`")
    if arguments.parallel and arguments.kind == "train":
        raise InputError("--parallel is for sweeps: a training is one job")
    if arguments.max_restarts < 0:
        raise InputError("--max_restarts must not be negative")
    _check_time(arguments)
    if arguments.kind == "train":
        chosen, options, folder = _training(options)
    else:
        chosen, options, folder = _sweep(options, arguments.parallel)
    script = SCRIPTS[arguments.kind]
    command = ["sbatch", "--parsable", *_resources(arguments), *chosen, *arguments.sbatch, str(script), *options]
    environment = {
        "SWEP_DS_ROOT": str(ROOT),
        "SWEP_DS_PYTHON": sys.executable,
        "SWEP_DS_MAX_RESTARTS": str(arguments.max_restarts),
        "SWEP_DS_LOGS": str(folder),
    }
    if not arguments.dry_run:
        print(f"job {_sbatch(command, environment, folder)}, its log is in {folder}")
        return
    print(shlex.join([*(f"{name}={value}" for name, value in environment.items()), *command]))
    for file in (script, script.with_name("restart.sh")):
        print(f"\n# {file}\n{read_text(file)}", end="")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__)
    parser.add_argument("kind", choices=list(SCRIPTS))
    parser.add_argument("--nodes", type=_positive, default=1, help="of a run (default: 1)")
    tasks = parser.add_mutually_exclusive_group(required=True)
    tasks.add_argument("--gpus_per_node", type=_positive, help="as many ranks per node, a GPU for each")
    tasks.add_argument("--cpu_ranks_per_node", type=_positive, help="for a run without GPUs")
    parser.add_argument("--cpus_per_rank", type=_positive, help="cores of each rank (default: the cluster's)")
    parser.add_argument("--time", help="limit of each start, such as 12:00:00 (default: the partition's)")
    parser.add_argument("--partition", help="default: the cluster's")
    parser.add_argument("--parallel", type=_positive, help="sweep: runs at a time (default: as many as there is room)")
    parser.add_argument("--max_restarts", type=int, default=20, help="of a run (default: 20)")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="any other, as --sbatch=--qos=x"
    )
    parser.add_argument("--dry_run", action="store_true", help="print what would be submitted, and submit nothing")
    return parser


def _check_time(arguments: argparse.Namespace) -> None:
    """Raises InputError where the time limit leaves no time before the signal that asks to stop."""
    times = [arguments.time, *_given(arguments.sbatch, "--time", "-t")]
    signals = _given(arguments.sbatch, "--signal")
    time = next((text for text in reversed(times) if text is not None), None)
    limit = None if time is None else _minutes(time)
    if limit is None:
        return
    lead = re.fullmatch(r"(?:[BR]+:)?\w+(?:@(\d{1,5}))?", signals[-1], re.ASCII) if signals else None
    if signals and not lead:
        raise InputError(f"--sbatch=--signal={signals[-1]}: no signal of Slurm: give one such as USR1@{LEAD_SECONDS}")
    seconds = int(lead[1] or 60) if lead else LEAD_SECONDS
    if 60 * limit <= seconds + EARLY_SECONDS:
        raise InputError(
            f"--time {time}: a start is asked to stop {seconds} s before its limit, and up to {EARLY_SECONDS} s "
            f"earlier, and would make no update: give more than {(seconds + EARLY_SECONDS) // 60} minutes"
        )


def _given(options: list[str], *names: str) -> list[str]:
    """The values that options of sbatch give to one of these names."""
    values = []
    for name in names:
        glued = f"{name}=" if name.startswith("--") else name
        values += [option.removeprefix(glued).lstrip("= ") for option in options if option.startswith(glued)]
    return values


def _minutes(text: str) -> int | None:
    """Slurm's time limit, which counts begun minutes; None = no limit.

    Raises:
        InputError: none of the forms that sbatch takes.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    days, dash, clock = text.rpartition("-")
    numbers = clock.split(":")
    if len(numbers) > 3 or not all(
        re.fullmatch(r"\d{1,9}", part, re.ASCII) for part in ([days] if dash else []) + numbers
    ):
        raise InputError(f"--time {text}: no time of Slurm: give minutes, hours:minutes:seconds or days-hours:minutes")
    if not dash and len(numbers) < 3:
        numbers = ["0", *numbers]  # minutes, or minutes:seconds
    hours, minutes, seconds = map(int, [*numbers, "0", "0"][:3])
    return (24 * int(days or "0") + hours) * 60 + minutes + -(-seconds // 60) or None


def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    at = words.index("--") if "--" in words else len(words)
    return words[:at], at < len(words), words[at + 1 :]


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return int(text)


def _resources(arguments: argparse.Namespace) -> list[str]:
    ranks = arguments.gpus_per_node or arguments.cpu_ranks_per_node
    chosen = {
        "nodes": arguments.nodes,
        "ntasks-per-node": ranks,
        # of the node, not of the task: ranks of a node that see each other's GPUs exchange data directly
        "gpus-per-node": arguments.gpus_per_node,
        "cpus-per-task": arguments.cpus_per_rank,
        "time": arguments.time,
        "partition": arguments.partition,
    }
    return ["--export=ALL", *(f"--{name}={value}" for name, value in chosen.items() if value is not None)]


def _training(options: list[str]) -> tuple[list[str], list[str], Path]:
    """(options of sbatch, those of train.py with the run's folder fixed, the log's folder)."""
    script = runpy.run_path(str(ROOT / "scripts" / "train.py"))
    chosen = script["parser"]().parse_args(options)
    if chosen.resume != "auto":
        raise InputError(f"--resume {chosen.resume}: every start of a job would do that: leave it out, for auto")
    recipe = Recipe.load(chosen.recipe, chosen.set)
    if not chosen.ds_config or not Path(chosen.ds_config).is_file():
        raise InputError(f"--ds_config {chosen.ds_config}: no such file; shipped ones are in ds_configs/")
    folder = script["run_folder"](chosen, recipe).absolute()
    own = [f"--job-name={folder.name}", f"--output={folder}.slurm-%j.log"]
    return own, _with_folder(options, chosen, folder), folder.parent


def _sweep(options: list[str], parallel: int | None) -> tuple[list[str], list[str], Path]:
    """(options of sbatch, those of sweep.py with its folder fixed, that folder); cells that are done are left out."""
    script = runpy.run_path(str(ROOT / "scripts" / "sweep.py"))
    chosen = script["parser"]().parse_args(options)
    if chosen.table or chosen.cell is not None or max(chosen.jobs, chosen.num_accelerators) > 1:
        raise InputError("leave out --jobs, --num_accelerators, --cell and --table: the array decides what they would")
    folder, cells, _ = script["read"](chosen)
    folder = folder.absolute()
    left = [str(number) for number, cell in enumerate(cells) if cell.results() is None]
    if not left:
        raise InputError(f"--output_dir {folder}: all {len(cells)} runs of the sweep are done: see --table")
    array = ",".join(left) + (f"%{parallel}" if parallel else "")
    own = [f"--job-name={folder.name}", f"--array={array}", f"--output={folder}/slurm-%A_%a.log"]
    return own, _with_folder(options, chosen, folder), folder


def _with_folder(options: list[str], chosen: argparse.Namespace, folder: Path) -> list[str]:
    """Whatever the defaults become, a job that is started again finds its own run."""
    return options if chosen.output_dir else [*options, "--output_dir", str(folder)]


def _sbatch(command: list[str], environment: dict[str, str], folder: Path) -> str:
    """Submits; returns the job's number."""
    try:
        folder.mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for a log
        streams = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
        ended = subprocess.run(command, env=os.environ | environment, **streams)
    except FileNotFoundError:
        raise InputError("sbatch: no such command: submit on a machine of a Slurm cluster, or use --dry_run") from None
    except OSError as error:
        raise InputError(f"--output_dir: {folder}: cannot be made ({error.strerror})") from None
    if ended.returncode:
        raise InputError(
            f"sbatch refused the job: {' '.join(re.sub('^sbatch: ', '', ended.stderr, flags=re.M).split())}"
        )
    job = ended.stdout.strip().partition(";")[0]
    if not job.isdigit():
        raise InputError(f"sbatch gave no job's number but {job[:80]!r}: look with squeue whether the job is there")
    return job


if __name__ == "__main__":
    main(submit)
