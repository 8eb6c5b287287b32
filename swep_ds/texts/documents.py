"""Documents: what a file of any kind says, with its pages and headings."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from swep_ds.common.errors import InputError, as_input_error, at
from swep_ds.common.files import read_text

PLAIN = (".txt", ".md")  # suffixes of files whose text needs no library
# by suffix the module whose function `read_` + suffix reads such files
READERS = {".pdf": "pdf", ".docx": "office", ".pptx": "office", ".odt": "office", ".epub": "markup"}
READERS |= dict.fromkeys((".html", ".htm", ".xhtml"), "markup")
SUFFIXES = (*PLAIN, *READERS)
END, CELL, HEADING = "\ufdd0", "\ufdd1", "\ufdd2"  # marks in a text: no characters, which no file holds
_MD_HEADING = re.compile(r"^#{1,6} +(.*?)[ #]*$", re.MULTILINE)


class Document(NamedTuple):
    text: str
    pages: Sequence[int] = ()  # where each page or slide begins, in characters of text
    headings: Sequence[tuple[int, str]] = ()  # where each begins, and what it says
    remarks: Sequence[str] = ()  # what its reader should know, such as pages that may be scans

    def page(self, place: int) -> int | None:
        """The page of a character, counted from 1; None without pages."""
        return bisect_right(self.pages, place) or None

    def heading(self, place: int) -> str | None:
        """The last heading that begins at a character or before it."""
        count = bisect_right(self.headings, place, key=lambda heading: heading[0])
        return self.headings[count - 1][1] if count else None


def from_parts(parts: Iterable[str], *, are_pages: bool = False) -> Document:
    """The document of texts with marks: END at the end of lines, CELL between cells, HEADING before the text of one.
    White space is folded, blank lines and soft hyphens are left out. Raises InputError: nothing is left."""
    lines = []
    pages, headings = [], []
    length = 0
    for part in parts:
        if are_pages:
            pages.append(length)
        for line in " ".join(part.replace("\u00ad", "").split()).split(END):
            shown = line.strip()
            if HEADING in line:
                shown = " ".join(line.replace(HEADING, "").split())
            if CELL in shown:
                shown = "\t".join(filter(None, map(str.strip, shown.split(CELL))))
            if shown and HEADING in line:
                headings.append((length, shown))
            if shown:
                lines.append(f"{shown}\n")
                length += len(shown) + 1
    if not lines:
        raise InputError("holds no text")
    return Document("".join(lines), tuple(pages), headings)


def read_document(path: Path) -> Document:
    """Reads a file by its suffix, one of `SUFFIXES`. Raises InputError: it cannot be read, is encrypted or damaged, or
    holds no text; or the extra `documents` is missing."""
    suffix = path.suffix.lower()
    if suffix in PLAIN:
        with as_input_error(f"{path}: cannot be read", "change its permissions"):
            text = read_text(path)
        headings = []
        if suffix == ".md":
            headings = [(title.start(), title[1]) for title in _MD_HEADING.finditer(text)]
        return Document(text, headings=headings)
    try:
        module = import_module(f"swep_ds.texts.{READERS[suffix]}")
    except ImportError:
        raise InputError(f"{path}: needs pip install '.[documents]' in a checkout") from None
    with at(str(path)), as_input_error("cannot be read", "save it anew, or change its permissions"):
        return getattr(module, f"read_{suffix[1:]}")(path)
