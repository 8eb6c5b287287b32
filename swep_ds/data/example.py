"""A question about a context: what readers give, and what everything after them takes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one context.

    `answers` are the accepted texts for scoring; none = the context does not answer the question, or the test set
    withholds its answers (`withheld`). `span` is the training answer as characters [start, end) of `context`, None
    without an answer or when read for evaluation. `article` is its title, or else its context.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    span: tuple[int, int] | None
    article: str
    source: int = 0  # for training questions: the number of their source in a mix
    withheld: bool = False
