"""Calibrates the confidences of a finished run, as a run does at its end, without training it again.

    swep-ds calibrate runs/swep-seed0
    swep-ds evaluate runs/swep-seed0/model --data news=quickstart:news --output_dir scores

The calibrator is fitted to the half of the source domain that the run scored its checkpoints on (eval.select_on), or
chose on when to decline a question. It goes into model/reading.json, from where `evaluate` and `answer` take it.
Nothing else of the run changes.
Runs under `deepspeed`, `torchrun`, `srun` and plain `python`; the questions are spread over the ranks.
"""

from swep_ds.commands.cli import Parser, add_launch_options, at_least, launch
from swep_ds.common.files import path_of


def calibrate() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("run", type=path_of("RUN"), metavar="RUN", help="folder of a finished run")
    parser.add_argument("--batch_size", type=at_least(1), default=32, help="windows per rank")
    add_launch_options(parser)
    arguments = parser.parse_args()
    with launch(arguments.ranks, "calibrate"):
        from swep_ds.pipeline.saved import calibrate_run  # after the arguments: this import takes seconds

        calibrate_run(arguments.run, arguments.batch_size)
