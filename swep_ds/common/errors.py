"""Exit codes, and the exceptions that end a run on every rank."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EXIT_DONE = 0
EXIT_FAULT = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped on request after a checkpoint; the same command resumes
EXIT_LOST = 76  # another rank or its node died; the same command resumes
EXIT_INTERRUPTED = 130  # by SIGINT outside the training loop; the code that a shell gives


class RunExit(Exception):
    """Raised on all ranks together. Scripts print it as one line, without a traceback, and exit with `exit_code`."""

    exit_code = EXIT_FAULT
    title = "error"
    reported = False  # whether this process has printed it


class InputError(RunExit):
    """Bad input or configuration that the user can fix. The message names the file, the field and the fix."""

    exit_code = EXIT_BAD_INPUT


class TrainingDiverged(RunExit):
    """The loss is no longer a finite number."""


class WriteFailed(RunExit):
    """A file of the run cannot be written: a full disk, a folder without permission or the like."""


class Stopped(RunExit):
    """Stopped on request, after a checkpoint: the same command resumes from there."""

    exit_code = EXIT_STOPPED
    title = "stopped"


@contextmanager
def at(place: str) -> Iterator[None]:
    """Puts the place in front of the message of an InputError, which says only what is wrong."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


@contextmanager
def as_input_error(what: str, fix: str, *, but: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Turns whatever a library raises while it parses a user's input into `InputError("<what> (<reason>): <fix>")`.

    Keep the block as small as the library's call: a bug of this package inside it would be blamed on the input.
    Exceptions in `but`, which the input does not cause, pass, except NotImplementedError, which is a RuntimeError.
    """
    try:
        yield
    except RunExit:
        raise
    except Exception as error:
        if isinstance(error, but) and not isinstance(error, NotImplementedError):
            raise
        raise InputError(f"{what} ({reason(error)}): {fix}") from error


def reason(error: BaseException) -> str:
    """An exception's message on one line of at most 300 characters, with its class if its text is unclear."""
    text = printable(" ".join(str(error).split()))
    if not isinstance(error, OSError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return _shortened(text, 300)


def denied(error: OSError) -> RunExit | None:
    """What the system refuses, as one line; None if the error names no file, as that of a socket."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WriteFailed(f"{error.filename or 'a file'} cannot be written: {error.strerror}: make room")
    if error.filename is None:
        return None
    said = f"{error.filename}: {error.strerror}"
    if isinstance(error, PermissionError):
        said += ": change its permissions, or its folder's"
    return InputError(said)


def excerpt(value: Any) -> str:
    """A value for a message, on one line of at most 100 characters."""
    return _shortened(printable(repr(value)), 100)


def _shortened(text: str, most: int) -> str:
    if len(text) > most:
        return f"{text[: most - 3]}..."
    return text


def printable(text: str) -> str:
    """`text` on one line: line breaks and control characters are escaped as in Python."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
