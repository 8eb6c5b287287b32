"""One window of each question, the one that holds its answer, with the word of the text that each token is part of.

Windows are cut as in training (`swep_ds/data/windows.py`), but an analysis looks at one of them only.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from swep_ds.common.errors import InputError
from swep_ds.data.answers import occurrences
from swep_ds.data.example import Example
from swep_ds.data.tokens import TextTokens
from swep_ds.data.windows import WindowCutter, WindowSettings


class TextWord(NamedTuple):
    """A whitespace word of the text, and the positions of the tokens that begin in it."""

    text: str
    part: str  # "question", "context" or "answer"
    positions: list[int]


class AnswerWindow(NamedTuple):
    """A window as the model reads it.

    words: those of the question, as far as it is not cut, then those of this part of the context.
    answer: positions of the answer's first and last token.
    target_ids: the answer's tokens with special ones, for models that generate answers.
    """

    example: Example
    input_ids: list[int]
    token_type_ids: list[int]
    words: list[TextWord]
    answer: tuple[int, int]
    target_ids: list[int]

    @property
    def positions(self) -> list[int]:
        """Those of all words' tokens."""
        return [position for word in self.words for position in word.positions]


def answer_windows(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, settings: WindowSettings
) -> list[AnswerWindow]:
    """For each example the window that holds its whole answer; if several do, the one with most context around it.

    The answer is the training answer or, for an example read for evaluation, the first accepted text in the context.

    Raises InputError: a question without an answer, a context without it, or an answer that no window holds.
    """
    cutter = WindowCutter(tokenizer, settings, examples[0]) if examples else None
    return [_window(example, cutter) for example in examples]


def windows_if_any(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, settings: WindowSettings
) -> Iterator[AnswerWindow | None]:
    """As `answer_windows`, lazily, with None for an example that has no such window: training leaves it out, too."""
    cutter = WindowCutter(tokenizer, settings, examples[0]) if examples else None
    for example in examples:
        try:
            yield _window(example, cutter)
        except InputError:
            yield None


def _window(example: Example, cutter: WindowCutter) -> AnswerWindow:
    settings, template = cutter.settings, cutter.template
    question, context = cutter.encode(example.question), cutter.encode(example.context)
    question = TextTokens(*(column[: settings.max_query_length] for column in question))
    span = example.span or _find_answer(example)
    first, last = context.answer_tokens(span)
    windows = cutter.windows(len(question.ids), len(context.ids))
    whole = [window for window in windows if window.begin <= first <= last < window.end]
    if not whole:
        raise InputError(
            f"question {example.id!r}: no window of {settings.max_length} tokens holds its answer: name another"
        )
    begin, end, *_ = max(whole, key=lambda window: min(first - window.begin, window.end - 1 - last))
    shift = template.context_begin(len(question.ids)) - begin  # from a token of the context to its position
    words = []
    for text, positions in _positions_by_word(example.question, question, len(template.prefix)):
        words.append(TextWord(text.group(), "question", positions))
    shown = TextTokens(*(column[begin:end] for column in context))
    for text, positions in _positions_by_word(example.context, shown, begin + shift):
        in_answer = text.end() > span[0] and text.start() < span[1]
        words.append(TextWord(text.group(), "answer" if in_answer else "context", positions))
    return AnswerWindow(
        example,
        template.input_ids(question.ids, shown.ids).tolist(),
        template.type_ids(len(question.ids), end - begin).tolist(),
        words,
        (first + shift, last + shift),
        cutter.backend.encode(example.context[slice(*span)]).ids,
    )


def _find_answer(example: Example) -> tuple[int, int]:
    if not example.answers:
        raise InputError(f"question {example.id!r}: is unanswerable, so that no window holds its answer: name another")
    # test data is read without its offsets
    for answer in filter(None, example.answers):
        start = next(occurrences(example.context, answer), example.context.find(answer))
        if start >= 0:
            return start, start + len(answer)
    answers = ", ".join(example.answers)[:80]
    raise InputError(f"question {example.id!r}: its context holds none of its answers ({answers}): name another")


def _positions_by_word(text: str, tokens: TextTokens, first: int) -> Iterator[tuple[re.Match, list[int]]]:
    """Whitespace words of the text with the positions of their tokens, which are `first` and following.

    A token belongs to the first word that it overlaps; a blank one to none.
    """
    token = 0
    for word in re.finditer(r"\S+", text):
        positions = []
        while token < len(tokens.ids) and tokens.starts[token] < word.end():
            if tokens.ends[token] > word.start():
                positions.append(first + token)
            token += 1
        if positions:
            yield word, positions
