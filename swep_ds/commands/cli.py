"""What all commands share: exit codes, errors as one line instead of a traceback, `--ranks`.

Scripts import this module first: from then on a failed print ends no run.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NoReturn

from swep_ds.common.console import hide_cpu_notice, protect, say_on_stderr
from swep_ds.common.errors import EXIT_DONE, EXIT_INTERRUPTED, InputError, RunExit, denied
from swep_ds.common.files import PACKAGE, shipped
from swep_ds.ranks.environment import check_libraries, is_first_on_node, read_launch, report


class Parser(argparse.ArgumentParser):
    """Shows its description as written; wrong options raise `InputError` instead of printing usage on every rank.

    Options are not abbreviated: `--gpus 8` would be `--gpus_per_node 8`, which is another number of GPUs on four nodes.
    """

    def __init__(self, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def parse_args(self, *arguments, **options):
        namespace, unknown = self.parse_known_args(*arguments, **options)
        if unknown:
            meant = unknown[0]
            named = "--recipe" in self._option_string_actions and (PACKAGE / "recipes" / f"{meant}.yaml").exists()
            hint = f"; did you mean --recipe {meant}?" if named else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return namespace

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None):
        """As argparse's, but refuses an unknown option first: argparse may name a required one that is missing."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:  # otherwise the sub-parser looks at its own words
            for word in takewhile(lambda word: word != "--", words):
                option = word.partition("=")[0]
                if re.fullmatch(r"--\S+", option) and option not in self._option_string_actions:
                    self.error(f"unrecognized arguments: {option}{self._hint(option)}")
        return super().parse_known_args(words, namespace)

    def _hint(self, option: str) -> str:
        """The end of a message about an unknown option: those that begin like it, or else the nearest one."""
        known = [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        option = option.replace("-", "_").replace("__", "--", 1)
        meant = [name for name in known if name.startswith(option)]
        meant = meant or difflib.get_close_matches(option, known, n=1, cutoff=0.75)
        if meant:
            return f"; did you mean {' or '.join(meant)}?"
        return ": --set SECTION.FIELD=VALUE sets a field of the recipe" if "--set" in known else ""

    def error(self, message: str) -> NoReturn:
        raise InputError(message if message.endswith("?") else f"{message}: --help lists the options")


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option: a whole number from `least` on."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} must be at least {least}")
        return value

    return number


def add_launch_options(options: argparse.ArgumentParser) -> None:
    """Adds `--ranks`, which `launch` serves."""
    options.add_argument(
        "--ranks",
        type=at_least(1),
        metavar="N",
        help="start N processes on this machine, each with a device (default: run in this process, alone or as a rank "
        "of the surrounding launcher)",
    )
    options.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher


def add_set_option(options: argparse.ArgumentParser, of: str) -> None:
    """Adds `--set`, which overrides a field of a recipe, or of what `of` names."""
    options.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help=f"override a field of {of}; may be repeated",
    )


def launch(ranks: int | None, name: str, *options: str) -> None:
    """Becomes DeepSpeed's launcher of scripts/NAME.py on so many ranks, with this command's options and `options`;
    returns if a single process is asked for.

    Raises InputError: a launcher has started this process already, or there are fewer devices.
    """
    if ranks is None:
        return
    if read_launch().master_addr:
        raise InputError("--ranks: a launcher has already started this process: leave out one of the two")
    if ranks > 1:
        from swep_ds.ranks.launcher import become_launcher  # imports PyTorch, for seconds

        become_launcher(ranks, shipped("scripts") / f"{name}.py", options)


def main(command: Callable[[], None]) -> None:
    """Runs a script's `command` and exits with 0; or, after a `RunExit` or Ctrl-C, with one line and its exit code."""
    code = EXIT_DONE
    try:
        check_libraries()
        command()
    except RunExit as end:
        report(end)
        code = end.exit_code
    except KeyboardInterrupt:
        if is_first_on_node():
            say_on_stderr("stopped: by SIGINT")
        code = EXIT_INTERRUPTED
    except OSError as error:
        end = denied(error)
        if end is None:
            raise
        report(end)
        code = end.exit_code
    sys.exit(code)


protect()
hide_cpu_notice()
