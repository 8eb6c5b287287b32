"""What a recipe's section `data` chooses for questions with faults, and what becomes of such questions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from swep_ds.data.columns import Columns


@dataclass(frozen=True)
class Choices:
    """The fields of `data` with these names. Without a choice a question with a fault is an error."""

    unanswerable: Literal["error", "drop", "train"] = "error"
    repeated_answers: Literal["error", "first", "drop"] = "error"
    misplaced_answers: Literal["error", "find", "drop"] = "error"
    columns: Columns = ()
    # for rows with a document in place of a context: (its name, the question, the accepted answers) -> the row's
    # fields with the passage (context, title and, if there are any, answers), and a remark or "".
    # Raises InputError: no such document. LeftOut: it does not hold the answer.
    locate: Callable[[str, str, list[str]], tuple[dict[str, Any], str]] | None = None


STRICT = Choices()


class LeftOut(Exception):
    """A question that a choice leaves out. The message says why."""

    def __init__(self, reason: str, passage: str = ""):
        super().__init__(reason)
        self.passage = passage  # the nearest to what was looked for


@dataclass(frozen=True)
class Remark:
    """That a question was left out, moved or is doubtful, and why."""

    id: str | None  # None: it is about all of a file
    reason: str
    left_out: bool
    passage: str = ""  # in the document that the question names: where its answer is, or could be
