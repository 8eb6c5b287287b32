"""PDFs written by hand, of which every line is known."""

from swep_ds.texts.documents import read_document
from tests.support.bad_input import refused
from tests.support.documents import SCAN, write_pdf


def test_words_go_on_over_the_ends_of_lines_and_pages(tmp_path):
    pages = [
        [
            "Any well-known crop gave a har-",
            "vest that was well-",
            "known in Baden-",
            "Baden, in May-",
            "1250. The ab-",
        ],
        ["bot saw it.", "\u4e1c\u4eac", "\u5927\u5b66\u3002", "Name Price"],
        [],
    ]
    write_pdf(tmp_path / "a.pdf", pages)
    document = read_document(tmp_path / "a.pdf")
    text = "Any well-known crop gave a harvest that was well-known in Baden-Baden, in May-1250. The abbot saw it.\n"
    assert document.text == text + "\u4e1c\u4eac\u5927\u5b66\u3002\nName Price\n"
    assert [document.page(document.text.index(word)) for word in ("Any", "ab", "bot", "Price")] == [1, 1, 2, 2]
    assert (document.remarks, document.heading(0)) == ([], None)


def test_headers_and_footers_that_repeat_come_once_and_numbers_count_the_pages(tmp_path):
    pages = []
    for number in range(5):
        body = [f"Room {number * 2} was built", f"in {1200 + 10 * number} and then"]
        pages.append(["The Abbey", f"Part 2, page {number + 7} of 11", *body, f"{number + 7}"])
    write_pdf(tmp_path / "a.pdf", pages)
    document = read_document(tmp_path / "a.pdf")
    bodies = [f"Room {number * 2} was built\nin {1200 + 10 * number} and then\n" for number in range(5)]
    kept = ["The Abbey\nPart 2, page 7 of 11\n7\n", "", "", "", ""]
    assert document.text == "".join(line + body for line, body in zip(kept, bodies, strict=True))
    assert [document.page(document.text.index(body)) for body in bodies] == [1, 2, 3, 4, 5]


def test_scans_are_named_and_what_is_encrypted_or_damaged_is_refused(tmp_path):
    path = tmp_path / "a.pdf"
    write_pdf(path, [["Who founded it?"], SCAN, [], SCAN])
    assert read_document(path).remarks == ["pages without text, which may be scans: 2, 4"]
    write_pdf(path, [SCAN])
    assert refused(read_document, path).startswith(f"{path}: holds no text: if its pages are pictures, recognise")
    key = "61" * 32
    write_pdf(path, [["a"]], f"/ID [<00> <00>] /Encrypt << /Filter /Standard /V 1 /R 2 /O <{key}> /U <{key}> /P -4 >>")
    assert refused(read_document, path) == f"{path}: is encrypted: save it without a password"
    path.write_bytes(b"%PDF-1.4")
    assert "cannot be read (PdfiumError: Failed to load document" in refused(read_document, path)


def test_characters_without_a_unicode_value_are_said(tmp_path):
    write_pdf(tmp_path / "a.pdf", ["BT /F3 12 Tf 50 750 Td <00410042004300440045> Tj ET"])
    assert read_document(tmp_path / "a.pdf").remarks == [
        "characters without a Unicode value: 100%: its text may be wrong"
    ]
