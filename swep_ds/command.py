"""What all scripts share: exit codes, and errors as one line instead of a traceback."""

import os
import sys
from collections.abc import Callable

from swep_ds.errors import EXIT_DONE, Ended
from swep_ds.stop_signals import request

_reported: set[int] = set()


def main(command: Callable[[], None], *, stoppable: bool = False) -> None:
    """Runs a script's `command` and exits: 0, or with one line, the code of what `Ended` it.

    Args:
        stoppable: SIGUSR1 and SIGTERM are requests to stop (`swep_ds.stop_signals`), from now on.
    """
    if stoppable:
        request.catch()
    code = EXIT_DONE
    try:
        command()
    except Ended as end:
        report(end)
        code = end.exit_code
    except Exception:
        request.serve()
        raise
    request.settle(code)
    sys.exit(code)


def report(end: Ended) -> None:
    """Prints what ended a run once, on the first rank of each node: every rank of a job meets the same."""
    if is_first_on_node() and id(end) not in _reported:
        _reported.add(id(end))
        print(f"{end.title}: {end}", file=sys.stderr, flush=True)


def is_first_on_node() -> bool:
    """From the variables of `swep_ds.distributed`, or else of the launcher."""
    env = os.environ
    in_step = "SLURM_STEP_ID" in env and "RANK" not in env
    local = env.get("SWEP_DS_LOCAL_ID", env.get("SLURM_LOCALID" if in_step else "LOCAL_RANK", "0"))
    return local == "0"
