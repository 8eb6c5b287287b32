"""A folder of texts and documents: what is read, what is kept, and what is left out with its reason."""

import sys

import pytest

from swep_ds.evaluation import evaluate
from swep_ds.texts import folder as module
from swep_ds.texts import reader
from swep_ds.texts.folder import FolderTexts
from tests.support.bad_input import refused
from tests.support.documents import SCAN, write_pdf

# A reader that crashes on b.html and hangs on c.html
FAULTS = """
import os, time
from swep_ds.texts import markup
read = markup.read_html
def read_html(path):
    if path.stem == "b":
        os._exit(3)
    if path.stem == "c":
        time.sleep(15)
    print("a library's notice")
    return read(path)
markup.read_html = read_html
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(module, "SETTLED", -(10**18))  # every state counts at once
    folder = tmp_path / "articles"
    folder.mkdir()
    (folder / "d.html").write_text("<h1>Origin</h1><p>Founded in 1204")
    return folder


def test_a_document_is_read_again_only_if_it_has_changed(folder, monkeypatch):
    read = []
    monkeypatch.setattr(module, "read_documents", lambda paths: reader.read_documents(noted(paths)))

    def noted(paths):
        for path in paths:
            read.append(path.name)
            yield path

    texts = FolderTexts(folder, "texts")
    assert list(texts.states()) == ["d.html"]
    assert (texts["d.html"], read) == ("Origin\nFounded in 1204\n", ["d.html"])
    assert FolderTexts(folder, "texts").document("d.html").heading(9) == "Origin"
    assert read == ["d.html"]
    states = texts.states()
    (folder / "d.html").write_text("<p>Founded in 1250")
    assert (texts["d.html"], texts.states() != states, read) == ("Founded in 1250\n", True, ["d.html"] * 2)
    [record] = (folder.parent / "cache").rglob("*.json")
    record.write_text(record.read_text().replace("1250", "1251"))
    module._kept.cache_clear()
    assert (FolderTexts(folder, "texts")["d.html"], len(read)) == ("Founded in 1250\n", 3)
    monkeypatch.setattr(module, "FORMAT_VERSION", 2)
    assert (texts["d.html"], len(read)) == ("Founded in 1250\n", 4)
    (folder / "d.html").rename(folder / "e.html")
    assert list(texts.states()) == ["e.html"]
    [record] = (folder.parent / "cache").rglob("*.json")  # that of d.html is gone
    assert "Founded in 1250" in record.read_text()


def test_what_cannot_be_read_is_named_once_and_the_rest_is_read(folder, monkeypatch, caplog, tmp_path):
    (tmp_path / "faults.py").write_text(FAULTS)
    (tmp_path / "sitecustomize.py").write_text("import faults")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(reader, "LIMIT", 3)
    for name in ("b.html", "c.html", "a.csv", "b.csv", "z.html"):
        (folder / name).write_text("<p>Founded in 1204")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    write_pdf(folder / "scans.pdf", [["The abbot founded it."], SCAN])
    (folder / "loop").symlink_to(folder)
    (folder / "link.html").symlink_to(folder / "d.html")
    texts = FolderTexts(folder, "texts")
    assert list(texts.states()) == ["d.html", "link.html", "scans.pdf", "z.html"]
    assert {texts["d.html"], texts["link.html"]} == {"Origin\nFounded in 1204\n"}
    assert caplog.messages == [
        f"{folder}/scans.pdf: pages without text, which may be scans: 2",
        "texts: texts read: 4, other files left out: 6",
        f"left out: {folder}/latin.txt: is not UTF-8 text (byte 3): save it as UTF-8",
        f"left out: {folder}/b.html: ends the process that reads it (exit code 3): save it anew, or its text as .txt",
        f"left out: {folder}/c.html: takes more than 3 seconds: save it anew, or its text as .txt",
        f"left out: texts: other kinds than {' '.join(module.SUFFIXES)}: 2 .csv, 1 links to folders",
    ]
    caplog.clear()
    assert len(texts.states()) == 4
    assert caplog.messages == []
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 4  # none of a reader that ended: others may try again
    (folder / "latin.txt").write_text("cafe")
    assert len(texts.states(texts.states())) == 5
    assert refused(texts.document, "b.html").startswith(f"{folder}/b.html: ends the process that reads it")


def test_a_folder_without_the_extra_or_without_a_text(folder, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "lxml", None)
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "lxml" else name)
    assert "texts: holds no text that can be read: put .txt, .md" in refused(FolderTexts(folder, "texts").states)
    assert caplog.messages[-1].endswith(": 1 .html (which need pip install '.[documents]' in a checkout)")
    monkeypatch.delitem(sys.modules, "swep_ds.texts.markup", raising=False)
    said = refused(module.read_document, folder / "d.html")
    assert said == f"{folder / 'd.html'}: needs pip install '.[documents]' in a checkout"
    assert refused(FolderTexts, folder / "none", "texts none") == "texts none: no such folder"


def test_headings_of_markdown(tmp_path):
    (tmp_path / "a.md").write_text("# One #\nFounded\n\n## Two\nin 1204\n#not")
    document = module.read_document(tmp_path / "a.md")
    assert document.text.startswith("# One")
    assert [document.heading(document.text.index(word)) for word in ("Founded", "1204", "#not")] == [
        "One",
        "Two",
        "Two",
    ]
