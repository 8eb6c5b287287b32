"""What all scripts share: exit codes, and errors as one line instead of a traceback.

Scripts import this module first: from then on a failed print ends no run, and Ctrl-C prints one line.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from swep_ds.console import protect, warn
from swep_ds.errors import EXIT_DONE, InputError, RunExit
from swep_ds.ranks.launch import check_libraries, is_alone, keep_quiet_about_cpu, report
from swep_ds.ranks.signals import request


class Parser(argparse.ArgumentParser):
    """Shows its description as written; wrong options raise `InputError` instead of printing usage on every rank."""

    def __init__(self, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}: --help lists the options")


def main(command: Callable[[], None], *, stoppable: bool = False) -> None:
    """Runs a script's `command` and exits with 0; or, after a `RunExit`, with one line and its exit code.

    Args:
        stoppable: SIGUSR1, SIGTERM and SIGINT are requests to stop (`swep_ds.ranks.signals`); otherwise SIGINT ends the
            script with `EXIT_INTERRUPTED`.
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


def _report_interrupt(kind: type[BaseException], error: BaseException, trace) -> None:
    """Ctrl-C before `main`, while a script imports; Python then ends the process by that signal."""
    if issubclass(kind, KeyboardInterrupt):
        warn("stopped: by SIGINT")
    else:
        sys.__excepthook__(kind, error, trace)


def _ignore_interrupt(unraisable) -> None:
    """Ctrl-C in a destructor: Python drops it and would print a traceback; `request` ends the process."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


protect()
keep_quiet_about_cpu()
sys.excepthook = _report_interrupt
sys.unraisablehook = _ignore_interrupt
