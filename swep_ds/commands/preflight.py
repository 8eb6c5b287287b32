"""Checks, before a long training, that all ranks see the same, and trains nothing.

    swep-ds preflight --ranks 8 --recipe bert_base_squad --output_dir runs/bert
    srun swep-ds preflight --recipe bert_base_squad --output_dir runs/bert

Compares devices, versions, files and the output folder, times collectives, and checks what a start would refuse.
Exit codes: 0: all ranks see the same. 2: they do not, or bad input (one line says what and how to fix it).
"""

from swep_ds.commands.cli import Parser, add_launch_options
from swep_ds.commands.train import add_run_options, start


def preflight() -> None:
    parser = Parser(description=__doc__)
    add_run_options(parser)
    add_launch_options(parser)
    parser.set_defaults(plan=None, preflight=True)
    start(parser.parse_args())
