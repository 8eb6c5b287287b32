"""The text of marked-up files: HTML and EPUB; office.py's are walked here, too."""

import codecs
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote
from zipfile import ZipFile

from lxml import etree

from swep_ds.common.errors import InputError
from swep_ds.texts.documents import Document, from_blocks

# What an element does to the text, by its name without a namespace. Any other role is the characters that it means
BLOCK, HEADING, CELL, KEPT, SKIPPED, TEXT = "block", "heading", "cell", "kept", "skipped", "text"
IS_HEADING, NUMBER = "swep-heading", "swep-number"  # attributes: a block is a heading; what precedes its text


def roles(**by_role: str) -> dict[str, str]:
    return {name: role for role, names in by_role.items() for name in names.split()}


HTML = {"br": "\n"} | roles(
    block="address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form header hr legend li main menu nav ol option p section select summary table tbody tfoot thead tr ul",
    heading="h1 h2 h3 h4 h5 h6 title",
    cell="td th",
    kept="pre textarea",  # with its white space
    skipped="script style template noscript rt rp",
)
_CHARSET = re.compile(rb"(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
# names that pages give to character sets of which they hold more (encoding.spec.whatwg.org)
WIDER = {"iso-8859-1": "cp1252", "us-ascii": "cp1252", "iso-8859-9": "cp1254", "shift_jis": "cp932", "x-sjis": "cp932"}
WIDER |= {"gb2312": "gb18030", "gbk": "gb18030", "euc-kr": "cp949", "ks_c_5601-1987": "cp949", "tis-620": "cp874"}


def read_html(path: Path) -> Document:
    """All of a page, with its title."""
    return from_blocks([blocks(_html(path.read_bytes()), HTML)])


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
    return from_blocks(blocks(body, HTML) for body in bodies)


def xml(archive: ZipFile, part: str) -> etree._Element:
    """The tree of a part. Nothing is fetched, and no entity is expanded."""
    return etree.fromstring(archive.read(part), etree.XMLParser(resolve_entities=False, no_network=True))


def blocks(root: etree._Element, roles: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """The blocks of a tree, and whether they are headings. A row is one block, with a tab between its cells. If any
    role is TEXT, only those elements hold text; else all do, with white space folded."""
    only_texts = TEXT in roles.values()
    skipped = [f"{{*}}{name}" for name, role in roles.items() if role == SKIPPED]
    etree.strip_elements(root, *skipped, etree.Comment, etree.PI, etree.Entity, with_tail=False)
    role_of = {tag: roles.get(tag.rpartition("}")[2], "") for tag in {element.tag for element in root.iter()}}
    if not only_texts:  # elements without a role leave their text to those around them
        etree.strip_tags(root, *(tag for tag, role in role_of.items() if not role))
    parts: list[str] = []
    inside = {CELL: 0, HEADING: 0, KEPT: 0}  # how many of each
    for event, element in etree.iterwalk(root, events=("start", "end")):
        is_start = event == "start"
        role = role_of[element.tag]
        if role == CELL and _is_layout(element):
            role = BLOCK
        elif role == BLOCK and element.get(IS_HEADING):
            role = HEADING
        if role in (BLOCK, HEADING, KEPT) and inside[CELL]:
            parts.append(" ")
        elif role in (BLOCK, HEADING, KEPT):
            if parts:
                yield "".join(parts), inside[HEADING] > 0
            parts = []
        elif role == CELL and not is_start:
            parts.append("\t")
        elif role not in (CELL, TEXT) and is_start:
            parts.append(role)  # the characters that it means
        if role in inside:
            inside[role] += 1 if is_start else -1
        if is_start and NUMBER in element.attrib:
            parts.append(element.get(NUMBER))
        text = element.text if is_start else element.tail
        if text and not only_texts and (is_start or element is not root):
            parts.append(text if inside[KEPT] else text.replace("\n", " ").replace("\t", " "))
        elif text and is_start and role == TEXT:
            parts.append(text)
    yield "".join(parts), False


def _is_layout(cell: etree._Element) -> bool:
    """Whether a cell is the only one of its row, or holds others."""
    return len(cell.getparent()) == 1 or next(cell.iterdescendants(cell.tag), None) is not None


def _html(content: bytes) -> etree._Element:
    root = etree.fromstring(_decoded(content).encode(), etree.HTMLParser(encoding="utf-8", no_network=True))
    if root is None:
        raise InputError("holds no text")
    return root


def _decoded(content: bytes) -> str:
    """A page as UTF-8 if it is, else by the character set that it names, or else by that of Western Windows."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")
    with suppress(UnicodeDecodeError):
        return content.decode("utf-8-sig")
    if named := _CHARSET.search(content[:4096]):
        with suppress(LookupError):
            name = named[1].decode().lower()
            return content.decode(WIDER.get(name, name), errors="replace")
    return content.decode("cp1252", errors="replace")
