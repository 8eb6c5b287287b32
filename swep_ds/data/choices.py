"""What a recipe's section `data` chooses for questions with faults, and what becomes of such questions."""

from dataclasses import dataclass
from typing import Literal

from swep_ds.data.columns import Columns


@dataclass(frozen=True)
class Choices:
    """The fields of `data` with these names. Without a choice a question with a fault is an error."""

    unanswerable: Literal["error", "drop", "train"] = "error"
    repeated_answers: Literal["error", "first", "drop"] = "error"
    misplaced_answers: Literal["error", "find", "drop"] = "error"
    columns: Columns = ()


STRICT = Choices()


class LeftOut(Exception):
    """A question that a choice leaves out. The message says why."""


@dataclass(frozen=True)
class Remark:
    """That a question was left out, moved or is doubtful, and why."""

    id: str | None  # None: it is about all of a file
    reason: str
    left_out: bool
