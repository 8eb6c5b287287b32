"""Small documents: PDFs by hand, and zips of XML."""

from pathlib import Path
from zipfile import ZipFile

SCAN = "q 600 0 0 800 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID 0 EI Q"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
TYPE0 = (
    "<< /Type /Font /Subtype /Type0 /BaseFont /None /Encoding /{} /DescendantFonts [<< /Type /Font /Subtype "
    "/CIDFontType0 /BaseFont /None /CIDSystemInfo << /Registry (Adobe) /Ordering ({}) /Supplement 0 >> >>] >>"
)
FONTS = (
    "/F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >> "
    f"/F2 {TYPE0.format('UniGB-UCS2-H', 'GB1')} /F3 {TYPE0.format('Identity-H', 'Identity')}"
)


def write_pdf(path: Path, pages: list[list[str] | str], encrypt: str = "") -> None:
    """A page for each list of lines, or for its drawing operators."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    for page in pages:
        content = page
        if isinstance(page, list):
            content = "BT 14 TL 50 750 Td " + " ".join(f"{_shown(line)} T*" for line in page) + " ET"
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {len(objects)} 0 R "
            f"/Resources << /Font << {FONTS} >> >> >>"
        )
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects[1] = f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>"
    content = b"%PDF-1.4\n"
    places = []
    for number, value in enumerate(objects, 1):
        places.append(f"{len(content):010d} 00000 n \n")
        content += f"{number} 0 obj\n{value}\nendobj\n".encode("latin-1")
    size = len(objects) + 1
    table = f"xref\n0 {size}\n0000000000 65535 f \n{''.join(places)}trailer << /Size {size} /Root 1 0 R {encrypt} >>"
    path.write_bytes(content + f"{table}\nstartxref\n{len(content)}\n%%EOF\n".encode())


def _shown(line: str) -> str:
    if line.isascii():
        return f"/F1 12 Tf ({line}) Tj"
    return f"/F2 12 Tf <{line.encode('utf-16-be').hex()}> Tj"


def write_zip(path: Path, parts: dict[str, str]) -> None:
    with ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def relations(**targets: str) -> str:
    """By id, which ends in a digit, the part that it means; its type is the id without the digit."""
    each = "".join(
        f'<Relationship Id="{id_}" Type="{RELATION}/{id_[:-1]}" Target="{to}"/>' for id_, to in targets.items()
    )
    return f"<Relationships>{each}</Relationships>"


def write_docx(path: Path, body: str, related: dict[str, str] | None = None, **parts: str) -> None:
    """The content of a Word file, its relations (`relations`), and the content of its other parts by name."""
    namespaces = f'xmlns:w="{WORD}" xmlns:r="{RELATION}" xmlns:mc="mc" xmlns:c="c"'
    xml = {name: f"<w:{name} {namespaces}>{content}</w:{name}>" for name, content in parts.items()}
    written = {"_rels/.rels": relations(officeDocument1="word/document.xml")}
    written |= {"word/document.xml": f"<w:document {namespaces}><w:body>{body}</w:body></w:document>"}
    written |= {"word/_rels/document.xml.rels": relations(**{f"{name.rstrip('0')}1": f"{name}.xml" for name in parts})}
    write_zip(path, written | {f"word/{name}.xml": content for name, content in xml.items()})
