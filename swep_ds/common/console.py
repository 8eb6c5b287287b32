"""The console: all that scripts print. A reader that has gone (`| head -1`) or a full disk ends no run."""

import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from types import ModuleType

import rich.console
from rich.text import Text

from swep_ds.common.errors import printable


def say_on_stderr(text: str) -> None:
    """Prints one line on stderr, at once."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def quiet(*loggers: ModuleType) -> Iterator[None]:
    """Inside, libraries log only errors and show no progress bars: transformers, and others by their `loggers`."""
    from transformers import logging as of_transformers  # here: most users of this module do without

    logger = logging.getLogger("DeepSpeed")
    with warnings.catch_warnings(), ExitStack() as afterwards:
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        # a single rank's barrier has no device_id, and takes the device that the group's start has set
        warnings.filterwarnings("ignore", message=r"barrier\(\): using the device")
        afterwards.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        afterwards.callback(of_transformers.set_verbosity, of_transformers.get_verbosity())
        of_transformers.set_verbosity_error()
        for library in (of_transformers, *loggers):
            if library.is_progress_bar_enabled():
                afterwards.callback(library.enable_progress_bar)
                library.disable_progress_bar()
        yield


class Console(rich.console.Console):
    """Rich's console without markup. Text keeps its lines; tables fit the width."""

    def __init__(self, **options):
        super().__init__(**{"highlight": False, "markup": False} | options)

    def print(self, *objects, soft_wrap: bool | None = None, **options) -> None:
        if soft_wrap is None:
            soft_wrap = all(isinstance(value, str) for value in objects)
        super().print(*objects, soft_wrap=soft_wrap, **options)


class Progress:
    """Progress of a task: a bar on a terminal, elsewhere a line now and then, and at the end if there was one before.
    A context manager.

    Args:
        unit: what is counted, such as "batches".
        line_seconds: without a terminal, the least time between two lines; 0 = a line at each update.
        after: how many units take as long as what follows, which the ETA counts.
    """

    latest = ""  # what this process did last, for those who do not see its terminal

    def __init__(
        self, console: Console, unit: str, total: int, done: int = 0, *, line_seconds: float = 60.0, after: float = 0.0
    ):
        self._console = console
        self._unit = unit
        self._total = total
        self._before = done
        self._line_seconds = line_seconds
        self._after = after
        self._began = self._printed = time.monotonic()
        self._bar = None
        if console.is_terminal and not console.quiet:
            # imported late: it takes as long as the rest of this module
            from rich import progress
            from rich.table import Column

            self._note = Text(no_wrap=True, overflow="ellipsis")
            self._bar = progress.Progress(
                progress.TextColumn(unit, style="bold"),
                # only the bar and the note may become narrower: 70 columns show count and times in full
                progress.BarColumn(24, table_column=Column(no_wrap=False)),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TextColumn("eta {task.fields[eta]}"),
                progress.RenderableColumn(self._note, table_column=Column(no_wrap=False)),
                console=console,
            )
            self._task = self._bar.add_task("", total=total, completed=done, eta="-:--:--")

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` units are done, and a note."""
        Progress.latest = f"{done} of {self._total} {self._unit}"
        now = time.monotonic()
        eta = (now - self._began) / max(1, done - self._before) * (self._total - done + self._after)
        if self._bar:
            self._note.plain = note
            self._bar.update(self._task, completed=done, eta=timedelta(seconds=round(eta)))
            return
        is_last = done >= self._total and self._printed > self._began
        if is_last or now - self._printed >= self._line_seconds:
            self._printed = now
            parts = [f"{done:>6}/{self._total} {self._unit}", note, f"eta {eta:.0f} s"]
            self._console.print("  ".join(filter(None, parts)))


class _Descriptor(io.FileIO):
    """A file descriptor, to which a write never fails: what cannot be written is dropped."""

    def write(self, data) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


def protect() -> None:
    """Lets no print fail, nor any character that an ASCII locale lacks; and logs a warning on one line."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as in `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):  # else another program's, such as a test's
            raw = _Descriptor(descriptor, "w", closefd=False)
            raw.name = stream.name  # libraries read it
            buffer = io.BufferedWriter(raw)
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=True))
    if logging.lastResort:
        logging.lastResort.setFormatter(_OneLine())


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        prefixes = {logging.WARNING: "warning: "}
        return printable(prefixes.get(record.levelno, "") + super().format(record))
