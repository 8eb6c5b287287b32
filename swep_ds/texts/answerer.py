"""Asks many texts: BM25 ranks their passages, and the model reads the best ones.

A passage is `WORDS` words of a text, and the next one begins `STEP` words later (Wang et al., EMNLP 2019). Chosen
passages that overlap are read as one: no span competes with itself. Its windows may be several; the lowest null counts.

Probabilities among the spans of one passage do not say whether it holds an answer. Answers are therefore compared by
log odds: of the answer against no answer in its passage (a span's logits less those of the null position, or log
P(answer) - log P(empty answer)). A probability is the share of exp(that score) over all answers of all passages and, if
the model may decline, no answer, whose score is 0. BM25's score takes no part: docs/measurements/cpu-texts.md.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from swep_ds.common.errors import InputError
from swep_ds.data.answers import is_blank, normalize_answer
from swep_ds.data.example import Example
from swep_ds.evaluation.spans import Answer, with_confidence, with_null
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex
from swep_ds.texts.passages import Passage, Piece
from swep_ds.texts.search import Search, UserSearch

Texts = Mapping[str, str] | FolderTexts | TextIndex | Search
log = logging.getLogger(__name__)

QUESTIONS_OF_TEXTS_AT_A_TIME = 128  # whose passages are sorted by length and read together
FROM_EACH = 50  # best answers of what is read as one: those below take no part in n_best and confidence


class TextsAnswerer:
    """Asks a model about many texts, through a `QuestionAnswerer`, whose `over` returns it.

    "" is the first reply where the model declines: where the null odds of every passage are above its threshold, or the
    confidence in the best answer is below `min_confidence`. The first reply's `confidence` sums the probabilities of
    all answers that say the same, up to SQuAD's normalisation: a calibrator was fitted to questions about one text.
    Raises InputError: as `TextIndex`; or a generative model never declines.
    """

    def __init__(self, answerer, texts: Texts, count: int):
        if answerer.generative and answerer.null_threshold is None:
            raise InputError(
                f"{answerer.name} generates and never declines: its answers to texts cannot be compared: give a null "
                "threshold, such as 0, if it was trained with unanswerable questions, or an extractive model"
            )
        if answerer.null_threshold is None:
            text = "its odds against no answer were never trained: take one trained with unanswerable questions"
            log.warning("%s has no null threshold: %s", answerer.name, text)
        self._answerer = answerer
        self.index = texts  # the `refresh` of a `TextIndex` indexes what has changed since
        if callable(texts):
            self.index = UserSearch(texts)
        elif not isinstance(texts, TextIndex):
            self.index = TextIndex(texts)
        self._count = count

    def __call__(self, question: str, n_best: int = 1) -> list[Answer]:
        """At most `n_best` answers, best first, that do not overlap; only "", with score None, where no passage shares
        a word with the question. Raises InputError: it is empty; or as `QuestionAnswerer.check`."""
        [replies] = self.answer([question], n_best)
        return replies

    def answer(self, questions: Iterable[str], n_best: int = 1) -> Iterator[list[Answer]]:
        """As `__call__` for each question, in order, `QUESTIONS_OF_TEXTS_AT_A_TIME` together."""
        return (replies for replies, _ in self.search_and_read(questions, n_best))

    def search_and_read(self, questions: Iterable[str], n_best: int = 1) -> Iterator[tuple[list[Answer], list[Piece]]]:
        """As `answer`, with the pieces that were read for each question."""
        numbered = enumerate(questions, 1)
        while chunk := list(islice(numbered, QUESTIONS_OF_TEXTS_AT_A_TIME)):
            pieces_of, examples = [], []
            for number, question in chunk:
                if is_blank(question):
                    raise InputError(f"question {number} is empty: give at least one word")
                pieces_of.append(self.index.pieces(question, self._count))
                for piece, text in pieces_of[-1]:
                    examples.append(Example(str(len(examples)), question, text, (), None, piece.name))
            self._answerer.check(examples, n_best)
            readings = self._answerer.read(examples, FROM_EACH, null=True)
            for pieces in pieces_of:
                replies = self.compare([(piece, *next(readings)) for piece, _ in pieces], n_best)
                yield [self._placed(reply) for reply in replies], pieces

    def _placed(self, reply: Answer) -> Answer:
        """With its page and heading, if it is a place in a folder's document."""
        if reply.start is None or not isinstance(self.index.texts, FolderTexts):
            return reply
        document = self.index.texts.document(reply.name)
        return replace(reply, page=document.page(reply.start), heading=document.heading(reply.start))

    def compare(self, read: list[tuple[Passage, list[Answer], Answer, float]], n_best: int) -> list[Answer]:
        """The replies to a question. `read`: each piece that was read, its best answers, its null answer, and the log
        of the sum of exp(score) over all of its answers but the null answer."""
        if not read:
            return [Answer("", None, None, score=None, probability=0.0, confidence=0.0)]
        threshold = self._answerer.null_threshold
        log_total = -math.inf if threshold is None else 0.0  # log of the sum of exp(score) over answers, and over none
        ranked = []
        for piece, answers, null, log_sum in read:
            log_total = float(np.logaddexp(log_total, log_sum - null.score))
            ranked += [(answer.score - null.score, piece, answer) for answer in answers]
        ranked.sort(key=lambda each: -each[0])
        ranked = [(math.exp(min(0, score - log_total)), score, piece, answer) for score, piece, answer in ranked]
        odds = min(null.odds for _, _, null, _ in read)
        null = Answer("", None, None, 0.0, 0.0 if threshold is None else math.exp(-log_total), odds=odds)
        replies = with_null(_apart(ranked, n_best), null, threshold) or [null]
        confidence = null.probability
        if replies[0] is not null:
            said = normalize_answer(replies[0].text)
            confidence = min(1.0, sum(p for p, *_, answer in ranked if normalize_answer(answer.text) == said))
        return with_confidence(replies, null, confidence, self._answerer.min_confidence, n_best)


def _apart(ranked: list[tuple[float, float, Passage, Answer]], count: int) -> list[Answer]:
    """The first `count` answers that overlap no earlier one, of (probability, score, piece, answer) each."""
    kept: list[Answer] = []
    for probability, score, piece, answer in ranked:
        start, end = answer.start, answer.end
        if start is not None:
            start, end = piece.begin + start, piece.begin + end
        same_text = [better for better in kept if better.name == piece.name and better.start is not None]
        if len(kept) < count and all(end <= it.start or it.end <= start for it in same_text):
            kept.append(Answer(answer.text, start, end, score, probability, name=piece.name))
    return kept
