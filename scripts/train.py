"""Trains, evaluates and exports a question-answering model, as a recipe says.

    deepspeed scripts/train.py --ds_config ds_configs/zero2.json                    # the embedded quick start
    deepspeed scripts/train.py --ds_config ds_configs/zero2.json --recipe bert_base_squad --set train.precision=bf16
    python scripts/train.py --recipe bert_base_squad --plan 8x80      # trains nothing: what it takes, and what fits

Starts equally under `torchrun`, `srun` and plain `python` (one process).
Exit codes: 0 done; 2 bad input or configuration (one line says what and how to mend it); anything else is a fault.
"""

import argparse
from pathlib import Path

from swep_ds.command import is_first_on_node, main
from swep_ds.recipe import Recipe


def train() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ds_config", help="DeepSpeed configuration; shipped ones are in ds_configs/")
    parser.add_argument("--recipe", default="quickstart", help="name of a shipped recipe, or a YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="may be repeated")
    parser.add_argument("--output_dir", type=Path, help="the run's folder (default: runs/RECIPE-METHOD-seedSEED)")
    parser.add_argument("--resume", default="auto", metavar="auto|never|PATH", help="default: auto")
    parser.add_argument(
        "--plan",
        nargs="?",
        const="",
        metavar="NxGIB",
        help="train nothing: print parameters, updates, memory and the ds_config to take, on N GPUs of GIB each, such "
        "as 8x80 (default: what is found here); without --ds_config all shipped ones are compared",
    )
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher
    arguments = parser.parse_args()
    recipe = Recipe.load(arguments.recipe, arguments.set)
    if arguments.plan is not None:
        from swep_ds.plan import Devices, plan

        sets = [part for override in arguments.set for part in ("--set", override)]
        shipped, command = Path(__file__).parent.parent / "ds_configs", ["--recipe", arguments.recipe, *sets]
        if is_first_on_node():
            plan(recipe, Devices.parse(arguments.plan), arguments.ds_config, shipped, command)
        return
    if arguments.ds_config is None:
        parser.error("--ds_config is required: the shipped ones are in ds_configs/, and --plan tells which to take")
    default = f"{Path(arguments.recipe).stem}-{recipe.method.name}-seed{recipe.seed}"

    from swep_ds.distributed import process_group  # settings first: these imports take seconds
    from swep_ds.run import run

    with process_group():
        run(recipe, arguments.ds_config, arguments.output_dir or Path("runs") / default, arguments.resume)


if __name__ == "__main__":
    main(train)
