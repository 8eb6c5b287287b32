"""What a run may end with, and the exceptions that end it on all ranks alike."""

from collections.abc import Iterator
from contextlib import contextmanager

EXIT_DONE = 0
EXIT_FAULT = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped on request after a checkpoint; resume to go on
EXIT_LOST = 76  # another rank, or its node, died without a word; resume to go on
EXIT_INTERRUPTED = 130  # by SIGINT, where there is nothing to resume; as of a shell


class RunExit(Exception):
    """Raised on all ranks together. Scripts print it as one line, without a traceback, and exit with `exit_code`."""

    exit_code = EXIT_FAULT
    title = "error"


class InputError(RunExit):
    """Bad input or configuration: the user can fix this. The message names the file, the field and the fix."""

    exit_code = EXIT_BAD_INPUT


class TrainingDiverged(RunExit):
    """The loss is no longer a finite number."""


class WriteFailed(RunExit):
    """What the run must write cannot be written: a full disk, a folder without permission or the like."""


class Stopped(RunExit):
    """Stopped on request, after a checkpoint: the same command resumes from there."""

    exit_code = EXIT_STOPPED
    title = "stopped"


# PyTorch raises RuntimeError where a device's memory is full or a rank is gone
NOT_OF_THE_INPUT = (RuntimeError, MemoryError)


@contextmanager
def parsing(what: str, fix: str, *, but: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Around a library that parses what a user gave: whatever it raises becomes an `InputError`.

    transformers, tokenizers, pyarrow, datasets and DeepSpeed raise any exception on malformed input, from
    AttributeError to RecursionError, and other versions raise others. Keep the block as small as the library's call:
    a fault of this package inside it would be blamed on the input.

    Args:
        what: the file and field, as in "model.name ./bert: its config.json cannot be parsed".
        fix: what the user can do, in the imperative.
        but: exceptions that are no fault of the input, such as of a full memory, and pass.

    Raises:
        InputError: "<what> (<reason>): <fix>".
    """
    try:
        yield
    except (RunExit, *but):
        raise
    except BaseException as error:
        # a panic of a library in Rust, such as tokenizers, is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what} ({reason(error)}): {fix}") from error


def reason(error: BaseException, limit: int = 300) -> str:
    """What an exception says, on one line of at most `limit` characters; its class where the text alone says little."""
    text = printable(" ".join(str(error).split()))
    if not isinstance(error, OSError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def printable(text: str) -> str:
    """`text` on one line: line breaks, control characters and the like are escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
