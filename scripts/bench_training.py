"""Times an update of MLE, SWEP split and SWEP joint on the same batches, and measures their peak memory.

    python scripts/bench_training.py --recipe new_wikipedia --set model.name=ENCODER --set data.train=FILE.json.gz

Prints a table with ratios to MLE; --json FILE keeps it. Exit codes as scripts/train.py.
"""

import argparse
import json
from pathlib import Path

from swep_ds.command import main
from swep_ds.recipe import Recipe

CONTENDERS = (("MLE", "mle", "split"), ("SWEP split", "swep", "split"), ("SWEP joint", "swep", "joint"))


def bench() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart", help="name of a shipped recipe, or a YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="may be repeated")
    parser.add_argument("--ds_config", default="ds_configs/zero2.json")
    parser.add_argument("--updates", type=int, default=30, help="counted updates of each (default: 30)")
    parser.add_argument("--warmup", type=int, default=3, help="updates before those (default: 3)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher
    arguments = parser.parse_args()
    count = arguments.warmup + arguments.updates
    recipes = [
        Recipe.load(
            arguments.recipe,
            [*arguments.set, f"method.name={method}", f"train.execution={execution}", f"train.max_updates={count}"],
        )
        for _, method, execution in CONTENDERS
    ]

    from swep_ds import distributed  # settings first: these imports take seconds
    from swep_ds.run import prepare
    from swep_ds.training.benchmark import engine_contender, measure, report
    from swep_ds.training.engine import build_engine

    with distributed.process_group():
        contenders = []
        for (name, _, execution), recipe in zip(CONTENDERS, recipes, strict=True):
            job = prepare(recipe, arguments.ds_config)
            engine = build_engine(job.objective, job.config, recipe.train, count)
            engine.train()
            contenders.append(engine_contender(name, engine, execution))
        batches = [job.batches[number].to(distributed.device()) for number in range(len(job.batches))]
        measure(contenders, batches, arguments.warmup)
        if distributed.is_main():
            figures = report(
                contenders,
                batches,
                arguments.warmup,
                model=recipe.model.name,
                micro_batch_size=recipe.train.micro_batch_size,
                precision=recipe.train.precision,
                zero_stage=job.config["zero_optimization"]["stage"],
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main(bench)
