"""What requests and replies hold. Starts and ends count characters (Unicode code points)."""

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints, model_validator

MOST = 10  # answers
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]

Share = Annotated[float, Field(ge=0, le=1)]


class Question(BaseModel, extra="forbid"):
    question: Text
    n_best: Annotated[int, Field(ge=1, le=MOST)] = 1


class Place(BaseModel):
    """An answer; start, end and passage_start are those of the text `text`, which is in this `version`."""

    answer: str
    probability: float
    text: str | None
    start: int | None
    end: int | None
    page: int | None
    heading: str | None
    passage: str | None
    passage_start: int | None
    version: str | None


class Reply(Place):
    """The best answer; "" if the question is declined, and `declined` says why."""

    question: str
    confidence: float
    declined: str | None
    others: list[Place]


class Said(BaseModel):
    """What the model said, as in its reply."""

    answer: str
    probability: Share
    confidence: Share | None
    text: str | None
    start: int | None
    end: int | None
    version: str | None


class Verdict(BaseModel, extra="forbid"):
    """Characters [start, end) of a text answer the question, or of the context of the question `asked`, which is to be
    labelled. Without a start the texts do not say."""

    question: str
    asked: str | None = None
    text: str | None = None
    version: str | None = None
    start: Annotated[int, Field(ge=0)] | None = None
    end: int | None = None
    said: Said | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "Verdict":
        if self.start is not None:
            if self.end is None or self.end <= self.start:
                raise ValueError("end: must be greater than start: mark one word or more")
            if (self.text is None) != (self.version is None) or (self.asked is None and self.text is None):
                raise ValueError("text and version: give those of the text in which the words are marked")
        return self

    def span(self, first: int) -> tuple[int, int] | None:
        """Where it is in what begins at character `first` of the text."""
        return None if self.start is None else (self.start - first, self.end - first)
