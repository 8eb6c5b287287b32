"""Pretrains a quick-start model again: `python scripts/pretrain_quickstart.py FOLDER [--model t5]`.

The shipped models are in swep_ds/data/quickstart: encoder (a BERT, about 25 min on 2 cores) and t5 (about 12 min).
The defaults made both; scripts/quickstart/encoder.py and t5.py describe the training.
"""

from dataclasses import replace

from quickstart import encoder, pretraining, t5
from swep_ds.commands import cli
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_output_folder, path_of

MODELS = {"encoder": encoder, "t5": t5}


def main() -> None:
    parser = cli.Parser(description=__doc__)
    parser.add_argument("folder", type=path_of("FOLDER"), help="where to save tokenizer and model")
    parser.add_argument("--model", choices=MODELS, default="encoder", help="default: %(default)s")
    parser.add_argument("--updates", type=cli.at_least(1), help="default: as many as for the shipped model")
    parser.add_argument("--seed", type=cli.at_least(0), default=0, help="default: %(default)s")
    arguments = parser.parse_args()
    check_output_folder("FOLDER", arguments.folder)
    module = MODELS[arguments.model]
    settings = module.Settings(seed=arguments.seed)
    if arguments.updates is not None:
        settings = replace(settings, updates=arguments.updates)
    if settings.updates <= settings.warmup:
        raise InputError(f"--updates {settings.updates}: the warm-up takes {settings.warmup}: give more")
    pretraining.pretrain(module, settings, arguments.folder)


if __name__ == "__main__":
    cli.main(main)
