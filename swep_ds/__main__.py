"""The command `swep-ds`: `swep-ds COMMAND ...` runs the function COMMAND of `swep_ds/commands/COMMAND.py`."""

import argparse
import importlib
import os
import shlex
import sys
from typing import NoReturn

from swep_ds.commands import cli
from swep_ds.common.errors import InputError
from swep_ds.common.version import __version__

COMMANDS = {
    "train": "train, test and export a model, as a recipe says",
    "plan": "estimate what a training needs, and name the ds_config to use",
    "preflight": "before a long training, check that all ranks see the same files and versions",
    "sweep": "train every variant of a sweep with every seed",
    "table": "make one table and curves from any number of runs",
    "report": "write a run's report, one HTML page",
    "analyze": "run the paper's analyses on a run",
    "evaluate": "score a saved model on any data sets",
    "calibrate": "calibrate the confidences of a finished run",
    "answer": "answer a question about a text",
    "soup": "average the models of finished runs",
    "augment": "make SSMBA's samples from training data",
    "convert": "make training data from generated question-answer pairs",
    "submit": "submit a training or a sweep to Slurm",
    "recipes": "list recipes and sweeps, and explain their fields",
}


def parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = [f"    {name:{width}}  {text}" for name, text in COMMANDS.items()]
    options = cli.Parser(
        prog="swep-ds",
        usage="swep-ds COMMAND ...",
        description="\n".join(["commands:", *lines, "", "`swep-ds COMMAND --help` explains a command."]),
    )
    options.add_argument("--version", action="version", version=f"swep-ds {__version__}")
    options.add_argument("command", nargs="?", help=argparse.SUPPRESS).completer = lambda **_: COMMANDS
    return options


def without_command(words: list[str]) -> None:
    """Prints the help or the version, or raises InputError: `words` begin with no command."""
    options = parser()
    if words and words[0] not in options._option_string_actions and "_ARGCOMPLETE" not in os.environ:
        _refuse(words)
    options.parse_args()
    options.print_help()


def _refuse(words: list[str]) -> NoReturn:
    if words[0].startswith("-"):
        place = max((place for place, word in enumerate(words) if word in COMMANDS), default=None)
        command = "train" if place is None else words.pop(place)
        raise InputError(f"options follow a command: swep-ds {command} {shlex.join(words)}")
    from swep_ds.common.settings import suggest  # reads YAML, which takes time to import

    raise InputError(f"{words[0]}: no such command{suggest(words[0], COMMANDS)}")


def main() -> None:
    words = sys.argv
    if "_ARGCOMPLETE" in os.environ:  # argcomplete: the words so far, up to the cursor, are in a variable
        words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split(" ")[:-1]
    if len(words) > 1 and words[1] in COMMANDS:
        name = words[1]
        os.environ |= {"_ARGCOMPLETE": "2"} if "_ARGCOMPLETE" in os.environ else {}  # the program is two words
        sys.argv[:2] = [f"swep-ds {name}"]  # what argparse calls the program
        module = importlib.import_module(f"swep_ds.commands.{name}")
        cli.main(getattr(module, name))
    cli.main(lambda: without_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
