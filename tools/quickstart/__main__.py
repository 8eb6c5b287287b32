"""Pretrains a quick-start model again: `python -m tools.quickstart FOLDER [--model t5]`.

The shipped models are in swep_ds/data/quickstart: encoder (a BERT, about 25 min on 2 cores) and t5 (about 12 min).
The defaults made both; tools/quickstart/encoder.py and t5.py describe the training.
"""

from swep_ds.commands import cli
from swep_ds.common.files import check_output_folder, user_path
from tools.quickstart import encoder, pretraining, t5

MODELS = {"encoder": encoder, "t5": t5}


def main() -> None:
    parser = cli.Parser(description=__doc__)
    parser.add_argument("folder", type=user_path, help="where to save tokenizer and model")
    parser.add_argument("--model", choices=MODELS, default="encoder", help="default: %(default)s")
    arguments = parser.parse_args()
    check_output_folder("FOLDER", arguments.folder)
    module = MODELS[arguments.model]
    pretraining.pretrain(module, module.Settings(), arguments.folder)


if __name__ == "__main__":
    cli.main(main)
