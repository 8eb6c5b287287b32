"""Questions about one long text: windows are cut and read in batches, longest first; no model runs."""

import random
from pathlib import Path

import numpy as np

SIZES = (500, 2_000)
LARGE = (2_000, 8_000)
UNIT = "words that 512 questions are about"
BASELINE = "the bare tokenizer cutting the same windows, and NumPy padding them"
QUESTIONS = 512
BATCH = 32


def prepare(size: int, folder: Path) -> None:
    words = [f"{first}{second}" for first in "bdfgklmn" for second in ("aro", "elin", "ivo", "une")]
    text = " ".join(random.Random(0).choices(words, k=size))
    (folder / "text.txt").write_text(text, encoding="utf-8")


def questions() -> list[str]:
    return [f"Who made number {number}?" for number in range(QUESTIONS)]


def load() -> tuple:
    from swep_ds.data.windows import WindowCutter, WindowSettings
    from swep_ds.models.hub import load_tokenizer

    tokenizer = load_tokenizer("quickstart:encoder")
    return tokenizer, WindowCutter(tokenizer, WindowSettings())


def warm_up(folder: Path) -> None:
    import swep_ds.evaluation.evaluate
    import swep_ds.models.hub  # noqa: F401


def ours(size: int, folder: Path) -> None:
    import torch

    from swep_ds.data.example import Example
    from swep_ds.data.features import windows_to_answer
    from swep_ds.evaluation.evaluate import decode_alone

    class Nothing:
        """A decoder that drops what it is given."""

        def add(self, columns, *outputs) -> None:
            pass

    tokenizer, cutter = load()
    text = (folder / "text.txt").read_text(encoding="utf-8")
    examples = [Example(str(n), question, text, (), None, text) for n, question in enumerate(questions())]
    windows, _ = windows_to_answer(examples, cutter)
    torch.set_num_threads(1)
    decode_alone(lambda batch: (), Nothing(), windows, tokenizer, BATCH)


def baseline(size: int, folder: Path) -> None:
    tokenizer, _ = load()
    text = (folder / "text.txt").read_text(encoding="utf-8")
    windows = []
    for first in range(0, QUESTIONS, BATCH):  # all at once take 2.6 GB for 2,000 words
        encoded = tokenizer(
            questions()[first : first + BATCH],
            [text] * BATCH,
            truncation="only_second",
            max_length=384,
            stride=384 - 128 - 3 - 8,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        windows += [np.array(ids, np.int32) for ids in encoded["input_ids"]]
    windows.sort(key=len, reverse=True)
    for first in range(0, len(windows), BATCH):
        batch = windows[first : first + BATCH]
        padded = np.zeros((len(batch), len(batch[0])), np.int64)
        for row, window in zip(padded, batch, strict=True):
            row[: len(window)] = window
