"""Word, PowerPoint and OpenDocument files, written by hand."""

from swep_ds.texts.documents import read_document
from tests.support.bad_input import refused
from tests.support.documents import relations, write_docx, write_zip

STYLES = """
<w:style w:styleId="H1"><w:pPr><w:outlineLvl w:val="0"/><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>
<w:style w:styleId="H2"><w:basedOn w:val="H1"/><w:pPr><w:numPr><w:ilvl w:val="1"/></w:numPr></w:pPr></w:style>
"""
LEVEL = '<w:lvl w:ilvl="{}"><w:start w:val="{}"/><w:numFmt w:val="{}"/><w:lvlText w:val="{}"/></w:lvl>'
NUMBERING = (
    '<w:abstractNum w:abstractNumId="0">'
    + LEVEL.format(0, 1, "upperRoman", "%1.")
    + LEVEL.format(1, 3, "decimal", "%1.%2")
    + LEVEL.format(2, 1, "bullet", "o")
    + '</w:abstractNum><w:abstractNum w:abstractNumId="5">'
    + LEVEL.format(0, 26, "lowerLetter", "(%1)")
    + '</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="2"><w:abstractNumId '
    'w:val="5"/></w:num><w:num w:numId="3"><w:abstractNumId w:val="5"/><w:lvlOverride w:ilvl="0"><w:startOverride '
    'w:val="2"/></w:lvlOverride></w:num>'
)


def p(text: str, style: str = "", number: int | None = None) -> str:
    listed = "" if number is None else f'<w:numPr><w:ilvl w:val="0"/><w:numId w:val="{number}"/></w:numPr>'
    runs = text if text.startswith("<") else f"<w:r><w:t>{text}</w:t></w:r>"
    return f'<w:p><w:pPr><w:pStyle w:val="{style}"/>{listed}</w:pPr>{runs}</w:p>'


def test_word_files_say_what_is_shown_once(tmp_path):
    box = "<w:txbxContent>" + p("boxed") + "</w:txbxContent>"
    cell = "<w:tc><w:tcPr/>{}</w:tc>"
    body = [
        p("Origin", "H1"),
        p(
            "<w:r><w:t>It was </w:t></w:r><w:ins><w:r><w:t>found</w:t></w:r></w:ins><w:r><w:t>ed</w:t><w:tab/>"
            '<w:t>1204</w:t><w:footnoteReference w:id="7"/></w:r><w:del><w:r><w:delText>never</w:delText></w:r></w:del>'
            f"<w:r><mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback>"
            "</mc:AlternateContent><w:t>.</w:t></w:r>"
        ),
        f"<w:moveFrom>{p('moved')}</w:moveFrom><w:moveTo>{p('moved')}</w:moveTo>",
        p("Later", "H2"),
        p("Last", "H2"),
        p("<w:sdt><w:sdtContent><w:r><w:t>Control</w:t></w:r></w:sdtContent></w:sdt>", number=2),
        p("more", number=2),
        p("anew", number=3),
        "<w:tbl><w:tr>" + cell.format(p("Name") + p("of it")) + cell.format(p("Price")) + "</w:tr>"
        "<w:tr>"
        + cell.format(p("Bell"))
        + cell.format(p("<w:r><w:t>1</w:t><w:noBreakHyphen/><w:t>2</w:t></w:r>"))
        + "</w:tr></w:tbl>",
        p("The end", "H1"),
    ]
    header = p("The\u00a0Abbey")
    parts = {"styles": STYLES, "numbering": NUMBERING, "header": header, "header0": header, "footer": p("Foot")}
    parts["footnotes"] = f'<w:footnote w:id="7">{p("By whom?")}</w:footnote>'
    write_docx(tmp_path / "a.docx", "".join(body), **parts)
    document = read_document(tmp_path / "a.docx")
    assert document.text.splitlines() == [
        "The Abbey",
        "I. Origin",
        "It was founded\t1204.",
        "By whom?",
        "boxed",
        "moved",
        "I.3 Later",
        "I.4 Last",
        "(z) Control",
        "(aa) more",
        "(b) anew",
        "Name of it\tPrice",
        "Bell\t1-2",
        "II. The end",
        "Foot",
    ]
    assert [heading for _, heading in document.headings] == ["I. Origin", "I.3 Later", "I.4 Last", "II. The end"]
    places = [document.text.index(word) for word in ("The Abbey", "I. Origin", "boxed", "Bell")]
    assert [document.heading(place) for place in places] == [None, "I. Origin", "I. Origin", "I.4 Last"]
    assert document.page(0) is None


def test_slides_come_in_their_order_with_notes_tables_and_charts(tmp_path):
    names = 'xmlns:a="a" xmlns:c="c" xmlns:p="p" xmlns:r="r"'
    text = "<a:p><a:r><a:t>{}</a:t></a:r></a:p>"
    row = f"<a:tr><a:tc>{text.format('Bell')}</a:tc><a:tc>{text.format('12')}</a:tc></a:tr>"
    points = "<c:f>A1</c:f><c:pt><c:v>{}</c:v></c:pt><c:pt><c:v>{}</c:v></c:pt>"
    chart = f"<c:chartSpace {names}>{text.format('Sales')}<c:cat>{points.format('North', 'South')}</c:cat>"
    slides = '<p:sldId id="1" r:id="slide2"/><p:sldId r:id="slide1"/><p:sldId r:id="slide3"/>'
    parts = {
        "_rels/.rels": relations(officeDocument1="ppt/presentation.xml"),
        "ppt/presentation.xml": f"<p:p {names}>{slides}</p:p>",
        "ppt/_rels/presentation.xml.rels": relations(slide1="slides/a.xml", slide2="/ppt/slides/b.xml", slide3="c.xml"),
        "ppt/slides/a.xml": f"<p:sld {names}/>",
        "ppt/slides/b.xml": f'<p:sld {names}>{text.format("First")}<c:chart r:id="chart1"/></p:sld>',
        "ppt/c.xml": f"<p:sld {names}><a:tbl>{row}</a:tbl></p:sld>",
        "ppt/slides/_rels/b.xml.rels": relations(chart1="../charts/c.xml", notesSlide1="../notes/n.xml"),
        "ppt/charts/c.xml": f"{chart}<c:val>{points.format(3, 4)}</c:val></c:chartSpace>",
        "ppt/notes/n.xml": f"<p:notes {names}>{text.format('Say it')}</p:notes>",
    }
    write_zip(tmp_path / "a.pptx", parts)
    document = read_document(tmp_path / "a.pptx")
    assert document.text == "First\nSales\nNorth\tSouth\n3\t4\nSay it\nBell\t12\n"
    assert [document.page(document.text.index(word)) for word in ("First", "Say", "Bell")] == [1, 1, 3]


def test_open_documents(tmp_path):
    names = 'xmlns:o="o" xmlns:t="t" xmlns:s="s" xmlns:b="b"'
    note = "<t:note><t:note-citation>1</t:note-citation><t:note-body><t:p>By whom?</t:p></t:note-body></t:note>"
    cell = "<b:table-cell><t:p>{}</t:p></b:table-cell>"
    body = (
        f"<t:tracked-changes><t:p>deleted</t:p></t:tracked-changes><t:h>Origin</t:h><t:p>It was<t:s/>\n"
        f"founded<t:span> in{note}</t:span> 1204<t:tab/>there<t:line-break/>again</t:p>"
        f"<b:table><b:table-row>{cell.format('Bell')}{cell.format('12')}</b:table-row></b:table>"
    )
    parts = {"META-INF/manifest.xml": "<m/>", "content.xml": f"<o:c {names}><o:body>{body}</o:body></o:c>"}
    parts["styles.xml"] = f"<o:s {names}><s:footer><t:p>Foot</t:p></s:footer><s:header><t:p>Head</t:p></s:header></o:s>"
    write_zip(tmp_path / "a.odt", parts)
    document = read_document(tmp_path / "a.odt")
    assert document.text == "Head\nOrigin\nIt was founded in 1204\tthere\nagain\nBy whom?\nBell\t12\nFoot\n"
    assert document.headings == [(5, "Origin")]
    write_zip(tmp_path / "a.odt", {"META-INF/manifest.xml": "<m><encryption-data/></m>"})
    assert refused(read_document, tmp_path / "a.odt").endswith("a.odt: is encrypted: save it without a password")


def test_no_file_outside_is_read_and_what_is_no_office_file_is_refused(tmp_path):
    (tmp_path / "secret").write_text("secret")
    entity = (
        f'<!DOCTYPE d [<!ENTITY e SYSTEM "{tmp_path / "secret"}">]><d xmlns:b="b"><b:body><p>a&e;b</p></b:body></d>'
    )
    write_zip(tmp_path / "a.odt", {"META-INF/manifest.xml": "<m/>", "content.xml": entity, "styles.xml": "<s/>"})
    assert read_document(tmp_path / "a.odt").text == "ab\n"
    path = tmp_path / "a.docx"
    write_docx(path, p(""))
    assert refused(read_document, path) == f"{path}: holds no text"
    path.write_bytes(bytes.fromhex("d0cf11e0a1b11ae1"))
    assert refused(read_document, path).startswith(f"{path}: is encrypted, or of an older format: save it as .docx")
    path.write_bytes(b"PK")
    assert "cannot be read (BadZipFile: File is not a zip file): save it anew" in refused(read_document, path)
