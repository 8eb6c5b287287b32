"""The text of office files: Word, PowerPoint and OpenDocument."""

import posixpath
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from zipfile import ZipFile

from lxml import etree

from swep_ds.common.errors import InputError
from swep_ds.texts.documents import END, HEADING, Document, from_parts
from swep_ds.texts.markup import START, marked, roles, xml

# Word's paragraphs, slides, charts (`cat` to `yVal`) and diagrams
OFFICE = roles(block="br p tr cat val tx xVal yVal", cell="tc", text="t v", skipped="pPr rPr tcPr trPr tblPrEx")
OPEN_DOCUMENT = roles(
    block="p list-item table-row note-body text-box",
    heading="h",
    cell="table-cell",
    skipped="tracked-changes annotation note-citation ruby-text desc forms covered-table-cell",
)
OLE = bytes.fromhex("d0cf11e0a1b11ae1")  # how the older formats begin, and what is encrypted
ROMAN = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")


def read_docx(path: Path) -> Document:
    """With numbers of lists and headings, inserted text, notes and text boxes after their paragraphs, and each header
    and footer once."""
    with _opened(path) as archive:
        [main] = _related(archive, "", "officeDocument").values()
        body = _with_linked(archive, main)
        headers, footers, styles, numbering, *notes = (
            [_with_linked(archive, part) for part in _related(archive, main, kind).values()]
            for kind in ("header", "footer", "styles", "numbering", "footnotes", "endnotes")
        )
    for kind, trees in zip(("footnote", "endnote"), notes, strict=True):
        contents = {_attribute(note, "id"): note for tree in trees for note in tree}
        for reference in list(body.iter(f"{{*}}{kind}Reference")):
            reference.extend(contents.get(_attribute(reference, "id"), ()))
        _move_out(body, f"{{*}}{kind}Reference")
    _Paragraphs(styles, numbering).mark(body)
    return _once([*headers, body, *footers], OFFICE)


def read_pptx(path: Path) -> Document:
    """A page for each slide, with its charts, diagrams and notes."""
    with _opened(path) as archive:
        [main] = _related(archive, "", "officeDocument").values()
        slides = _related(archive, main, "slide")
        pages = []
        for entry in xml(archive, main).iter("{*}sldId"):
            slide = slides[_attribute(entry, "id")]
            parts = (slide, *_related(archive, slide, "notesSlide").values())
            pages.append(END.join(marked(_with_linked(archive, part), OFFICE) for part in parts))
        return from_parts(pages, are_pages=True)


def read_odt(path: Path) -> Document:
    """With notes and text boxes after their paragraphs, and each header and footer once."""
    with _opened(path) as archive:
        if b"encryption-data" in archive.read("META-INF/manifest.xml"):
            raise InputError("is encrypted: save it without a password")
        body = next(xml(archive, "content.xml").iter("{*}body"))
        styles = xml(archive, "styles.xml")
    _move_out(body, "{*}text-box", "{*}note-body")
    return _once([*styles.iter("{*}header"), body, *styles.iter("{*}footer")], OPEN_DOCUMENT)


def _opened(path: Path) -> ZipFile:
    with path.open("rb") as file:
        if file.read(len(OLE)) == OLE:
            raise InputError(f"is encrypted, or of an older format: save it as {path.suffix} without a password")
    return ZipFile(path)


def _once(trees: Iterable[etree._Element], roles: dict[str, list[str]]) -> Document:
    """The document of trees that may repeat each other."""
    return from_parts(dict.fromkeys(marked(tree, roles) for tree in trees))


def _related(archive: ZipFile, part: str, kind: str = "") -> dict[str, str]:
    """By id, the parts to which a part refers as a kind, such as "footnotes"."""
    folder, name = posixpath.split(part)
    relations = posixpath.join(folder, "_rels", f"{name}.rels")
    parts = {}
    if relations not in archive.namelist():
        return parts
    for relation in xml(archive, relations):
        target = posixpath.normpath(posixpath.join("/", folder, relation.get("Target"))).strip("/")
        if relation.get("Type").endswith(kind and f"/{kind}") and target in archive.namelist():
            parts[relation.get("Id")] = target
    return parts


def _with_linked(archive: ZipFile, part: str) -> etree._Element:
    """The tree of a part with its charts and diagrams, without what was moved and what older programs read instead."""
    tree = xml(archive, part)
    etree.strip_elements(tree, "{*}Fallback", "{*}moveFrom", with_tail=False)
    related = _related(archive, part)
    for place in list(tree.iter("{*}chart", "{*}relIds")):
        if linked := related.get(_attribute(place, "id") or _attribute(place, "dm")):
            place.append(xml(archive, linked))
    _move_out(tree, "{*}txbxContent", "{*}chart", "{*}relIds")
    return tree


def _move_out(tree: etree._Element, *tags: str) -> None:
    """Moves such elements from inside a paragraph to behind it."""
    for element in reversed(list(tree.iter(*tags))):
        paragraph = next(element.iterancestors("{*}p", "{*}h"), None)
        if paragraph is not None:
            paragraph.addnext(element)


class _Paragraphs:
    """Which paragraphs of a Word file are headings, and their numbers."""

    def __init__(self, styles: Iterable[etree._Element], numbering: Iterable[etree._Element]):
        styles = {_attribute(style, "styleId"): style for tree in styles for style in tree.iter("{*}style")}
        self._style = cache(lambda style_id: self._properties(styles.get(style_id), "basedOn"))
        self._lists = {_attribute(each, "numId"): each for tree in numbering for each in tree.iter("{*}num")}
        kinds = [kind for tree in numbering for kind in tree.iter("{*}abstractNum")]
        self._kinds = {_attribute(kind, "abstractNumId"): kind for kind in kinds}
        self._counts = defaultdict(dict)  # by kind of list and level: the last number
        # by list that has not begun: the levels at which it counts anew
        self._restarts = {list_id: [*each.iter("{*}startOverride")] for list_id, each in self._lists.items()}

    def mark(self, tree: etree._Element) -> None:
        for properties in tree.iterfind(".//{*}p/{*}pPr"):
            paragraph = properties.getparent()
            is_heading, list_id, level = self._properties(paragraph, "pPr/{*}pStyle")
            start = ""
            if is_heading:
                start = HEADING
            if list_id in self._lists and next(paragraph.iter("{*}t"), None) is not None:
                start += self._next(list_id, int(level or 0))
            paragraph.set(START, start)

    def _properties(self, element: etree._Element | None, basis: str) -> tuple[bool, str | None, str | None]:
        """Whether a paragraph or style is a heading, its list, and its level there. `basis`: where it names a style."""
        if element is None:
            return False, None, None
        is_heading, list_id, level = self._style(_value(element, basis))
        is_heading = is_heading or int(_value(element, "pPr/{*}outlineLvl") or 9) < 9
        list_id = _value(element, "pPr/{*}numPr/{*}numId") or list_id
        return is_heading, list_id, _value(element, "pPr/{*}numPr/{*}ilvl") or level

    def _next(self, list_id: str, level: int) -> str:
        """The next number of a list, as it is shown."""
        kind = _value(self._lists[list_id], "abstractNumId")
        trees = (self._kinds[kind], self._lists[list_id])  # whose own levels count more
        levels = {int(_attribute(each, "ilvl")): each for tree in trees for each in tree.iter("{*}lvl")}
        counts = self._counts[kind]
        for start in self._restarts.pop(list_id, ()):
            counts[int(_attribute(start.getparent(), "ilvl"))] = int(_attribute(start, "val")) - 1
        if level not in levels or _value(levels[level], "numFmt") == "bullet":
            return ""
        for deeper in [other for other in counts if other > level]:
            del counts[deeper]
        starts = {other: int(_value(each, "start") or 1) for other, each in levels.items()}
        counts[level] = counts.get(level, starts[level] - 1) + 1
        shown = _value(levels[level], "lvlText") or ""
        for other, each in levels.items():
            shown = shown.replace(f"%{other + 1}", _written(counts.get(other, starts[other]), _value(each, "numFmt")))
        return f"{shown} "


def _written(number: int, style: str | None) -> str:
    """A number of a list, by the name of its style."""
    written = str(number)
    if style in ("lowerLetter", "upperLetter"):
        written = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif style in ("lowerRoman", "upperRoman") and number < 40:
        written = "x" * (number // 10) + ROMAN[number % 10]
    return written.upper() if style in ("upperLetter", "upperRoman") else written


def _attribute(element: etree._Element | None, name: str) -> str | None:
    """The value of an attribute that has a namespace."""
    if element is None:
        return None
    return next((value for key, value in element.items() if key.endswith(f"}}{name}")), None)


def _value(element: etree._Element, path: str) -> str | None:
    """That of a property, which is an element."""
    return _attribute(element.find(f"{{*}}{path}"), "val")
