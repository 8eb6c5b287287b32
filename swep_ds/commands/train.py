"""Trains, evaluates and exports a question-answering model, as a recipe says.

    deepspeed scripts/train.py --ds_config ds_configs/zero2.json                    # the embedded quick start
    deepspeed scripts/train.py --ds_config ds_configs/zero2.json --recipe bert_base_squad --set train.precision=autocast
    python scripts/train.py --recipe bert_base_squad --plan 8x80      # only prints what it takes, and what fits

Starts equally under `torchrun`, `srun` and plain `python` (one process); scripts/slurm/submit.py submits it to Slurm.
With --preflight, any of these commands trains nothing, and checks that all ranks see the same.
Exit codes: 0 done; 2 bad input or configuration (one line says what and how to fix it); 75 stopped on request after a
checkpoint, and 76 another rank was lost: start again to resume; anything else is a fault.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from swep_ds.cli import Parser
from swep_ds.errors import InputError
from swep_ds.files import path_of
from swep_ds.ranks.launch import is_first_on_node
from swep_ds.shipped import shipped

if TYPE_CHECKING:
    from swep_ds.recipe import Recipe


def parser() -> argparse.ArgumentParser:
    options = Parser(description=__doc__)
    options.add_argument("--ds_config", help="DeepSpeed configuration; shipped ones are in ds_configs/")
    options.add_argument("--recipe", default="quickstart", help="name of a shipped recipe, or a YAML file")
    options.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="may be repeated")
    options.add_argument(
        "--output_dir", type=path_of("--output_dir"), help="the run's folder (default: runs/RECIPE-METHOD-seedSEED)"
    )
    options.add_argument("--resume", default="auto", metavar="auto|never|PATH", help="default: auto")
    options.add_argument(
        "--plan",
        nargs="?",
        const="",
        metavar="NxGIB",
        help="train nothing: print parameters, updates, memory and the ds_config to take, on N GPUs of GIB each, such "
        "as 8x80 (default: this machine's devices); without --ds_config all shipped ones are compared",
    )
    options.add_argument(
        "--preflight",
        action="store_true",
        help="train nothing: compare what the ranks see (devices, versions, files, output folder) and time collectives",
    )
    options.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher
    return options


def run_folder(arguments: argparse.Namespace, recipe: "Recipe") -> Path:
    name = f"{Path(arguments.recipe).stem}-{recipe.method.name}-seed{recipe.seed}"
    return arguments.output_dir or Path("runs") / name


def print_plan(arguments: argparse.Namespace, recipe: "Recipe") -> None:
    from swep_ds.planning.plan import Devices, plan

    command = ["--recipe", arguments.recipe, *(part for text in arguments.set for part in ("--set", text))]
    command += ["--output_dir", str(arguments.output_dir)] if arguments.output_dir else []
    command += ["--resume", arguments.resume] if arguments.resume != "auto" else []
    if is_first_on_node():
        plan(recipe, Devices.parse(arguments.plan), arguments.ds_config, shipped("ds_configs"), command)


def report(folder: Path):
    from swep_ds.analysis.report import write_report  # here, where a fault in the import does not fail the run

    return write_report(folder)


def train() -> None:
    arguments = parser().parse_args()

    from swep_ds.recipe import Recipe  # imports PyTorch, for seconds: signals are requests to stop before that

    recipe = Recipe.load(arguments.recipe, arguments.set)
    if arguments.plan is not None:
        print_plan(arguments, recipe)
        return
    if arguments.ds_config is None:
        raise InputError("--ds_config: none is given: shipped ones are in ds_configs/, and --plan says which to take")
    folder = run_folder(arguments, recipe)

    from swep_ds.ranks.group import process_group  # takes seconds: after the settings are checked

    if arguments.preflight:
        from swep_ds.planning.preflight import preflight

        with process_group():
            preflight(recipe, arguments.ds_config, folder)
        return

    from swep_ds.pipeline.run import run

    with process_group():
        run(recipe, arguments.ds_config, folder, arguments.resume, report)
