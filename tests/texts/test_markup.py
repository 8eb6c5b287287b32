"""HTML in any character set, and EPUB."""

import pytest

from swep_ds.texts.documents import read_document
from tests.support.bad_input import refused
from tests.support.documents import write_zip

PAGE = """<!DOCTYPE html><html><head><title>The Abbey</title><style>p {}</style><script>var a = "b";</script></head>
<body><nav><ul><li>Home</li><li>About</li></ul></nav><h2>Ori<b>gin</b></h2><p>It was <b>found</b>ed<!-- never --> in
  1204&nbsp;AD.<br/>\u6771<ruby>\u4eac<rt>kyo</rt></ruby></p>
<table><tr><td><table><tr><td>Bell<p>big</p></td><td>12</td></tr></table></td></tr></table>
<pre>a  b
c</pre></body></html>"""


def test_a_page_is_read_as_it_is_shown(tmp_path):
    for name in ("a.html", "a.HTM", "a.xhtml"):
        (tmp_path / name).write_text(PAGE, encoding="utf-8")
        document = read_document(tmp_path / name)
        lines = ["The Abbey", "Home", "About", "Origin", "It was founded in 1204 AD.", "\u6771\u4eac", "Bell big\t12"]
        assert document.text.splitlines() == [*lines, "a b", "c"]
        assert document.headings == [(0, "The Abbey"), (21, "Origin")]
    (tmp_path / "a.html").write_text("<p/>")
    assert refused(read_document, tmp_path / "a.html").endswith("a.html: holds no text")


@pytest.mark.parametrize(
    ("named", "written", "text"),
    [
        ("", "utf-8", "caf\u00e9"),
        ("", "utf-16", "caf\u00e9"),
        ("", "cp1252", "caf\u00e9 \u201cx\u201d"),
        ("iso-8859-1", "cp1252", "caf\u00e9 \u201cx\u201d"),
        ("Shift_JIS", "cp932", "\u2460\u6771"),
        ("windows-1251", "cp1251", "\u0434\u0430"),
        ("utf-8", "cp1252", "caf\ufffd"),
        ("unknown-7", "utf-8", "caf\u00e9"),
    ],
)
def test_character_sets(named, written, text, tmp_path):
    content = f'<meta charset="{named}"><p>{text}'.encode(written, errors="ignore")
    if "\ufffd" in text:
        content += b"\xe9"
    (tmp_path / "a.html").write_bytes(content)
    assert read_document(tmp_path / "a.html").text == f"{text}\n"


def test_an_epub_is_read_in_the_order_of_its_spine(tmp_path):
    chapter = (
        "<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><head><title/></head><body>{}</body></html>"
    )
    items = '<item id="a" href="text/b%20.xhtml"/><item id="b" href="a.xhtml"/><item id="c" href="unread.xhtml"/>'
    parts = {
        "META-INF/container.xml": '<c><rootfile full-path="OPS/p.opf"/></c>',
        "OPS/p.opf": f'<package>{items}<itemref idref="a"/><itemref idref="b"/></package>',
        "OPS/a.xhtml": chapter.format("<p>two<a id='x'/>&nbsp;s</p>"),
        "OPS/text/b .xhtml": chapter.format("<h1>One</h1>"),
        "META-INF/encryption.xml": '<e><CipherReference URI="OPS/font"/></e>',
    }
    write_zip(tmp_path / "a.epub", parts)
    assert read_document(tmp_path / "a.epub") == ("One\ntwo s\n", (), [(0, "One")], ())
    write_zip(tmp_path / "a.epub", parts | {"META-INF/encryption.xml": '<e><CipherReference URI="OPS/a.xhtml"/></e>'})
    assert refused(read_document, tmp_path / "a.epub").endswith("a.epub: is encrypted: only its shop's reader opens it")
