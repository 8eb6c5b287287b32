"""Compares methods and the published procedure on the same windows: time per update and peak memory.

    python scripts/bench_training.py --recipe new_wikipedia --set model.name=ENCODER --set data.train=FILE.json.gz
    python scripts/bench_training.py --methods all --updates 20 --json FILE
    torchrun --nproc_per_node 2 scripts/bench_training.py --methods mle swep:split
    python scripts/bench_training.py --profile --methods swep:split
    python scripts/bench_training.py --operations --set train.precision=bf16

`published` is the published code's three-pass update, in float32 without an engine: once on the same batches as all
others, which group windows by length, and once on random batches of the same epoch, as that code trains. The updates
are a sample of the epoch's that represents their sizes.
Prints tables; --json FILE keeps the figures. Exit codes as scripts/train.py.
"""

import argparse
import json

from swep_ds.commands.cli import Parser, add_set_option, at_least, main
from swep_ds.common.errors import InputError
from swep_ds.common.files import DEFAULT_DS_CONFIG, check_output, user_path, write_atomically
from swep_ds.methods import METHODS
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.environment import is_first_on_node

PUBLISHED = "published"
WITH_ENGINE = ("mle", "swep:split", "swep:joint")
DEFAULT = (*WITH_ENGINE, PUBLISHED)
# SSMBA's updates are MLE's, on more data: leave it out
ALL = [name for name in METHODS if name != "ssmba"]


def bench() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--recipe", default="quickstart", help="name of a shipped recipe, or a YAML file")
    add_set_option(parser, "the recipe")
    parser.add_argument("--ds_config", default=DEFAULT_DS_CONFIG, help=f"default: {DEFAULT_DS_CONFIG}")
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME[:EXECUTION]",
        help=f"methods, all of them, or {PUBLISHED}; execution is split or joint (default: split) "
        f"(default: {' '.join(DEFAULT)})",
    )
    parser.add_argument("--updates", type=at_least(2), default=30, help="measured updates per candidate (default: 30)")
    parser.add_argument("--warmup", type=at_least(0), default=3, help="warm-up updates per candidate (default: 3)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--profile", action="store_true", help="the operations or kernels that take the most time")
    what.add_argument("--operations", action="store_true", help="what an update launches, counted at each ZeRO stage")
    parser.add_argument("--json", type=user_path, help="also write the figures here")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher
    arguments = parser.parse_args()
    check_output("--json", arguments.json)
    chosen = arguments.methods or (WITH_ENGINE if arguments.profile or arguments.operations else DEFAULT)
    names = [name for word in chosen for name in (ALL if word == "all" else [word])]
    recipes = {name: recipe_of(arguments, name) for name in names}

    from swep_ds.cost import suite  # after the arguments: these imports take seconds

    if arguments.operations:
        figures = suite.operations(recipes, arguments.ds_config)
    else:
        options = {"updates": arguments.updates, "warmup": arguments.warmup}
        if arguments.profile:
            figures = suite.profiles(recipes, arguments.ds_config, **options)
        else:
            figures = suite.side_by_side(recipes, arguments.ds_config, PUBLISHED, **options)
    if arguments.json and is_first_on_node():
        write_atomically(arguments.json, json.dumps(figures, indent=2) + "\n")


def recipe_of(arguments: argparse.Namespace, name: str) -> Recipe:
    """The recipe of one candidate, with one batch for every update."""
    updates = arguments.warmup + arguments.updates
    fixed = [f"train.max_updates={updates}", "train.gradient_accumulation_steps=1", "tracking.to=off"]
    if name == PUBLISHED:
        if arguments.profile or arguments.operations:
            raise InputError(f"--methods {name}: it has no engine: leave --profile and --operations out")
        plain = ["method.name=mle", "train.precision=fp32", "train.compile=false"]
        return Recipe.load(arguments.recipe, [*arguments.set, *fixed, *plain])
    method, _, execution = name.partition(":")
    if method == "ssmba":
        raise InputError(f"--methods {name}: ssmba's update is mle's: measure mle")
    changes = [f"method.name={method}", f"train.execution={execution or 'split'}"]
    return Recipe.load(arguments.recipe, [*arguments.set, *changes, *fixed])


if __name__ == "__main__":
    main(bench)
