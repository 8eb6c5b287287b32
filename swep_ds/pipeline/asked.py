"""Which questions a model was trained on, and which its run held out: kept beside the model, as checksums.

A question is known by its words and those of its first answer, so that it is recognised in another file, too.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import user_path
from swep_ds.data.answers import normalize_answer
from swep_ds.data.example import Example
from swep_ds.models.folders import resolve_model

ASKED = "questions.npz"  # in a model's folder: of each kind the sorted numbers of its questions
KINDS = ("trained", "held_out")
HELD_OUT_ROWS = "held_out_rows"  # beside them: the `row_numbers` of the questions held out


def numbers(examples: Iterable[Example]) -> np.ndarray:
    """The number of each question [Q], uint64."""
    digests = []
    for example in examples:
        words = [normalize_answer(text) for text in (example.question, *example.answers[:1])]
        digests.append(xxh3_64_intdigest(repr(words).encode()))  # `repr` writes half of a surrogate pair as text
    return np.array(digests, np.uint64)


def row_numbers(examples: Iterable[Example]) -> np.ndarray:
    """As `numbers`, of all that a question holds: another row with the same words has another one."""
    rows = [(each.id, each.question, each.context, each.answers, each.article) for each in examples]
    return np.array([xxh3_64_intdigest(repr(row).encode()) for row in rows], np.uint64)


def write_asked(folder: Path, asked: dict[str, np.ndarray]) -> None:
    """`asked`: by kind of `KINDS`, the numbers of the questions, and maybe `HELD_OUT_ROWS`."""
    np.savez(folder / ASKED, **{kind: np.unique(numbers_Q) for kind, numbers_Q in asked.items()})


def read_asked(folder: str | Path, kind: str) -> np.ndarray:
    """The numbers of a model's questions of a kind of `KINDS`, or its `HELD_OUT_ROWS`, which soups and models of
    earlier versions lack; none for a model that this package did not train. Raises InputError: the file is damaged."""
    file = Path(folder) / ASKED
    none = np.array([], np.uint64)
    if not file.is_file():
        return none
    with as_input_error(f"{file}: damaged", "export the model again, or remove the file"), np.load(file) as asked:
        if kind == HELD_OUT_ROWS:
            return asked.get(kind, none)
        return asked[kind]


def held_out_by(run: str, examples: list[Example]) -> np.ndarray:
    """Whether a finished run held out each question [Q]: the same rows, or if some of them are not among the examples,
    those with the same words. Raises InputError: it held out none."""
    folder = user_path(run)
    held_out = read_asked(folder / "model", "held_out")
    if not len(held_out):
        raise InputError(
            f"data.holdout_of {run}: no run with held-out questions ({folder / 'model' / ASKED}): name one"
        )
    rows = read_asked(folder / "model", HELD_OUT_ROWS)
    again_Q = np.isin(row_numbers(examples), rows)
    if len(rows) and again_Q.sum() == len(rows):
        return again_Q
    return np.isin(numbers(examples), held_out)


def apart(tests: dict[str, list[Example]], model: str) -> tuple[dict[str, list[Example]], dict[str, list[Example]]]:
    """The questions of each test set that this model was not trained on, and those that it was."""
    trained = read_asked(resolve_model(model), "trained")
    sides: tuple[dict[str, list[Example]], dict[str, list[Example]]] = ({}, {})
    for name, examples in tests.items():
        for example, is_known in zip(examples, np.isin(numbers(examples), trained), strict=True):
            sides[int(is_known)].setdefault(name, []).append(example)
    return sides
