"""What all commands share: exit codes, errors as one line instead of a traceback, `--ranks`.

A program imports this module first: from then on a failed print ends no run.
"""

import argparse
import atexit
import difflib
import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import NoReturn

from swep_ds.common.console import protect, say_on_stderr
from swep_ds.common.errors import EXIT_DONE, EXIT_INTERRUPTED, InputError, RunExit, denied
from swep_ds.data.columns import Columns, check_columns
from swep_ds.ranks.environment import is_first_on_node, read_launch, report

GC_THRESHOLDS = gc.get_threshold()  # Python's own


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows the description as written, and the default of every option whose help does not name it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = action.default in (None, False, argparse.SUPPRESS) or action.default == []
        return action.help if silent or "default: " in action.help else f"{action.help} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """Wrong options raise `InputError` instead of printing usage on every rank.

    Options are not abbreviated: `--gpus 8` would be `--gpus_per_node 8`, which is another number of GPUs on four nodes.
    """

    def __init__(self, **options):
        super().__init__(formatter_class=_Help, allow_abbrev=False, **options)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None):
        """As argparse's, but refuses an unknown option first: argparse may name a required one that is missing."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:  # otherwise the sub-parser looks at its own words
            for word in takewhile(lambda word: word != "--", words):
                option = word.partition("=")[0]
                if option.startswith("--") and " " not in option and option not in self._option_string_actions:
                    known = [*self._option_string_actions]
                    meant = [name for name in known if name.startswith(option)]
                    meant = meant or difflib.get_close_matches(option, known, n=1, cutoff=0.75)
                    if meant:
                        raise InputError(f"unrecognized arguments: {option}; did you mean {' or '.join(meant)}?")
                    about_set = ": --set SECTION.FIELD=VALUE sets a field of the recipe" if "--set" in known else ""
                    self.error(f"unrecognized arguments: {option}{about_set}")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}: --help lists the options")


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option: a whole number from `least` on."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} must be at least {least}")
        return value

    return number


def add_launch_options(options: argparse.ArgumentParser) -> None:
    text = "start N processes on this machine, each with a device (default: run in this process, as a rank if a "
    text += "launcher started it)"
    options.add_argument("--ranks", type=at_least(1), metavar="N", help=text)


def add_reading_options(options: argparse.ArgumentParser, *, training: bool) -> None:
    """How data sources are read: `data.Choices` in parts."""
    text = "the names of the files' columns, as in question=Frage,context=Text; id= takes each question's place as its "
    text += "id; as data.columns of a recipe"
    options.add_argument("--columns", type=columns_of, default=(), metavar="COLUMN=NAME,...", help=text)
    if training:
        text = "as data.repeated_answers of the recipe that trains on the samples"
        options.add_argument("--repeated_answers", choices=("error", "first", "drop"), default="error", help=text)
        text = "as data.misplaced_answers of that recipe"
        options.add_argument("--misplaced_answers", choices=("error", "find", "drop"), default="error", help=text)


def columns_of(text: str) -> Columns:
    """The type of an option: pairs of a column and its name."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(sign for _, sign, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: write it as COLUMN=NAME,COLUMN=NAME")
    columns = tuple((column.strip(), name.strip() or None) for column, _, name in pairs)
    try:
        check_columns(dict(columns))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return columns


def add_set_option(options: argparse.ArgumentParser, of: str) -> None:
    text = f"override a field of {of}; may be repeated"
    options.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help=text)


def launch(ranks: int | None, name: str, *options: str) -> AbstractContextManager:
    """The process group to work in; or becomes DeepSpeed's launcher of the command `name` on so many ranks, with the
    options of this process and `options`.

    Raises InputError: a launcher has started this process already, or there are fewer devices.
    """
    if ranks is not None and read_launch():
        raise InputError("--ranks: a launcher has already started this process: leave out one of the two")
    if ranks is not None and ranks > 1:
        from swep_ds.ranks.launcher import become_launcher  # imports PyTorch, for seconds

        become_launcher(ranks, name, options)
    from swep_ds.ranks.group import process_group

    return process_group()


def main(command: Callable[[], None]) -> None:
    """Runs `command` and exits with 0; or, after a `RunExit` or Ctrl-C, with one line and its exit code."""
    # the import of PyTorch makes a million objects, none of them garbage: to look through them took a third of its time
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    try:
        command()
    except KeyboardInterrupt:
        if is_first_on_node():
            say_on_stderr("stopped: by SIGINT")
        sys.exit(EXIT_INTERRUPTED)
    except (RunExit, OSError) as error:
        end = error if isinstance(error, RunExit) else denied(error)
        if end is None:
            raise
        report(end)
        sys.exit(end.exit_code)
    sys.exit(EXIT_DONE)


protect()
