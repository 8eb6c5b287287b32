"""What a run may end with, and the one exception that means "the user can mend this"."""

EXIT_DONE = 0
EXIT_FAULT = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped on request after a checkpoint; resume to go on


class InputError(Exception):
    """Bad input or configuration. The message is one line that names the file, the field and the mend.

    Scripts print it without a traceback and exit with `EXIT_BAD_INPUT`.
    """


class TrainingDiverged(Exception):
    """The loss is no longer a finite number. Raised on all ranks together; scripts exit with `EXIT_FAULT`."""
