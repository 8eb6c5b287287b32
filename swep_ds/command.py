"""What all scripts share: exit codes, and errors as one line instead of a traceback."""

import os
import sys
from collections.abc import Callable

from swep_ds.errors import EXIT_BAD_INPUT, EXIT_DONE, InputError


def main(command: Callable[[], None]) -> None:
    """Runs a script's `command` and exits: 0, or 2 with the message of an `InputError`.

    Every rank of a job meets the same error; the first rank of each node prints it.
    """
    try:
        command()
    except InputError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(EXIT_BAD_INPUT)
    sys.exit(EXIT_DONE)
