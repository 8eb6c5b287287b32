"""One window of each question, the one that holds its answer, with the word of the text that each token is part of.

Windows are cut as in training (`swep_ds/data/features.py`), but an analysis looks at one of them only.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from swep_ds.data.features import Template, WindowSettings, context_windows, gap_before
from swep_ds.data.readers import Example
from swep_ds.errors import InputError


class TextWord(NamedTuple):
    """A whitespace word of the text, and the positions of the tokens that begin in it."""

    text: str
    question: bool
    answer: bool  # whether it is part of the answer
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


def answer_windows(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, settings: WindowSettings
) -> list[AnswerWindow]:
    """For each example the window that holds its whole answer; if several do, the one with most context around it.

    The answer is the training answer or, for an example read for evaluation, the first accepted text in the context.

    Raises:
        InputError: a context without the answer, or an answer that no window holds.
    """
    return list(map(_cutter(examples[0], tokenizer, settings), examples)) if examples else []


def windows_if_any(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, settings: WindowSettings
) -> Iterator[AnswerWindow | None]:
    """As `answer_windows`, lazily, with None for an example that has no such window: training leaves it out, too."""
    cut = _cutter(examples[0], tokenizer, settings) if examples else None
    for example in examples:
        try:
            yield cut(example)
        except InputError:
            yield None


def _cutter(
    example: Example, tokenizer: PreTrainedTokenizerFast, settings: WindowSettings
) -> Callable[[Example], AnswerWindow]:
    """A function from an example to its window. Any `example` shows where the tokenizer puts its special tokens."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    if settings.task == "generative":
        gap = gap_before(backend)
        template = Template.prompt(backend, gap)
    else:
        gap, template = "", Template.learn(backend, example)
    return partial(_window, backend=backend, template=template, gap=gap, settings=settings)


def _window(
    example: Example, backend: Tokenizer, template: Template, gap: str, settings: WindowSettings
) -> AnswerWindow:
    question, context = (
        backend.encode(gap + text, add_special_tokens=False) for text in (example.question, example.context)
    )
    question_spans, context_spans = (
        [(start - len(gap), end - len(gap)) for start, end in encoding.offsets] for encoding in (question, context)
    )
    question_length = min(len(question), settings.max_query_length)
    room = settings.max_length - template.specials - question_length
    answer = example.span or _find_answer(example)
    tokens = [k for k, (start, end) in enumerate(context_spans) if end > answer[0] and start < answer[1]]
    windows = context_windows(len(context_spans), room, min(settings.doc_stride, room))
    whole = [window for window in windows if tokens and window.begin <= tokens[0] and tokens[-1] < window.end]
    if not whole:
        raise InputError(
            f"question {example.id!r}: no window of {settings.max_length} tokens holds its answer: name another"
        )
    begin, end, *_ = max(whole, key=lambda window: min(tokens[0] - window.begin, window.end - 1 - tokens[-1]))
    before, between, after = (part.tolist() for part in template[:3])
    first = len(before) + question_length + len(between)  # position of the context's first token
    words = _words(example.question, question_spans[:question_length], len(before), question=True)
    words += _words(example.context, context_spans[begin:end], first, question=False, answer=answer)
    return AnswerWindow(
        example,
        [*before, *question.ids[:question_length], *between, *context.ids[begin:end], *after],
        template.types.repeat(template.repeats(question_length, end - begin)).tolist(),
        words,
        (tokens[0] + first - begin, tokens[-1] + first - begin),
        backend.encode(example.context[slice(*answer)]).ids,
    )


def _find_answer(example: Example) -> tuple[int, int]:
    for answer in example.answers:
        if answer and (start := example.context.find(answer)) >= 0:
            return start, start + len(answer)
    answers = ", ".join(example.answers)[:80]
    raise InputError(f"question {example.id!r}: its context holds none of its answers ({answers}): name another")


def _words(
    text: str, spans: list[tuple[int, int]], first: int, *, question: bool, answer: tuple[int, int] = (0, 0)
) -> list[TextWord]:
    """Whitespace words with their tokens. A token belongs to the first word that it overlaps; a blank one to none.

    Args:
        spans: characters [start, end) of the tokens, whose positions are `first` and following.
    """
    words, token = [], 0
    for match in re.finditer(r"\S+", text):
        positions = []
        while token < len(spans) and spans[token][0] < match.end():
            if spans[token][1] > match.start():
                positions.append(first + token)
            token += 1
        if positions:
            in_answer = match.end() > answer[0] and match.start() < answer[1]
            words.append(TextWord(match.group(), question, in_answer, positions))
    return words
