"""Makes training data for `method.name: ssmba`: samples of every question from a masked language model.

    swep-ds augment --data train-v1.1.json --model google-bert/bert-base-uncased --output train-ssmba.json
    swep-ds train --recipe bert_base_squad --set method.name=ssmba \\
        --set data.train=train-v1.1.json --set data.augmented=train-ssmba.json --set data.eval.squad=dev-v1.1.json

SSMBA (Ng et al., EMNLP 2020): a share of the tokens of question and context is corrupted and predicted again; the
answer does not change. With --unprotect_answer its tokens are corrupted like all others, as SSMBA was published, and
samples that lose it are dropped and counted (Lee et al. 2021 have 4.92 samples a question). Runs under `deepspeed`,
`torchrun`, `srun` and plain `python`; the ranks share the questions. To resume after a stop, run the command again.
"""

from swep_ds.commands.cli import Parser, add_launch_options, add_reading_options, at_least, launch
from swep_ds.common.errors import InputError
from swep_ds.common.files import user_path


def augment() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--data", required=True, metavar="SOURCE", help="training data, as data.train names it")
    parser.add_argument("--model", required=True, help="hub id or local folder of a masked language model")
    parser.add_argument("--output", required=True, type=user_path, metavar="FILE.json", help="a new SQuAD v1.1 file")
    parser.add_argument("--samples", type=at_least(1), default=8, help="samples per question")
    parser.add_argument("--share", type=float, default=0.25, help="share of the tokens to corrupt")
    text = "corrupt the answer as well; drop samples that lose it"
    parser.add_argument("--unprotect_answer", action="store_true", help=text)
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of the samples")
    parser.add_argument("--batch_size", type=at_least(1), default=32, help="windows per rank")
    add_reading_options(parser, training=True)
    add_launch_options(parser)
    arguments = vars(parser.parse_args())
    if not 0 < arguments["share"] <= 1:
        raise InputError(f"--share {arguments['share']}: must be above 0 and at most 1")
    data, model, output = (arguments.pop(name) for name in ("data", "model", "output"))
    protect = not arguments.pop("unprotect_answer")
    reading = {name: arguments.pop(name) for name in ("repeated_answers", "misplaced_answers", "columns")}
    with launch(arguments.pop("ranks"), "augment"):
        # after the arguments: this import takes seconds
        from swep_ds.data.choices import Choices
        from swep_ds.methods.ssmba_samples.augment import AugmentSettings, augment

        choices = Choices(unanswerable="train", **reading)
        augment(data, model, output, AugmentSettings(protect_answer=protect, **arguments), choices)
