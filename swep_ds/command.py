"""What all scripts share: exit codes, and errors as one line instead of a traceback."""

import os
import sys
from collections.abc import Callable

from swep_ds.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAULT, InputError, TrainingDiverged


def main(command: Callable[[], None]) -> None:
    """Runs a script's `command` and exits: 0, or with one line, 2 for an `InputError`, 1 for a `TrainingDiverged`.

    Every rank of a job meets the same error; the first rank of each node prints it.
    """
    try:
        command()
    except (InputError, TrainingDiverged) as error:
        if os.environ.get("LOCAL_ID", os.environ.get("LOCAL_RANK", "0")) == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_FAULT)
    sys.exit(EXIT_DONE)
