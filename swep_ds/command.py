"""What all scripts share: exit codes, and errors as one line instead of a traceback."""

import os
import sys
from collections.abc import Callable

from swep_ds.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAULT, InputError, TrainingDiverged

_reported: set[int] = set()


def main(command: Callable[[], None]) -> None:
    """Runs a script's `command` and exits: 0, or with one line, 2 for an `InputError`, 1 for a `TrainingDiverged`."""
    try:
        command()
    except (InputError, TrainingDiverged) as error:
        report(error)
        sys.exit(EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_FAULT)
    sys.exit(EXIT_DONE)


def report(error: Exception) -> None:
    """Prints an error once, on the first rank of each node: every rank of a job meets the same one."""
    if is_first_on_node() and id(error) not in _reported:
        _reported.add(id(error))
        print(f"error: {error}", file=sys.stderr, flush=True)


def is_first_on_node() -> bool:
    """From the variables of `swep_ds.distributed`, or else of the launcher."""
    env = os.environ
    in_step = "SLURM_STEP_ID" in env and "RANK" not in env
    local = env.get("SWEP_DS_LOCAL_ID", env.get("SLURM_LOCALID" if in_step else "LOCAL_RANK", "0"))
    return local == "0"
