"""The text of marked-up files: HTML and EPUB; office.py's are walked here, too."""

import codecs
import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote
from zipfile import ZipFile

from lxml import etree

from swep_ds.common.errors import InputError
from swep_ds.texts.documents import CELL, END, HEADING, Document, from_parts

START = "swep-start"  # an attribute: what precedes the text of a block
# what comes where an element ends, by its name in Word or OpenDocument
GIVEN = {"cr": END, "line-break": END, "tab": CELL, "ptab": CELL, "pt": CELL, "s": " ", "noBreakHyphen": "-"}


def roles(**by_role: str) -> dict[str, list[str]]:
    """By role of elements, their names, in any namespace."""
    return {role: [f"{{*}}{name}" for name in names.split()] for role, names in by_role.items()}


HTML = roles(
    block="address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form header hr legend li main menu nav ol option p pre section select summary table tbody textarea "
    "tfoot thead tr ul",
    heading="h1 h2 h3 h4 h5 h6 title",
    cell="td th",
    kept="pre textarea",  # with the ends of its lines
    skipped="script style template noscript rt rp",
)
_CHARSET = re.compile(rb"(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
# names that pages give to character sets of which they hold more (encoding.spec.whatwg.org)
WIDER = {"iso-8859-1": "cp1252", "us-ascii": "cp1252", "iso-8859-9": "cp1254", "shift_jis": "cp932", "x-sjis": "cp932"}
WIDER |= {"gb2312": "gb18030", "gbk": "gb18030", "euc-kr": "cp949", "ks_c_5601-1987": "cp949", "tis-620": "cp874"}


def read_html(path: Path) -> Document:
    """All of a page, with its title."""
    return from_parts([marked(_html(path.read_bytes()), HTML)])


read_htm = read_xhtml = read_html


def read_epub(path: Path) -> Document:
    """The chapters in the order of the spine. Raises InputError: they are encrypted."""
    with ZipFile(path) as archive:
        package = next(xml(archive, "META-INF/container.xml").iter("{*}rootfile")).get("full-path")
        root = xml(archive, package)
        items = {item.get("id"): unquote(item.get("href")) for item in root.iter("{*}item")}
        chapters = [items[reference.get("idref")] for reference in root.iter("{*}itemref")]
        chapters = [posixpath.normpath(posixpath.join(posixpath.dirname(package), chapter)) for chapter in chapters]
        if "META-INF/encryption.xml" in archive.namelist():
            encrypted = xml(archive, "META-INF/encryption.xml").iter("{*}CipherReference")
            if {unquote(each.get("URI")) for each in encrypted} & {*chapters}:
                raise InputError("is encrypted: only its shop's reader opens it")
        bodies = [body for chapter in chapters for body in _html(archive.read(chapter)).iter("body")]
    return from_parts(marked(body, HTML) for body in bodies)


def xml(archive: ZipFile, part: str) -> etree._Element:
    """The tree of a part. Nothing is fetched, and no entity is expanded."""
    return etree.fromstring(archive.read(part), etree.XMLParser(resolve_entities=False, no_network=True))


def marked(root: etree._Element, roles: Mapping[str, list[str]]) -> str:
    """The text of a tree, which it changes, with the marks of `from_parts`. Blocks are on lines of their own, a row is
    on one. If any elements are texts, the others hold none."""
    etree.strip_elements(root, *roles["skipped"], etree.Comment, etree.PI, etree.Entity, with_tail=False)
    if "text" in roles:
        texts = set(root.iter(*roles["text"]))
        for element in root.iter():
            element.tail = None
            if element not in texts:
                element.text = None
    for block in root.iter(*roles.get("kept", "-")):
        for element in block.iter():
            for side in ("text", "tail"):
                if "\n" in (said := getattr(element, side) or ""):
                    setattr(element, side, said.replace("\n", END))
    blocks = set(root.iter(*roles["block"]))
    for heading in root.iter(*roles.get("heading", "-")):
        _make_line(heading, blocks)
        _surround(heading, END + HEADING, END)
    for cell in root.iter(*roles["cell"]):
        # a cell that is alone in its row, or holds others, is layout
        if len(cell.getparent()) == 1 or next(cell.iterdescendants(cell.tag), None) is not None:
            _surround(cell, END, END)
        else:
            _make_line(cell, blocks)
            _surround(cell, "", CELL)
    for block in blocks:
        _surround(block, END + block.get(START, ""), END)
    for element in root.iter(*(f"{{*}}{name}" for name in GIVEN)):
        _surround(element, "", GIVEN[etree.QName(element).localname])
    return etree.tostring(root, encoding="unicode", method="text", with_tail=False)


def _make_line(element: etree._Element, blocks: set[etree._Element]) -> None:
    """Makes the blocks in an element parts of a line, and takes them out of `blocks`."""
    inside = blocks.intersection(element.iterdescendants())
    for block in inside:
        _surround(block, f" {block.get(START, '')}", " ")
    blocks -= inside


def _surround(element: etree._Element, before: str, after: str) -> None:
    if before:
        element.text = before + (element.text or "")
    element.tail = after + (element.tail or "")


def _html(content: bytes) -> etree._Element:
    root = etree.fromstring(_as_utf8(content), etree.HTMLParser(encoding="utf-8", no_network=True))
    if root is None:
        raise InputError("holds no text")
    return root


def _as_utf8(content: bytes) -> bytes:
    """A page as UTF-8 if it is, else by the character set that it names, or else by that of Western Windows."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace").encode()
    with suppress(UnicodeDecodeError):
        content.decode()
        return content.removeprefix(codecs.BOM_UTF8)
    if named := _CHARSET.search(content[:4096]):
        with suppress(LookupError):
            name = named[1].decode().lower()
            return content.decode(WIDER.get(name, name), errors="replace").encode()
    return content.decode("cp1252", errors="replace").encode()
