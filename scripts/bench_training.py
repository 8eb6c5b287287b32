"""Times an update of several methods on the same batches, and measures their peak memory.

    python scripts/bench_training.py --recipe new_wikipedia --set model.name=ENCODER --set data.train=FILE.json.gz
    python scripts/bench_training.py --methods all --updates 20 --json FILE

Prints a table with ratios to the first method; --json FILE keeps it. Exit codes as scripts/train.py.
"""

import argparse
import itertools
import json
from pathlib import Path

from swep_ds.command import main
from swep_ds.errors import InputError
from swep_ds.methods import METHODS
from swep_ds.recipe import Recipe

DEFAULT = ("mle", "swep:split", "swep:joint")
# SSMBA's updates are MLE's, on more data
ALL = [name for name in METHODS if name != "ssmba"]


def bench() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart", help="name of a shipped recipe, or a YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="may be repeated")
    parser.add_argument("--ds_config", default="ds_configs/zero2.json")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=DEFAULT,
        metavar="NAME[:EXECUTION]",
        help=f"methods, or all; execution is split or joint (default: split) (default: {' '.join(DEFAULT)})",
    )
    parser.add_argument("--updates", type=int, default=30, help="counted updates of each (default: 30)")
    parser.add_argument("--warmup", type=int, default=3, help="updates before those (default: 3)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher
    arguments = parser.parse_args()
    if arguments.updates < 2 or arguments.warmup < 0:
        raise InputError("--updates must be at least 2, and --warmup not negative")
    count = arguments.warmup + arguments.updates
    fixed = [f"train.max_updates={count}", "train.gradient_accumulation_steps=1"]
    recipes = {}
    for name in itertools.chain.from_iterable(ALL if word == "all" else [word] for word in arguments.methods):
        method, _, execution = name.partition(":")
        if method == "ssmba":
            raise InputError(f"--methods {name}: ssmba's update is mle's: measure mle")
        choice = [*arguments.set, f"method.name={method}", f"train.execution={execution or 'split'}"]
        recipes[name] = Recipe.load(arguments.recipe, [*choice, *fixed])

    from swep_ds import distributed  # after the arguments: these imports take seconds
    from swep_ds.run import prepare
    from swep_ds.training.benchmark import contend, measure, report
    from swep_ds.training.ds_config import zero_stage
    from swep_ds.training.engine import build_engine

    with distributed.process_group():
        contenders = []
        for name, recipe in recipes.items():
            if not contenders:  # the same batches for all
                job = prepare(recipe, arguments.ds_config)
                if len(job.batches) < count or distributed.world_size() > 1:
                    raise InputError(
                        f"{len(job.batches)} batches for {count} updates on {distributed.world_size()} rank(s): the "
                        "benchmark needs one rank and a batch for each; lower --updates or raise train.epochs"
                    )
                batches = [job.batches[number].to(distributed.device()) for number in range(len(job.batches))]
                largest = max(batches, key=lambda batch: batch.input_ids.numel())

            def make(recipe=recipe):
                own = prepare(recipe, arguments.ds_config)
                return build_engine(own.objective, own.config, recipe.train, count)

            contenders.append(contend(name, make, recipe.train.execution, largest))
        measure(contenders, batches, arguments.warmup)
        if distributed.is_main():
            figures = report(
                contenders,
                batches,
                arguments.warmup,
                model=recipe.model.name,
                micro_batch_size=recipe.train.micro_batch_size,
                precision=recipe.train.precision,
                zero_stage=zero_stage(job.config),
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main(bench)
