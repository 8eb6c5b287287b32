"""What requests and replies hold. Starts and ends count characters (Unicode code points)."""

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints, model_validator

MOST = 10  # answers
LONGEST = 1000  # characters of a question to ask
TOO_LONG = f"The question is too long: {LONGEST:,} characters at most."
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST)]
Share = Annotated[float, Field(ge=0, le=1)]


class Question(BaseModel, extra="forbid"):
    question: Text
    n_best: Annotated[int, Field(ge=1, le=MOST)] = 1


class Span(BaseModel):
    """Characters [start, end) of the text `text`, which is in this `version`; without a start no place."""

    text: str | None = None
    version: str | None = None
    start: Annotated[int, Field(ge=0)] | None = None
    end: int | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "Span":
        if self.start is not None:
            if self.end is None or self.end <= self.start:
                raise ValueError("end: must be greater than start: mark one word or more")
            if (self.text is None) != (self.version is None):
                raise ValueError("text and version: give those of the text in which the words are marked")
        return self

    def after(self, first: int) -> tuple[int, int] | None:
        """Where it is in what begins at character `first` of the text."""
        if self.start is None:
            return None
        return self.start - first, self.end - first


class Said(Span):
    """What the model said. The first answer to a question has a confidence."""

    answer: str
    probability: Share
    confidence: Share | None = None


class Place(Said):
    """An answer, quoted; passage_start is a place in the text, too."""

    page: int | None = None
    heading: str | None = None
    passage: str | None = None
    passage_start: int | None = None


class Given(BaseModel):
    """A verdict that was given: these words answer the question, or, without words, the texts do not say."""

    id: str
    question: str
    words: str | None
    time: str


class Reply(Place):
    """The best answer; "" if the question is declined, and `declined` says why. `remark`: what of a long question was
    not read. `judged`: verdicts on the same question, the latest first."""

    question: str
    declined: str | None
    remark: str | None
    others: list[Place]
    judged: list[Given]


class Verdict(Span, extra="forbid"):
    """The place answers the question. It is one of the context of the question `asked`, which is to be labelled, if
    that has a context. Without a start the texts do not say."""

    question: str
    asked: str | None = None
    said: Said | None = None
