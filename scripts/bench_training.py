"""Times updates of several methods and of the published procedure on the same windows, with their peak memory, and
takes the time of the training loop apart.

    python scripts/bench_training.py --recipe new_wikipedia --set model.name=ENCODER --set data.train=FILE.json.gz
    python scripts/bench_training.py --methods all --updates 20 --json FILE
    torchrun --nproc_per_node 2 scripts/bench_training.py --loop
    python scripts/bench_training.py --scaling --json FILE
    python scripts/bench_training.py --profile --methods swep:split

`published` is the published code's three-pass update, in float32 without an engine: once on the batches of all
others, which hold windows of like length, and once on random batches of the same epoch, as that code trains. Updates
are a sample of the epoch's, of every size as often as it comes there.
Prints tables; --json FILE keeps them. Exit codes as scripts/train.py.
"""

import argparse
import json

from swep_ds.cli import Parser, main
from swep_ds.errors import InputError
from swep_ds.files import check_output, path_of, write_atomically
from swep_ds.methods import METHODS
from swep_ds.recipe import Recipe

PUBLISHED = "published"
LOOPS = ("mle", "swep:split", "swep:joint")
DEFAULT = (*LOOPS, PUBLISHED)
# SSMBA's updates are MLE's, on more data
ALL = [name for name in METHODS if name != "ssmba"]


def bench() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--recipe", default="quickstart", help="name of a shipped recipe, or a YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="may be repeated")
    parser.add_argument("--ds_config", default="ds_configs/zero2.json")
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME[:EXECUTION]",
        help=f"methods, all of them, or {PUBLISHED}; execution is split or joint (default: split) "
        f"(default: {' '.join(DEFAULT)})",
    )
    parser.add_argument("--updates", type=int, default=30, help="counted updates of each (default: 30)")
    parser.add_argument("--warmup", type=int, default=3, help="updates before those (default: 3)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--loop", action="store_true", help="the training loop alone, on any number of ranks")
    what.add_argument("--scaling", action="store_true", help="that on 1 and 2 ranks, and a model of more")
    what.add_argument("--profile", action="store_true", help="the operations or kernels that take the most time")
    parser.add_argument("--json", type=path_of("--json"), help="also write the figures here")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher
    arguments = parser.parse_args()
    check_output("--json", arguments.json)
    if arguments.updates < 2 or arguments.warmup < 0:
        raise InputError("--updates must be at least 2, and --warmup not negative")
    if arguments.scaling and arguments.methods:
        raise InputError("--scaling compares mle, swep:split and swep:joint: leave --methods out")
    chosen = arguments.methods or (LOOPS if arguments.loop or arguments.scaling or arguments.profile else DEFAULT)
    names = [name for word in chosen for name in (ALL if word == "all" else [word])]
    recipes = {name: recipe_of(arguments, name) for name in names}
    if arguments.scaling and recipes["mle"].train.precision == "autocast":
        raise InputError(
            "--scaling: with train.precision autocast some gradients travel in bf16 and some in float32, which the "
            "model of more ranks does not know: take fp32 or bf16"
        )

    from swep_ds.benchmarks import suite as benchmarks  # after the arguments: these imports take seconds

    options = {"updates": arguments.updates, "warmup": arguments.warmup}
    if arguments.scaling:
        sets = [word for one in arguments.set for word in ("--set", one)]
        numbers = [word for name, number in options.items() for word in (f"--{name}", str(number))]
        named = ["--recipe", arguments.recipe, "--ds_config", arguments.ds_config]
        found = benchmarks.rank_by_rank([__file__, "--loop", *named, *sets, *numbers])
    elif arguments.profile:
        found = benchmarks.profiles(recipes, arguments.ds_config, **options)
    elif arguments.loop:
        found = benchmarks.loops(recipes, arguments.ds_config, **options)
    else:
        found = benchmarks.side_by_side(recipes, arguments.ds_config, PUBLISHED, **options)
    if arguments.json and found:
        write_atomically(arguments.json, json.dumps(found, indent=2) + "\n")


def recipe_of(arguments: argparse.Namespace, name: str) -> Recipe:
    """With one batch for every update there may be."""
    count = arguments.warmup + arguments.updates
    fixed = [f"train.max_updates={count}", "train.gradient_accumulation_steps=1", "tracking.wandb=off"]
    if name == PUBLISHED:
        if arguments.loop or arguments.profile:
            raise InputError(f"--methods {name}: it has no engine: leave --loop and --profile out")
        plain = ["method.name=mle", "train.precision=fp32", "train.packing=false", "train.compile=false"]
        return Recipe.load(arguments.recipe, [*arguments.set, *fixed, *plain])
    method, _, execution = name.partition(":")
    if method == "ssmba":
        raise InputError(f"--methods {name}: ssmba's update is mle's: measure mle")
    own = [f"method.name={method}", f"train.execution={execution or 'split'}"]
    return Recipe.load(arguments.recipe, [*arguments.set, *own, *fixed])


if __name__ == "__main__":
    main(bench)
