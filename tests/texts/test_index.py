"""The kept index of texts: BM25 against a second writing, and every way in which what is kept and the texts differ."""

import math
import os
import signal
import threading
import time
from collections import Counter

import pytest
from filelock import FileLock

from swep_ds.common.files import read_sealed
from swep_ds.texts import index as module
from swep_ds.texts import passages
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import FIELDS, TextIndex
from swep_ds.texts.passages import Passage, cut
from swep_ds.texts.words import grams, words
from tests.support.bad_input import refused

TEXTS = {
    "abbey.txt": "The old abbey was founded in 1204 by an abbot. It was founded again in 1250.\n\nWho knows why?",
    "college.md": "The college was opened by the king, and the abbot founded the library (in 1300).",
    "old/market.txt": "Markets were held by the abbots on the old square. The abbots' market was closed by a king.",
    "none.txt": "?!",
}
QUESTIONS = ("Who founded the abbey?", "old markets", "king of the college", "in 1300", "abbots founding")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(passages, "WORDS", 6)
    monkeypatch.setattr(passages, "STEP", 3)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "articles"
    for name, text in TEXTS.items():
        write(folder / name, text)
    return folder


def write(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def opened(folder) -> TextIndex:
    return TextIndex(FolderTexts(folder, f"texts {folder}"))


def read(folder) -> dict[str, str]:
    texts = FolderTexts(folder, "")
    return {name: texts[name] for name in texts.states()}


def best(index: TextIndex) -> list[list[Passage]]:
    return [index.best(question, 5) for question in QUESTIONS]


def built_at_once(folder, monkeypatch) -> list[list[Passage]]:
    with monkeypatch.context() as patched:
        patched.setattr(module, "CACHE", folder.parent / "another cache")
        return best(opened(folder))


def indexed(monkeypatch) -> list[str]:
    """The texts that are indexed from now on."""
    texts = []

    def noted(text: str):
        texts.append(text)
        return cut(text)

    monkeypatch.setattr(module, "cut", noted)
    return texts


def rebuilt(caplog) -> list[str]:
    return [message for message in caplog.messages if "texts are indexed again (" in message]


def bm25(question: str, texts: dict[str, str]) -> dict[Passage, float]:
    """Lucene's: k1 = 1.2, b = 0.75; a length counts as the largest that its byte can say, which is exact below 40."""
    of_fields = []
    places = []
    for name, text in sorted(texts.items()):
        title = words(os.path.splitext(name)[0])
        for begin, end, of_passage, pieces in cut(text):
            places.append(Passage(name, begin, end))
            assert pieces == " ".join(grams(of_passage.split()))
            fields = (of_passage.split(), pieces.split(), title + grams(title))
            of_fields.append([Counter(filter(None, terms)) for terms in fields])
    scores = dict.fromkeys(places, 0.0)
    asked = words(question)
    asked_grams = list(filter(None, grams(asked)))
    of_question = (asked, asked_grams, asked + asked_grams)
    for number, (weight, terms) in enumerate(zip(FIELDS.values(), of_question, strict=True)):
        counts = [fields[number] for fields in of_fields]
        mean = sum(sum(count.values()) for count in counts) / len(counts)
        for place, count in zip(places, counts, strict=True):
            length = 1.2 * (0.25 + 0.75 * sum(count.values()) / mean)
            for term in terms:
                holding = sum(term in other for other in counts)
                idf = math.log(1 + (len(counts) - holding + 0.5) / (holding + 0.5))
                scores[place] += weight * idf * 2.2 * count[term] / (count[term] + length)
    return scores


def test_passages_are_ranked_by_bm25_and_equal_ones_by_their_place():
    texts = TEXTS | {f"copy{number}.txt": "An abbot founded a market. It was old." for number in range(30)}
    index = TextIndex(texts)
    for question in (*QUESTIONS, "founded FOUNDED abbot"):
        scores = bm25(question, texts)
        expected = sorted((place for place in scores if scores[place]), key=lambda p: (-round(scores[p], 3), p))
        assert index.best(question, 200) == expected
        assert index.best(question, 4) == expected[:4]
    assert index.best("?", 5) == index.best("zzz", 5) == []
    assert len(index) == len(scores)


def test_what_is_added_changed_and_removed_is_indexed_alone(folder, monkeypatch, caplog):
    for number in range(40):
        write(folder / f"more{number}.txt", f"Text {number} of the market, which an abbot opened in {1200 + number}.")
    opened(folder)
    names = indexed(monkeypatch)
    index = opened(folder)
    assert names == []
    write(folder / "added.txt", "The king founded another abbey.")
    write(folder / "college.md", "The college was closed, and the library burnt.")
    (folder / "none.txt").unlink()
    (folder / "more3.txt").rename(folder / "more103.txt")
    os.utime(folder / "abbey.txt")  # other times, the same text
    index.refresh()
    assert len(names) == 3
    again = opened(folder)
    assert len(names) == 3
    assert best(index) == best(again)
    assert {passage.name for passage in again.best("king founded another abbey", 1)} == {"added.txt"}
    assert not [passage for passage in again.best("opened by the king", 50) if passage.name == "more3.txt"]
    # more of it, so that passages that are gone would count: the whole is indexed again, as if at once
    for number in range(10, 20):
        (folder / f"more{number}.txt").unlink()
    index.refresh()
    assert len(names) > 30
    assert best(index) == best(opened(folder)) == built_at_once(folder, monkeypatch)
    assert len(index) == len(bm25("", read(folder)))


def test_texts_that_are_added_in_parts_are_ranked_as_at_once(folder, monkeypatch):
    names = sorted(TEXTS)
    moved = {name: (folder / name).read_text(encoding="utf-8") for name in names[1:]}
    for name in moved:
        (folder / name).unlink()
    index = opened(folder)
    for name, text in reversed(moved.items()):
        write(folder / name, text)
        write(folder / f"{name}.txt", text)
        index.refresh()
    assert best(index) == built_at_once(folder, monkeypatch)
    texts = read(folder)
    assert best(TextIndex(texts)) == best(index)


def test_a_text_that_changes_under_the_index_is_never_read_as_it_was(folder):
    index = opened(folder)
    file = folder / "college.md"
    times = file.stat()
    file.write_text(TEXTS["college.md"].replace("library", "brewery"), encoding="utf-8")  # as long as before
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    pieces = index.pieces("the abbot founded the library", 9)
    assert {piece.name for piece, _ in pieces} > {"college.md"}
    assert index.best("brewery", 1)
    assert all(content in (folder / piece.name).read_text(encoding="utf-8") for piece, content in pieces)
    file.unlink()
    pieces = index.pieces("the brewery of the college", 9)
    assert "college.md" not in {piece.name for piece, _ in pieces}


def test_a_mapping_is_known_by_its_first_name(monkeypatch, caplog):
    texts = dict(TEXTS) | {f"text{number}": f"Text {number} of an abbot" for number in range(60)}
    TextIndex(texts)
    names = indexed(monkeypatch)
    texts["college.md"] += " More."
    texts["zoo"] = "A zoo."
    index = TextIndex(texts)
    assert names == [texts["college.md"], "A zoo."]
    del texts["zoo"]
    index.refresh()
    assert (index.best("zoo", 1), len(names)) == ([], 2)
    assert not caplog.messages


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "no meta", "no list", "list"])
def test_a_damaged_index_is_built_again_with_one_line(folder, monkeypatch, caplog, damage):
    index = opened(folder)
    expected = best(index)
    kept = index._folder
    # new files: the index above has mapped the former ones
    [terms] = kept.glob("*.term")
    if damage == "changed":
        content = bytearray(terms.read_bytes())
        content[len(content) // 2] ^= 1
        terms.unlink()
        terms.write_bytes(content)
    elif damage == "cut":
        content = terms.read_bytes()
        terms.unlink()
        terms.write_bytes(content[:100])
    elif damage == "missing":
        terms.unlink()
    elif damage == "no meta":
        (kept / "meta.json").unlink()
    elif damage == "no list":  # a first building was killed
        (kept / "texts.json").unlink()
    else:
        (kept / "texts.json").write_bytes((kept / "texts.json").read_bytes()[:-2])
    caplog.clear()
    names = indexed(monkeypatch)
    assert best(opened(folder)) == expected
    [line] = rebuilt(caplog)
    assert line.startswith(f"{kept}: ")
    assert len(names) == len(TEXTS)


def test_another_version_has_an_index_of_its_own(folder, monkeypatch):
    opened(folder)
    monkeypatch.setattr(module, "FORMAT_VERSION", -1)
    texts = indexed(monkeypatch)
    opened(folder)
    assert len(texts) == len(TEXTS)


def test_another_process_is_waited_for(folder):
    index = opened(folder)
    write(folder / "added.txt", "The king founded a zoo.")
    held = threading.Event()

    def hold() -> None:
        with FileLock(index._folder.with_suffix(".lock")):
            held.set()
            time.sleep(0.3)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    began = time.monotonic()
    index.refresh()
    other.join()
    assert time.monotonic() - began >= 0.2
    assert index.best("zoo", 1)


def killed(folder, step: str) -> None:
    """Opens the index in a process that is killed when it comes to a step of the module."""
    child = os.fork()
    if child == 0:
        setattr(module, step, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
        try:
            opened(folder)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_a_killed_writer_leaves_nothing_wrong(folder, monkeypatch, caplog):
    killed(folder, "write_atomically")  # nothing of a first building is used
    index = opened(folder)
    assert best(index) == built_at_once(folder, monkeypatch)
    assert len(rebuilt(caplog)) == 1
    for number in range(20):
        write(folder / f"more{number}.txt", f"Text {number} of the market, which an abbot opened in {1200 + number}.")
    index.refresh()
    expected = best(index)
    write(folder / "added.txt", "The king founded a zoo.")
    killed(folder, "cut")  # nothing is written
    assert best(index) == expected
    index.refresh()
    assert index.best("zoo", 1)
    (folder / "added.txt").unlink()
    killed(folder, "write_atomically")  # the index is new, and the list is not
    assert len(rebuilt(caplog)) == 1
    index.refresh()
    assert len(rebuilt(caplog)) == 2
    assert best(index) == expected
    files = {file.name for file in index._folder.glob("[!.]*")}
    assert files == {"texts.json", *read_sealed(index._folder / "texts.json")["files"]}


def test_errors_name_the_folder_and_the_fix(folder, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(module, "CACHE", blocked)
    said = refused(opened, folder)
    assert said.startswith(f"{blocked}/texts/")
    assert "the index of texts cannot be written (" in said
    assert said.endswith("make room there, or name another folder in HF_DATASETS_CACHE (or HF_HOME)")


def test_a_search_goes_on_while_another_thread_refreshes(folder):
    """A new searcher would read other documents at the places that the former one found."""
    index = TextIndex(FolderTexts(folder, "texts"))
    expected = index.best(QUESTIONS[0], 5)
    searcher, names = index._opened

    class Interrupted:
        def __getattr__(self, name):
            return getattr(searcher, name)

        def search(self, *arguments, **options):
            hits = searcher.search(*arguments, **options)
            (folder / "abbey.txt").unlink()
            index.refresh()
            return hits

    index._opened = (Interrupted(), names)
    assert index.best(QUESTIONS[0], 5) == expected
    assert "abbey.txt" not in {passage.name for passage in index.best(QUESTIONS[0], 5)}
