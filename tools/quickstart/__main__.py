"""Makes again what the quick start ships in swep_ds/data/quickstart.

    python -m tools.quickstart corpora           # writes its corpora there, in seconds
    python -m tools.quickstart encoder FOLDER    # pretrains the BERT, about 25 min on 2 cores
    python -m tools.quickstart t5 FOLDER         # pretrains the T5, about 12 min

The defaults made both models; tools/quickstart/encoder.py and t5.py describe the training.
"""

from swep_ds.commands import cli
from swep_ds.common.files import check_output_folder, user_path
from swep_ds.data.quickstart import CORPORA
from tools.quickstart import encoder, pretraining, t5
from tools.quickstart.corpora import write_corpora

MODELS = {"encoder": encoder, "t5": t5}


def main() -> None:
    parser = cli.Parser(description=__doc__)
    parts = parser.add_subparsers(required=True, dest="part", metavar="corpora|encoder|t5")
    parts.add_parser("corpora")
    for name in MODELS:
        parts.add_parser(name).add_argument("folder", type=user_path, help="where to save tokenizer and model")
    arguments = parser.parse_args()
    if arguments.part == "corpora":
        write_corpora(CORPORA)
        return
    check_output_folder("FOLDER", arguments.folder)
    module = MODELS[arguments.part]
    pretraining.pretrain(module, module.Settings(), arguments.folder)


if __name__ == "__main__":
    cli.main(main)
