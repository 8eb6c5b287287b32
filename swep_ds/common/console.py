"""The console: all that scripts print. A write that fails ends no run, and text from outside controls no terminal.

Notable:
- Python raises OSError when a pipe's reader has gone (`| head -1`) or a disk is full, in the middle of a run or in its
  last flush (exit code 120). A `Screen` drops what cannot be written.
- A name, an answer or a path may hold escape sequences that clear the screen or forge lines. A `Screen` on stdout shows
  them escaped. On stderr the progress bars of libraries need theirs; there `say_on_stderr` and logging escape ours.
- With an ASCII locale nothing raises UnicodeEncodeError: characters that the encoding lacks are shown escaped.
"""

import io
import logging
import os
import select
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# C0 and C1 except tab and line feed, line and paragraph separators, and what reverses the direction of writing
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, 0x2028, 0x2029]
_CONTROLS += [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ONE_LINE = {code: repr(chr(code))[1:-1] for code in _CONTROLS}
_LINES = {code: shown for code, shown in _ONE_LINE.items() if code not in (0x09, 0x0A)}


def escaped(text: str) -> str:
    """The text with control characters as `\\x1b` and the like; tabs and line feeds stay."""
    return text.translate(_LINES)


def on_one_line(text: str) -> str:
    """As `escaped`, with tabs and line feeds escaped too."""
    return text.translate(_ONE_LINE)


def say_on_stderr(text: str) -> None:
    """Prints one line on stderr, at once."""
    with suppress(OSError, ValueError):  # from a stream that is not a `Screen`
        print(on_one_line(text), file=sys.stderr, flush=True)


def is_no_cpu_notice(record: logging.LogRecord) -> bool:
    """A filter of DeepSpeed's logger that drops its notice that it has taken the CPU, which each process prints when it
    imports DeepSpeed. A run's own lines name its device. Other messages of DeepSpeed are shown."""
    return not str(record.msg).startswith("Setting accelerator to CPU")


@contextmanager
def quiet_about_cpu() -> Iterator[None]:
    """`is_no_cpu_notice` around an import in a process that is not this package's."""
    logger = logging.getLogger("DeepSpeed")
    # another function, so that the filter that cli.py adds for the whole process stays
    logger.addFilter(here := lambda record: is_no_cpu_notice(record))
    try:
        yield
    finally:
        logger.removeFilter(here)


class Console(rich.console.Console):
    """Rich's console with control characters escaped and no markup. Text keeps its lines; tables fit the width."""

    def __init__(self, **options):
        super().__init__(**{"highlight": False, "markup": False} | options)

    def print(self, *objects, soft_wrap: bool | None = None, **options) -> None:
        if soft_wrap is None:
            soft_wrap = all(isinstance(value, str) for value in objects)
        super().print(*objects, soft_wrap=soft_wrap, **options)

    def render_str(self, text: str, **options) -> Text:
        return super().render_str(escaped(text), **options)  # before its width is measured

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)

    @property
    def file(self) -> IO[str]:
        return _RenderedStream(super().file)

    @file.setter
    def file(self, new: IO[str]) -> None:
        rich.console.Console.file.fset(self, new)

    @property
    def encoding(self) -> str:  # rich draws the boxes that it allows
        return (getattr(self.file, "encoding", None) or "utf-8").lower()


class Progress:
    """Progress of a task: a bar on a terminal, elsewhere a line now and then, and at the end if there was one before.
    A context manager.

    Args:
        unit: what is counted, such as "batches".
        done: how many were done before.
        line_seconds: without a terminal, the least time between two lines; 0 = a line at each update.
    """

    def __init__(self, console: Console, unit: str, total: int, done: int = 0, *, line_seconds: float = 60.0):
        self._console, self._unit, self._total, self._before = console, unit, total, done
        self._line_seconds, self._began = line_seconds, time.monotonic()
        self._printed, self._bar = self._began, None
        if console.is_terminal and not console.quiet:
            # imported late: it takes as long as the rest of this module
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                RenderableColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Bar
            from rich.table import Column

            # these two alone may become narrower: 70 columns show count and times in full
            bar, note = (Column(no_wrap=False) for _ in range(2))
            columns = (TextColumn(unit, style="bold"), BarColumn(24, table_column=bar), MofNCompleteColumn())
            columns += (TimeElapsedColumn(), TextColumn("eta"), TimeRemainingColumn())
            self._note = Text(no_wrap=True, overflow="ellipsis")
            self._bar = Bar(*columns, RenderableColumn(self._note, table_column=note), console=console)
            self._task = self._bar.add_task("", total=total, completed=done)

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def stop(self) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` units are done, and a note."""
        if self._bar:
            self._note.plain = note
            self._bar.update(self._task, completed=done)
            return
        now = time.monotonic()
        if now - self._printed >= self._line_seconds or (done >= self._total and self._printed > self._began):
            self._printed = now
            eta = (now - self._began) / max(1, done - self._before) * (self._total - done)
            note = f"  {note}" if note else ""
            self._console.print(f"{done:>6}/{self._total} {self._unit}{note}  eta {eta:.0f} s")


class Rendered(str):
    """Text whose escape sequences are meant for the terminal: a `Screen` writes it unchanged."""


class _RenderedStream:
    """A stream that receives all text as `Rendered`."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(Rendered(text))

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


class Screen(io.TextIOWrapper):
    """A text stream to a file descriptor that never raises OSError.

    Args:
        descriptor: stays open when the stream is closed.
        like: the stream whose encoding and buffering to copy.
        escapes: shows control characters escaped, except in `Rendered` text.
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


class _Descriptor(io.FileIO):
    def __init__(self, descriptor: int):
        super().__init__(descriptor, "w", closefd=False)
        self.name = {1: "<stdout>", 2: "<stderr>"}.get(descriptor, descriptor)  # libraries read it

    def write(self, data) -> int:
        """Drops what cannot be written. The next write tries again, as a disk may have room by then."""
        left = memoryview(data).cast("B")
        size = len(left)
        with suppress(OSError):
            while left:
                try:
                    left = left[os.write(self.fileno(), left) :]
                except BlockingIOError:  # another process made the terminal or pipe non-blocking
                    select.select([], [self], [])
        return size


def protect() -> None:
    """Replaces stdout and stderr by `Screen`s, and has warnings logged on one line each, as "warning: ..."."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if isinstance(stream, Screen):
            continue
        if stream is None:  # closed by the caller, as in `>&-`
            _occupy(descriptor)
        elif not _writes_to(stream, descriptor):  # another program's stream, such as a test's
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
    """Opens a closed descriptor on /dev/null, else the next file that is opened would get its number."""
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        prefix = "warning: " if record.levelno == logging.WARNING else ""
        return on_one_line(prefix + super().format(record))
