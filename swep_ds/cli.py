"""What all scripts share: exit codes, and errors as one line instead of a traceback.

Scripts import this first: from then on what is printed fails no run, and Ctrl-C is one line.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from swep_ds.errors import EXIT_DONE, InputError, RunExit
from swep_ds.ranks.launch import check_libraries, is_alone
from swep_ds.ranks.signals import request
from swep_ds.terminal import protect, report, warn


class Parser(argparse.ArgumentParser):
    """Shows the description as it is written; wrong options are an `InputError`, not a page of usage from each rank."""

    def __init__(self, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}: --help lists the options")


def main(command: Callable[[], None], *, stoppable: bool = False) -> None:
    """Runs a script's `command` and exits: 0, or with one line, the code of what `RunExit` it.

    Args:
        stoppable: SIGUSR1, SIGTERM and SIGINT are requests to stop (`swep_ds.ranks.signals`), from now on; otherwise
            SIGINT ends the script with `EXIT_INTERRUPTED`.
    """
    request.catch(stoppable=stoppable, alone=is_alone())
    code = EXIT_DONE
    try:
        check_libraries()
        command()
    except RunExit as end:
        report(end)
        code = end.exit_code
    except KeyboardInterrupt:
        request.end_by(signal.SIGINT)
    except Exception:
        request.serve()
        raise
    request.settle(code)
    sys.exit(code)


def _say_interrupted(kind: type[BaseException], error: BaseException, trace) -> None:
    """Of Ctrl-C before `main`, while a script imports; Python then ends the process by that signal."""
    if issubclass(kind, KeyboardInterrupt):
        warn("stopped: by SIGINT")
    else:
        sys.__excepthook__(kind, error, trace)


def _ignore_interrupt(unraisable) -> None:
    """Of Ctrl-C in a destructor, where Python drops it and prints a traceback; `request` ends the process."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


protect()
sys.excepthook = _say_interrupted
sys.unraisablehook = _ignore_interrupt
