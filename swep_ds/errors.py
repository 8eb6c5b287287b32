"""What a run may end with, and the exceptions that end it on all ranks alike."""

EXIT_DONE = 0
EXIT_FAULT = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped on request after a checkpoint; resume to go on
EXIT_LOST = 76  # another rank, or its node, died without a word; resume to go on


class Ended(Exception):
    """Raised on all ranks together. Scripts print it as one line, without a traceback, and exit with `exit_code`."""

    exit_code = EXIT_FAULT
    title = "error"


class InputError(Ended):
    """Bad input or configuration: the user can mend this. The message names the file, the field and the mend."""

    exit_code = EXIT_BAD_INPUT


class TrainingDiverged(Ended):
    """The loss is no longer a finite number."""


class WriteFailed(Ended):
    """What the run must write cannot be written: a full disk, a folder without permission or the like."""


class Stopped(Ended):
    """Stopped on request, after a checkpoint: the same command goes on from there."""

    exit_code = EXIT_STOPPED
    title = "stopped"
