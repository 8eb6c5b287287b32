"""What a script prints: a write that fails ends no run, and text that others wrote controls no terminal.

Notable:
- Python raises OSError where a pipe's reader has gone (`| head -1`) or a disk is full, in the middle of a run or in
  its last flush (exit code 120). A `Screen` drops what cannot be written.
- A name, an answer or a path may hold escape sequences that clear the screen or forge lines. A `Screen` on stdout shows
  them escaped. On stderr progress bars of libraries need theirs, so our own lines are escaped in `warn` and by logging.
- An ASCII locale raises no UnicodeEncodeError: what the encoding lacks is shown escaped.
"""

import io
import logging
import os
import select
import sys
from contextlib import suppress

from swep_ds.errors import RunExit
from swep_ds.ranks.launch import LaunchError, is_first_on_node

# C0 and C1 but tab and line feed, line and paragraph separators, and what reverses the direction of writing
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, 0x2028, 0x2029]
_CONTROLS += [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_NAMED = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
_ONE_LINE = {code: _NAMED.get(code, f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}") for code in _CONTROLS}
_LINES = {code: shown for code, shown in _ONE_LINE.items() if code not in (0x09, 0x0A)}


def escaped(text: str) -> str:
    """The text with control characters as `\\x1b` and the like; tabs and line feeds stay."""
    return text.translate(_LINES)


def on_one_line(text: str) -> str:
    """As `escaped`, with tabs and line feeds escaped too."""
    return text.translate(_ONE_LINE)


def warn(text: str) -> None:
    """Prints one line on stderr, at once."""
    with suppress(OSError, ValueError):  # of a stream that is no `Screen`
        print(on_one_line(text), file=sys.stderr, flush=True)


_reported: set[int] = set()


def report(end: RunExit) -> None:
    """Prints what ended a run once, on the first rank of each node: every rank of a job meets the same."""
    if (is_first_on_node() or isinstance(end, LaunchError)) and id(end) not in _reported:
        _reported.add(id(end))
        warn(f"{end.title}: {end}")


class Rendered(str):
    """Text whose escape sequences are meant for the terminal: a `Screen` writes it as it is."""


class Screen(io.TextIOWrapper):
    """A text stream to a file descriptor that never raises OSError.

    Args:
        descriptor: stays open when the stream is closed.
        like: has the encoding and the buffering to take over.
        escapes: control characters are shown escaped, except in `Rendered` text.
    """

    def __init__(self, descriptor: int, like: io.TextIOWrapper | None = None, *, escapes: bool):
        super().__init__(
            _Descriptor(descriptor),
            encoding=getattr(like, "encoding", None) or "utf-8",
            errors="backslashreplace",
            line_buffering=getattr(like, "line_buffering", True),
            write_through=getattr(like, "write_through", False),
        )
        self._escapes = escapes

    def write(self, text: str) -> int:
        if not self.closed:
            super().write(escaped(text) if self._escapes and not isinstance(text, Rendered) else text)
        return len(text)

    def flush(self) -> None:
        if not self.closed:
            super().flush()


class _Descriptor(io.RawIOBase):
    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self.name = {1: "<stdout>", 2: "<stderr>"}.get(descriptor, descriptor)  # libraries read it

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data) -> int:
        """What cannot be written is dropped, and the next write tries again: a disk may have room by then."""
        left = memoryview(data).cast("B")
        size = len(left)
        with suppress(OSError):
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # another process made the terminal or pipe non-blocking
                    select.select([], [self._descriptor], [])
        return size


def protect() -> None:
    """Puts a `Screen` in place of stdout and stderr, and has warnings logged on one line each."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if isinstance(stream, Screen):
            continue
        if stream is None:  # closed by the caller, as in `>&-`: the next file that is opened would get its number
            _occupy(descriptor)
        elif not _writes_to(stream, descriptor):  # a stream of other code, such as a test's
            continue
        else:
            with suppress(OSError, ValueError):
                stream.flush()
        setattr(sys, name, Screen(descriptor, stream, escapes=name == "stdout"))
    if sys.stdin is None:
        _occupy(0)
    if logging.lastResort:
        logging.lastResort.setFormatter(_OneLine())


def _writes_to(stream, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (AttributeError, OSError, ValueError):
        return False


def _occupy(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        empty = os.open(os.devnull, os.O_RDWR)
        if empty != descriptor:
            os.dup2(empty, descriptor)
            os.close(empty)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return on_one_line(super().format(record))
