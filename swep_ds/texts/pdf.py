"""The text of PDFs, by PDFium."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import pypdfium2
from pypdfium2 import raw

from swep_ds.common.errors import InputError
from swep_ds.data.places import UNSPACED
from swep_ds.texts.documents import Document

HYPHEN = "\x02"  # what PDFium puts in place of a hyphen and the line's end after it
EDGE = 3  # lines at the top of a page, and at its bottom, that may be running headers and footers
REPEATED = 3  # pages with the same one
FEW = 10  # characters of a page that, if it has a picture, may be a scan
SAMPLE = 16  # one in so many characters is asked for its Unicode value
_CUT = re.compile(rf"(?<=\w)(?:{HYPHEN}\n?|[-\u2010]\n)(\f?)(?=\w)")
_COMPOUND = re.compile(r"\w+(?:-\w+)*")
_CJK = f"[{UNSPACED}\u3001-\u303f\uff01-\uff60]"
_UNSPACED_END = re.compile(f"(?<={_CJK})\n(\f?)(?={_CJK})")
_NUMBER = re.compile(r"\d+")


def read_pdf(path: Path) -> Document:
    """Words that a line's end cuts are joined. A header or footer that pages repeat is kept once, at the top of the
    first one. Raises InputError: encrypted, or no page has text."""
    try:
        pdf = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if error.err_code == raw.FPDF_ERR_PASSWORD:
            raise InputError("is encrypted: save it without a password") from None
        raise
    pages = []
    scans = []
    unknown = asked = 0
    with pdf:
        for number in range(len(pdf)):
            page = pdf[number]
            text_page = page.get_textpage()
            text = text_page.get_text_bounded().replace("\r\n", "\n").replace("\u00ad\n", HYPHEN)
            pages.append(list(filter(None, map(str.strip, text.replace("\f", "\n").split("\n")))))
            if len(text.strip()) < FEW and any(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE])):
                scans.append(number + 1)
            sample = range(0, text_page.count_chars(), SAMPLE)
            asked += len(sample)
            unknown += sum(raw.FPDFText_HasUnicodeMapError(text_page, place) == 1 for place in sample)
            text_page.close()
            page.close()
    if not any(pages):
        raise InputError("holds no text: if its pages are pictures, recognise their text first, as ocrmypdf does")
    remarks = []
    if scans:
        remarks.append(f"pages without text, which may be scans: {', '.join(map(str, scans))}")
    if unknown > 0.05 * asked:
        remarks.append(f"characters without a Unicode value: {unknown / asked:.0%}: its text may be wrong")
    return _joined(_without_repeated(pages), remarks)


def _keys(line: str, page: int) -> Iterator[str]:
    """What the same header has on other pages, too: all of it, or all but a number that counts the pages."""
    yield line
    for number in _NUMBER.finditer(line):
        yield f"{line[: number.start()]}{int(number[0]) - page:+}{line[number.end() :]}"


def _without_repeated(pages: list[list[str]]) -> Iterator[str]:
    """The text of each page."""
    counts = Counter()
    for number, lines in enumerate(pages):
        counts.update({key for line in lines[:EDGE] + lines[EDGE:][-EDGE:] for key in _keys(line, number)})
    seen = set()
    for number, lines in enumerate(pages):
        first = []
        begin, end = 0, len(lines)
        for step in (1, -1):  # from the top, from the bottom
            for line in lines[::step][:EDGE]:
                key = next((key for key in _keys(line, number) if counts[key] >= REPEATED), None)
                if key is None or begin == end:
                    break
                if key not in seen:
                    first.append(line)
                seen.add(key)
                begin, end = (begin + 1, end) if step == 1 else (begin, end - 1)
        yield "".join(f"{line}\n" for line in first + lines[begin:end])


def _joined(pages: Iterable[str], remarks: list[str]) -> Document:
    """The pages as one text, in which words, and scripts without spaces, go on over the ends of lines and pages."""
    text = "".join(f"\f{page}" for page in pages)
    words = set(_COMPOUND.findall(text.casefold()))

    def mark(cut: re.Match) -> str:
        """What is left of a hyphen at a line's end."""
        [left] = _COMPOUND.findall(text, max(0, cut.start() - 100), cut.start())[-1:]
        right = _COMPOUND.match(text, cut.end())[0]
        is_compound = f"{left}-{right}".casefold() in words and (left + right).casefold() not in words
        return "-" + cut[1] if is_compound or right[0].isupper() or right[0].isdigit() else cut[1]

    text = _CUT.sub(mark, text).replace(HYPHEN, "-")
    text = _UNSPACED_END.sub(r"\1", text)
    _, *parts = text.split("\f")
    begins = accumulate(map(len, parts[:-1]), initial=0)
    return Document("".join(parts), pages=list(begins), remarks=remarks)
