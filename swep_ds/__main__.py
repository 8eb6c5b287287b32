"""The command `swep-ds`: `swep-ds COMMAND ...` runs the function COMMAND of `swep_ds/commands/COMMAND.py`."""

import importlib
import sys

from swep_ds.commands import cli
from swep_ds.common.errors import InputError
from swep_ds.common.version import __version__

COMMANDS = {
    "train": "train, test and export a model, as a recipe says",
    "sweep": "train every variant of a sweep with every seed",
    "table": "make one table and curves from any number of runs",
    "report": "write a run's report, one HTML page",
    "analyze": "run the paper's analyses on a run",
    "evaluate": "score a saved model on any data sets",
    "score": "score files of predictions of any program",
    "answer": "answer a question about a text",
    "serve": "serve a page to ask a model, correct it, and label",
    "forecast": "forecast the scores on text without labels",
    "soup": "average the models of finished runs",
    "trim": "cut a model's vocabulary to what texts use",
    "augment": "make SSMBA's samples from training data",
    "convert": "make training data from generated question-answer pairs",
    "submit": "submit a training or a sweep to Slurm",
    "recipes": "list recipes and sweeps, and explain their fields",
}
NOTES = """\
`swep-ds COMMAND --help` explains a command. Exit codes: 0: done. 2: bad input (one line says what and how to fix
it). Any other code: the command failed, unless its help says otherwise."""


def without_command() -> None:
    """Prints the help or the version, or raises InputError: the words begin with no command."""
    words = sys.argv[1:] or ["--help"]
    if not words[0].startswith("-"):
        from swep_ds.common.settings import suggest  # imports pydantic, which takes time

        raise InputError(f"{words[0]}: no such command{suggest(words[0], COMMANDS)}")
    lines = [f"    {name:9}  {text}" for name, text in COMMANDS.items()]
    description = "\n".join(["commands:", *lines, "", NOTES])
    parser = cli.Parser(prog="swep-ds", usage="swep-ds COMMAND ...", description=description)
    parser.add_argument("--version", action="version", version=f"swep-ds {__version__}")
    parser.parse_args(words)


def main() -> None:
    # `deepspeed --module swep_ds` puts it before the command; a rank reads the environment
    sys.argv[1:] = [word for word in sys.argv[1:] if not word.startswith("--local_rank=")]
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        cli.main(without_command)
    sys.argv[:2] = [f"swep-ds {name}"]  # what argparse calls the program
    module = importlib.import_module(f"swep_ds.commands.{name}")
    cli.main(getattr(module, name))


if __name__ == "__main__":
    main()
