"""Folders of made-up texts, and questions about them, for the rows of the index of texts."""

import random
from itertools import accumulate
from pathlib import Path

WORDS = 300  # per text
VOCABULARY = 50_000
SYLLABLES = [first + vowel for first in "bdfgklmnprstv" for vowel in "aeiou"]


def vocabulary(rng: random.Random) -> list[str]:
    """Words that begin with letters of the alphabet: frequent ones are short."""
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        syllables = min(6, 1 + len(str(len(words))) // 2 + rng.randrange(2))
        words["".join(rng.choices(SYLLABLES, k=syllables)) + rng.choice(["", "", "n", "s", "ed", "ing"])] = None
    return list(words)


def write_texts(folder: Path, count: int) -> None:
    """`count` texts of `WORDS` words of Zipf's frequencies, a hundred in a subfolder."""
    rng = random.Random(0)
    words = vocabulary(rng)
    shares = list(accumulate(1 / (rank + 3) for rank in range(VOCABULARY)))
    for number in range(count):
        file = folder / f"{number // 100:05d}" / f"{number:07d}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(" ".join(rng.choices(words, cum_weights=shares, k=WORDS)), encoding="utf-8")


def questions(folder: Path, count: int) -> list[str]:
    """Each is ten words of a text."""
    rng = random.Random(1)
    files = sorted(folder.rglob("*.txt"))
    asked = []
    for file in rng.choices(files, k=count):
        first = rng.randrange(WORDS - 10)
        asked.append(" ".join(file.read_text(encoding="utf-8").split()[first : first + 10]))
    return asked
