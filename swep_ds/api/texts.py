"""Asks many texts: BM25 ranks their passages, and the model reads the best ones.

A passage is `WORDS` words of a text, and the next one begins `STEP` words later (Wang et al., EMNLP 2019). Chosen
passages that overlap are read as one: no span competes with itself. What is read may take several windows, and its null
score is the lowest of them.

A probability among the spans of one passage says nothing about whether the passage holds an answer. Answers are
therefore compared by log odds: of the answer against no answer in its passage (a span's logits less those of the null
position, or log P(answer) - log P(empty answer)), less `weight` for each point by which BM25 scores the passage below
the best one. A probability is the share of exp(that score) over all answers of all passages and, if the model may
decline, no answer, whose score is 0. A model trained without unanswerable questions knows its null position only from
windows that miss the answer of a long text.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from swep_ds.common.errors import InputError
from swep_ds.data.answers import is_blank
from swep_ds.data.example import Example
from swep_ds.evaluation.spans import Answer, with_null

if TYPE_CHECKING:
    from swep_ds.api.answerer import QuestionAnswerer

WORDS = 100  # of a passage
STEP = 50  # words from one passage's first word to the next one's
RETRIEVAL_WEIGHT = 1.0  # of BM25's score next to the model's log odds
# letters and digits between others; each character of Chinese and Japanese, which put no space between words
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")


class Passage(NamedTuple):
    name: str  # of its text, of which it is characters [begin, end)
    begin: int
    end: int
    score: float = 0.0  # BM25's, for a question


@dataclass(frozen=True, slots=True)
class TextAnswer(Answer):
    """An answer in a text, of which `start` and `end` are characters. Scores are comparable across texts."""

    name: str | None = None  # of the text; None for the null answer


class Passages:
    """The passages of texts, by name, and their BM25 index. Raises InputError: no bm25s, or no text has a word."""

    def __init__(self, texts: Mapping[str, str]):
        try:
            import bm25s
        except ImportError:
            raise InputError("asking many texts needs bm25s: pip install 'swep-ds[texts]'") from None
        self.passages: list[Passage] = []
        words_of_passages = []
        for name, text in texts.items():
            places = [match.span() for match in WORD.finditer(text)]
            if not places:
                continue
            for first in range(0, max(1, len(places) - WORDS + STEP), STEP):
                words = places[first : first + WORDS]
                begin = words[0][0] if first else 0
                end = places[first + WORDS][0] if first + WORDS < len(places) else len(text)  # with a full stop
                self.passages.append(Passage(name, begin, end))
                words_of_passages.append([text[start:stop].casefold() for start, stop in words])
        if not self.passages:
            raise InputError("texts: none of them has a word: give at least one")
        self._index = bm25s.BM25()
        self._index.index(words_of_passages, show_progress=False)

    def best(self, question: str, count: int) -> list[Passage]:
        """The `count` best passages for a question, best first, of those that share a word with it."""
        words = [word.casefold() for word in WORD.findall(question)]
        if not words:
            return []
        score = self._index.get_scores(words)
        best = np.argsort(-score, kind="stable")[:count]
        return [self.passages[number]._replace(score=float(score[number])) for number in best[score[best] > 0]]


def joined(passages: list[Passage]) -> list[Passage]:
    """The passages in the order of texts, those that overlap or touch as one, with the best score of them."""
    pieces: list[Passage] = []
    for passage in sorted(passages):
        if pieces and pieces[-1].name == passage.name and passage.begin <= pieces[-1].end:
            last = pieces[-1]
            pieces[-1] = last._replace(end=max(last.end, passage.end), score=max(last.score, passage.score))
        else:
            pieces.append(passage)
    return pieces


class Reading(NamedTuple):
    """What the model found in a piece of a text."""

    piece: Passage
    answers: list[Answer]  # the best, best first
    null: Answer
    log_sum: float  # log of the sum of exp(score) over all its answers, without the null answer


class TextsAnswerer:
    """Asks a model about many texts, as `QuestionAnswerer.over` returns it.

    "" is the first reply where the model declines: where the null odds of every passage are above its threshold, or the
    best answer's probability is below `min_confidence`. The first reply's `confidence` is its probability: a calibrator
    was fitted to questions about one text. Raises InputError: as `Passages`; or a generative model never declines.
    """

    def __init__(
        self,
        answerer: "QuestionAnswerer",
        texts: Mapping[str, str],
        count: int,
        weight: float = RETRIEVAL_WEIGHT,
    ):
        if answerer.generative and answerer.null_threshold is None:
            raise InputError(
                f"{answerer.name} generates and never declines: its answers to texts cannot be compared: give a null "
                "threshold, such as 0, if it was trained with unanswerable questions, or an extractive model"
            )
        self.weight = weight
        self._answerer = answerer
        self._texts = texts
        self._passages = Passages(texts)
        self._count = count

    def __call__(self, question: str, n_best: int = 1) -> list[TextAnswer]:
        """The `n_best` best answers, best first; only "" where no passage shares a word with the question. Raises
        InputError: the question is empty; or as `QuestionAnswerer.check`."""
        return self.replies(self.read(question, n_best), n_best)

    def read(self, question: str, n_best: int = 1) -> list[Reading]:
        """What the model finds for a question in the best passages, whatever `weight`."""
        if is_blank(question):
            raise InputError("the question is empty: give at least one word")
        pieces = joined(self._passages.best(question, self._count))
        if not pieces:
            return []
        examples = []
        for number, (name, begin, end, _) in enumerate(pieces):
            examples.append(Example(str(number), question, self._texts[name][begin:end], (), None, name))
        self._answerer.check(examples, n_best)
        decoder = self._answerer.read(examples, n_best, null=True)
        found = (decoder.n_best(n_best), decoder.nulls(), decoder.log_sums())
        return [Reading(piece, *(each[str(number)] for each in found)) for number, piece in enumerate(pieces)]

    def replies(self, readings: list[Reading], n_best: int = 1) -> list[TextAnswer]:
        """As `__call__`, from what `read` returned."""
        if not readings:
            return [TextAnswer("", None, None, 0.0, 1.0, confidence=1.0)]
        threshold = self._answerer.null_threshold
        log_total = -math.inf if threshold is None else 0.0  # log of the sum of exp(score) over answers, and over none
        highest = max(reading.piece.score for reading in readings)
        odds = []
        ranked = []
        for piece, answers, null, log_sum in readings:
            discount = self.weight * (highest - piece.score)
            odds.append(null.odds + discount)
            log_total = float(np.logaddexp(log_total, log_sum - null.score - discount))
            ranked += [_in_text(answer, piece, answer.score - null.score - discount) for answer in answers]
        ranked = [replace(answer, probability=math.exp(min(0, answer.score - log_total))) for answer in ranked]
        ranked.sort(key=lambda answer: -answer.score)
        probability = 0.0 if threshold is None else math.exp(-log_total)
        null = TextAnswer("", None, None, 0.0, probability, odds=min(odds))
        replies = with_null(ranked, null, threshold) or [null]
        confidence = replies[0].probability
        if confidence < self._answerer.min_confidence and replies[0].text:
            replies = [null, *ranked]
        replies[0] = replace(replies[0], confidence=confidence)
        return replies[:n_best]


def _in_text(answer: Answer, piece: Passage, score: float) -> TextAnswer:
    if answer.start is None:  # generated
        return TextAnswer(answer.text, None, None, score, answer.probability, name=piece.name)
    place = (piece.begin + answer.start, piece.begin + answer.end)
    return TextAnswer(answer.text, *place, score, answer.probability, name=piece.name)
