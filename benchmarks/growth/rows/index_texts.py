"""Indexing a folder of texts for the first time."""

import shutil
from pathlib import Path

from benchmarks.growth.made_texts import write_texts
from swep_ds.texts import index
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.words import WORD

SIZES = (1_000, 4_000)
LARGE = (10_000, 100_000)
UNIT = "texts of 300 words"
BASELINE = "bm25s alone (pip install bm25s)"


def prepare(size: int, folder: Path) -> None:
    write_texts(folder / "texts", size)


def warm_up(folder: Path) -> None:
    import bm25s  # noqa: F401
    import tantivy  # noqa: F401

    shutil.rmtree(folder / "cache", ignore_errors=True)  # an earlier turn has kept its index


def ours(size: int, folder: Path) -> None:
    index.CACHE = folder / "cache"
    index.TextIndex(FolderTexts(folder / "texts", "texts"))


def baseline(size: int, folder: Path) -> None:
    import bm25s

    passages = []
    for file in sorted((folder / "texts").rglob("*.txt")):
        words = WORD.findall(file.read_text(encoding="utf-8").casefold())
        passages += [words[first : first + 100] for first in range(0, max(1, len(words) - 50), 50)]
    bm25s.BM25().index(passages, show_progress=False)
