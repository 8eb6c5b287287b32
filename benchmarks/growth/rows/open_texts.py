"""Opening the index of a folder of texts of which none has changed, until the first question is searched."""

from pathlib import Path

from benchmarks.growth.made_texts import questions, write_texts
from swep_ds.texts import index
from swep_ds.texts.folder import FolderTexts

SIZES = (1_000, 4_000)
LARGE = (10_000, 100_000)
UNIT = "texts of 300 words"
BASELINE = "tantivy alone, without a look at the texts"
asked: list[str] = []  # by `warm_up`


def prepare(size: int, folder: Path) -> None:
    write_texts(folder / "texts", size)
    index.CACHE = folder / "cache"
    index.TextIndex(FolderTexts(folder / "texts", "texts"))


def warm_up(folder: Path) -> None:
    import tantivy  # noqa: F401

    index.CACHE = folder / "cache"
    asked.extend(questions(folder / "texts", 1))


def ours(size: int, folder: Path) -> None:
    index.TextIndex(FolderTexts(folder / "texts", "texts")).best(asked[0], 10)


def baseline(size: int, folder: Path) -> None:
    import tantivy

    [kept] = [path for path in (folder / "cache" / "texts").iterdir() if path.is_dir()]
    opened = tantivy.Index.open(str(kept))
    opened.searcher().search(opened.parse_query(asked[0], ["words"]), 10)
