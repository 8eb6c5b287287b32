"""The console that prints tables, progress and lines."""

from collections.abc import Iterable
from typing import IO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from swep_ds.terminal import Rendered, escaped


class Console(rich.console.Console):
    """Rich's console, which shows control characters in what it prints escaped, and boxes as the encoding allows."""

    def render_str(self, text: str, **options) -> Text:
        return super().render_str(escaped(text), **options)  # before its width is measured

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)

    @property
    def file(self) -> IO[str]:
        return _Rendered(super().file)

    @file.setter
    def file(self, new: IO[str]) -> None:
        rich.console.Console.file.fset(self, new)

    @property
    def encoding(self) -> str:
        return (getattr(self.file, "encoding", None) or "utf-8").lower()


class _Rendered:
    """A stream to which everything is written as `Rendered`."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(Rendered(text))

    def __getattr__(self, name: str):
        return getattr(self._stream, name)
