"""Searching an index of texts: 200 questions of ten words."""

from pathlib import Path

from benchmarks.growth.made_texts import questions, write_texts
from swep_ds.texts import index
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.words import WORD

SIZES = (1_000, 4_000)
LARGE = (10_000, 100_000)
UNIT = "texts of 300 words"
BASELINE = "bm25s alone (pip install bm25s)"
opened = {}  # by side what `warm_up` has made, which is not counted


def prepare(size: int, folder: Path) -> None:
    write_texts(folder / "texts", size)


def warm_up(folder: Path) -> None:
    import bm25s

    index.CACHE = folder / "cache"
    opened["ours"] = index.TextIndex(FolderTexts(folder / "texts", "texts"))
    opened["questions"] = questions(folder / "texts", 200)
    passages = []
    for file in sorted((folder / "texts").rglob("*.txt")):
        words = WORD.findall(file.read_text(encoding="utf-8").casefold())
        passages += [words[first : first + 100] for first in range(0, max(1, len(words) - 50), 50)]
    opened["baseline"] = bm25s.BM25()
    opened["baseline"].index(passages, show_progress=False)


def ours(size: int, folder: Path) -> None:
    for question in opened["questions"]:
        opened["ours"].best(question, 10)


def baseline(size: int, folder: Path) -> None:
    for question in opened["questions"]:
        words = WORD.findall(question.casefold())
        (-opened["baseline"].get_scores(words)).argsort(kind="stable")[:10]
