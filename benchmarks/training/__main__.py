"""Compares methods, ways to train them and the published procedure on the same windows: time of an update and memory.

    python -m benchmarks.training --recipe new_wikipedia --set model.name=ENCODER --set data.train=FILE.json.gz
    python -m benchmarks.training --methods all --updates 20 --json FILE
    python -m benchmarks.training --methods mle swep:split --ways plain plain+compile zero1 zero1+graphs+compile
    torchrun --nproc_per_node 2 -m benchmarks.training --methods mle swep:split
    python -m benchmarks.training --profile --methods swep:split
    python -m benchmarks.training --operations --set train.precision=bf16

A way is `plain`, a loop of plain PyTorch; `trainer`, Hugging Face's Trainer, for mle; or a ds_config for the engine.
Behind it, `+compile` compiles the model, and `+graphs` trains by CUDA graphs, at ZeRO-1 on a GPU; a way without them
does neither.
`published` is the published code's three-pass update, in float32 without an engine: once on the same batches as all
others, which group windows by length, and once on random batches of the same epoch, as that code trains. The updates
are a sample of the epoch's that represents their sizes.
Prints tables; --json FILE keeps the figures. Exit codes as scripts/train.py.
"""

import argparse
import json

from benchmarks.training.ways import PUBLISHED, read_ways
from swep_ds.commands.cli import Parser, add_set_option, at_least, main
from swep_ds.common.errors import InputError
from swep_ds.common.files import DEFAULT_DS_CONFIG, check_output, user_path, write_atomically
from swep_ds.ranks.environment import is_first_on_node

WITH_ENGINE = ("mle", "swep:split", "swep:joint")
DEFAULT = (*WITH_ENGINE, PUBLISHED)


def bench() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--recipe", default="quickstart", help="name of a shipped recipe, or a YAML file")
    add_set_option(parser, "the recipe")
    parser.add_argument("--ds_config", help=f"default: {DEFAULT_DS_CONFIG}")
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME[:EXECUTION]",
        help=f"methods, all of them, or {PUBLISHED}; execution is split or joint (default: split) "
        f"(default: {' '.join(DEFAULT)})",
    )
    parser.add_argument("--ways", nargs="+", metavar="WAY", default=[], help="see above (default: --ds_config)")
    parser.add_argument("--updates", type=at_least(2), default=30, help="measured updates per candidate (default: 30)")
    parser.add_argument("--warmup", type=at_least(0), default=3, help="warm-up updates per candidate (default: 3)")
    parser.add_argument(
        "--peak_tflops", type=float, help="the device's, of its data sheet: prints which share of it is reached"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--profile", action="store_true", help="the operations or kernels that take the most time")
    what.add_argument("--operations", action="store_true", help="what an update launches, counted at each ZeRO stage")
    parser.add_argument("--json", type=user_path, help="also write the figures here")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher
    arguments = parser.parse_args()
    check_output("--json", arguments.json)
    methods = arguments.methods or (WITH_ENGINE if arguments.profile or arguments.operations else DEFAULT)
    if arguments.operations and (arguments.ways or arguments.ds_config or PUBLISHED in methods):
        raise InputError(
            f"--operations counts at each ZeRO stage and in plain PyTorch: leave out --ds_config, --ways, {PUBLISHED}"
        )
    if arguments.peak_tflops is not None and not arguments.peak_tflops > 0:
        raise InputError(f"--peak_tflops {arguments.peak_tflops}: give a number above 0")
    updates = arguments.warmup + arguments.updates
    # one batch for every update
    fixed = [f"train.max_updates={updates}", "train.gradient_accumulation_steps=1", "tracking.to=off"]
    ds_config = arguments.ds_config or DEFAULT_DS_CONFIG
    chosen = read_ways(arguments.recipe, [*arguments.set, *fixed], methods, arguments.ways, ds_config)

    from benchmarks.training import suite  # after the arguments: these imports take seconds

    options = {"updates": arguments.updates, "warmup": arguments.warmup}
    if arguments.operations:
        figures = suite.operations(chosen)
    elif arguments.profile:
        figures = suite.profiles(chosen, **options)
    else:
        figures = suite.side_by_side(chosen, **options, peak_flops=1e12 * (arguments.peak_tflops or 0))
    if arguments.json and is_first_on_node():
        write_atomically(arguments.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main(bench)
