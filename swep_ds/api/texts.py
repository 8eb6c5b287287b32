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
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from swep_ds.common.errors import InputError
from swep_ds.data.answers import is_blank, normalize_answer
from swep_ds.data.example import Example
from swep_ds.data.places import HANGUL, UNSPACED
from swep_ds.data.windows import is_mark
from swep_ds.evaluation.spans import Answer, with_null

log = logging.getLogger(__name__)

WORDS = 100  # of a passage
STEP = 50  # words from one passage's first word to the next one's
QUESTIONS_AT_A_TIME = 128  # whose passages are sorted by length and read together
FROM_EACH = 50  # best answers of what is read as one: those below take no part in n_best and confidence
_MARKS = "".join(filter(is_mark, map(chr, range(0x10000))))
# a run of letters and digits with their marks, such as accents; in a script without spaces, and in
# Korean, whose words have particles, each character is a word
_SPLIT = UNSPACED + HANGUL
WORD = re.compile(rf"(?=\w)[{_SPLIT}][{_MARKS}]*|[^\W_{_SPLIT}]+(?:[{_MARKS}]+[^\W_{_SPLIT}]*)*")


class Passage(NamedTuple):
    name: str  # of its text, of which it is characters [begin, end)
    begin: int
    end: int


class Passages:
    """The passages of texts, by name, and their BM25 index. Raises InputError: no bm25s, or no text has a word."""

    def __init__(self, texts: Mapping[str, str]):
        try:
            import bm25s
        except ImportError:
            raise InputError("asking many texts needs bm25s: pip install '.[texts]' in a checkout") from None
        self.passages: list[Passage] = []
        words_of_passages = []
        for name, text in texts.items():
            places = [match.span() for match in WORD.finditer(text)]
            if not places:
                continue
            for first in range(0, max(1, len(places) - WORDS + STEP), STEP):
                words = places[first : first + WORDS]
                begin = words[0][0] if first else 0
                # with what follows its last word, such as a full stop
                end = places[first + WORDS][0] if first + WORDS < len(places) else len(text)
                self.passages.append(Passage(name, begin, end))
                words_of_passages.append([unicodedata.normalize("NFC", text[a:b].casefold()) for a, b in words])
        if not self.passages:
            raise InputError("texts: none of them has a word: give at least one")
        self._index = bm25s.BM25()
        self._index.index(words_of_passages, show_progress=False)

    def best(self, question: str, count: int) -> list[Passage]:
        """The `count` best passages for a question, best first, of those that share a word with it."""
        words = WORD.findall(unicodedata.normalize("NFC", question.casefold()))
        if not words:
            return []
        score = self._index.get_scores(words)
        best = np.argsort(-score, kind="stable")[:count]
        return [self.passages[number] for number in best[score[best] > 0]]


def joined(passages: list[Passage]) -> list[Passage]:
    """The passages in the order of texts, those that overlap or touch as one."""
    pieces: list[Passage] = []
    for passage in sorted(passages):
        if pieces and pieces[-1].name == passage.name and passage.begin <= pieces[-1].end:
            pieces[-1] = pieces[-1]._replace(end=max(pieces[-1].end, passage.end))
        else:
            pieces.append(passage)
    return pieces


class TextsAnswerer:
    """Asks a model about many texts, through a `QuestionAnswerer`, whose `over` returns it.

    "" is the first reply where the model declines: where the null odds of every passage are above its threshold, or the
    confidence in the best answer is below `min_confidence`. The first reply's `confidence` sums the probabilities of
    all answers that say the same, up to SQuAD's normalisation: a calibrator was fitted to questions about one text.
    Raises InputError: as `Passages`; or a generative model never declines.
    """

    def __init__(self, answerer, texts: Mapping[str, str], count: int):
        if answerer.generative and answerer.null_threshold is None:
            raise InputError(
                f"{answerer.name} generates and never declines: its answers to texts cannot be compared: give a null "
                "threshold, such as 0, if it was trained with unanswerable questions, or an extractive model"
            )
        if answerer.null_threshold is None:
            text = "its odds against no answer were never trained: take one trained with unanswerable questions"
            log.warning("%s has no null threshold: %s", answerer.name, text)
        self._answerer = answerer
        self._texts = texts
        self._passages = Passages(texts)
        self._count = count

    def __call__(self, question: str, n_best: int = 1) -> list[Answer]:
        """At most `n_best` answers, best first, that do not overlap; only "", with score None, where no passage shares
        a word with the question. Raises InputError: it is empty; or as `QuestionAnswerer.check`."""
        [replies] = self.answer([question], n_best)
        return replies

    def answer(self, questions: Iterable[str], n_best: int = 1) -> Iterator[list[Answer]]:
        """As `__call__` for each question, in order, `QUESTIONS_AT_A_TIME` together."""
        numbered = enumerate(questions, 1)
        while chunk := list(islice(numbered, QUESTIONS_AT_A_TIME)):
            pieces_of, examples = [], []
            for number, question in chunk:
                if is_blank(question):
                    raise InputError(f"question {number} is empty: give at least one word")
                pieces_of.append(joined(self._passages.best(question, self._count)))
                for name, begin, end in pieces_of[-1]:
                    examples.append(Example(str(len(examples)), question, self._texts[name][begin:end], (), None, name))
            self._answerer.check(examples, n_best)
            readings = self._answerer.read(examples, FROM_EACH, null=True)
            for pieces in pieces_of:
                yield self.compare([(piece, *next(readings)) for piece in pieces], n_best)

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
            if confidence < self._answerer.min_confidence:
                replies = [null, *(answer for answer in replies if answer is not null)]
        replies[0] = replace(replies[0], confidence=confidence)
        return replies[:n_best]


def _apart(ranked: list[tuple[float, float, Passage, Answer]], count: int) -> list[Answer]:
    """The first `count` answers that overlap no earlier one, of (probability, score, piece, answer) each."""
    kept: list[Answer] = []
    for probability, score, piece, answer in ranked:
        start, end = (None if place is None else piece.begin + place for place in (answer.start, answer.end))
        same_text = [better for better in kept if better.name == piece.name and better.start is not None]
        if len(kept) < count and all(end <= it.start or it.end <= start for it in same_text):
            kept.append(Answer(answer.text, start, end, score, probability, name=piece.name))
    return kept
