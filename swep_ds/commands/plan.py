"""Prints what a training would take, and trains nothing: parameters, updates, memory, and the ds_config to take.

    swep-ds plan --recipe bert_base_squad 8x80     # on 8 GPUs of 80 GiB each
    swep-ds plan --set train.micro_batch_size=16   # on this machine's devices

Without --ds_config all shipped ones are compared but the one that offloads to disk.
"""

from swep_ds.commands.cli import Parser
from swep_ds.commands.train import add_run_options, start


def plan() -> None:
    parser = Parser(description=__doc__)
    text = "N GPUs of GIB each (default: this machine's devices)"
    parser.add_argument("plan", nargs="?", default="", metavar="NxGIB", help=text)
    add_run_options(parser)
    parser.set_defaults(resume="auto")
    start(parser.parse_args())
