"""Trains, evaluates and exports a question-answering model, as a recipe says.

    swep-ds train                                                 # the embedded quick start
    swep-ds train --ranks 8 --recipe bert_base_squad --set train.precision=autocast
    deepspeed scripts/train.py --ds_config ds_configs/zero1.json  # the same in a checkout, under any launcher

It works the same under `deepspeed`, `torchrun`, `srun` and plain `python` (one process); `swep-ds submit` submits it to
Slurm. With --plan or --preflight it trains nothing.
Exit codes: 0: done. 2: bad input or configuration (one line says what and how to fix it). 75: stopped on request; run
the command again to resume. 76: another rank was lost; run the command again to resume. Any other code: the run failed.
"""

import argparse
import gc
from pathlib import Path

from swep_ds.commands.cli import GC_THRESHOLDS, Parser, add_launch_options, add_set_option, launch
from swep_ds.common.errors import InputError
from swep_ds.common.files import DEFAULT_DS_CONFIG, ds_config_path, user_path
from swep_ds.pipeline.folder import check_files  # imports no PyTorch: a typo is answered at once
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.environment import is_first_on_node, read_launch


def parser() -> argparse.ArgumentParser:
    options = Parser(description=__doc__)
    text = f"name of a shipped DeepSpeed configuration, or a file (default for training: {DEFAULT_DS_CONFIG})"
    options.add_argument("--ds_config", help=text)
    options.add_argument("--recipe", default="quickstart", help="name of a shipped recipe, or a YAML file")
    add_set_option(options, "the recipe")
    options.add_argument("--output_dir", type=user_path, help="the run's folder (default: runs/RECIPE-METHOD-seedSEED)")
    text = "auto: from the newest complete checkpoint in --output_dir, if there is one; never: refuse a folder that "
    text += "holds a run; PATH: from the checkpoint in that folder"
    options.add_argument("--resume", default="auto", metavar="auto|never|PATH", help=text)
    instead = options.add_mutually_exclusive_group()
    text = "train nothing: print parameters, updates, memory and the ds_config to take, on N GPUs of GIB each, such as "
    text += "8x80, or 2xcpu (default: this machine's devices); without --ds_config it compares the shipped ones"
    instead.add_argument("--plan", nargs="?", const="", metavar="NxGIB", help=text)
    text = "train nothing: do on all ranks what a start does before its first update, and compare what they see"
    instead.add_argument("--preflight", action="store_true", help=text)
    add_launch_options(options)
    return options


def read(arguments: argparse.Namespace) -> tuple[Recipe, str, Path]:
    """(the recipe, the ds_config, the run's folder)."""
    recipe = Recipe.load(arguments.recipe, arguments.set)
    ds_config = arguments.ds_config or DEFAULT_DS_CONFIG
    ds_config_path(ds_config)
    name = f"{Path(arguments.recipe).stem}-{recipe.method.name}-seed{recipe.seed}"
    return recipe, ds_config, arguments.output_dir or Path("runs") / name


def train() -> None:
    arguments = parser().parse_args()
    if arguments.plan is not None and arguments.ranks is not None:
        raise InputError("--ranks: --plan takes the number of devices as its value, such as 8x80: leave out --ranks")
    recipe, ds_config, folder = read(arguments)
    if not read_launch():  # the ranks of a launcher are refused together
        check_files(recipe, folder, arguments.resume)
    if arguments.plan is not None:
        from swep_ds.cost import plan

        command = ["--recipe", arguments.recipe]
        for text in arguments.set:
            command += ["--set", text]
        if arguments.output_dir:
            command += ["--output_dir", str(arguments.output_dir)]
        if is_first_on_node():
            plan.plan(recipe, plan.Devices.parse(arguments.plan), arguments.ds_config, command)
        return
    if arguments.preflight:
        with launch(arguments.ranks, "train", "--preflight"):
            from swep_ds.pipeline.run import preflight  # takes seconds: after the settings are checked

            preflight(recipe, ds_config, folder, arguments.resume)
        return
    with launch(arguments.ranks, "train"):
        from swep_ds.pipeline.run import run
        from swep_ds.ranks.stopping import request

        gc.freeze()  # what was imported stays
        gc.set_threshold(*GC_THRESHOLDS)  # garbage of a training may hold a device's memory
        request.allowed = True
        run(recipe, ds_config, folder, arguments.resume, report)


def report(folder: Path):
    from swep_ds.analysis.report import write_report  # here, where a fault in the import does not fail the run

    return write_report(folder)
