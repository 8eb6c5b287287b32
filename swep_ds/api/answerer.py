"""Answers questions about texts of any length, one or many, with a model of the hub or of a folder.

Texts are cut and answers compete as in an evaluation, but in an extractive model every allowed span does, so the n best
are exact. An evaluation pairs only the best starts and ends.
"""

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from swep_ds.common.console import quiet
from swep_ds.common.errors import InputError
from swep_ds.common.files import user_path
from swep_ds.data.answers import is_blank
from swep_ds.data.example import Example
from swep_ds.data.features import windows_to_answer
from swep_ds.data.windows import WindowCutter
from swep_ds.evaluation.calibration import N_BEST, features
from swep_ds.evaluation.evaluate import decode_alone
from swep_ds.evaluation.spans import Answer, GeneratedAnswers, SpanDecoder, with_confidence, with_null
from swep_ds.models.hub import FIRST_TEXTS, check_knows
from swep_ds.pipeline.saved import load_saved
from swep_ds.texts.answerer import Texts, TextsAnswerer
from swep_ds.texts.folder import FolderTexts

log = logging.getLogger(__name__)

QUESTIONS_AT_A_TIME = 512  # tokenised, sorted by length and answered together
CHARACTERS_AT_A_TIME = 2**22  # characters of text: the windows, some 10 KB for each 500 characters, are in memory
QUOTED = 60  # characters of what is not read
# what a text says: best answers, null answer, and the log of the sum of exp(score) over all answers but that one
Reading = tuple[list[Answer], Answer | None, float | None]
NO_ANSWER = Answer("", None, None, score=None, probability=0.0)  # the model never declines


class QuestionAnswerer:
    """A question-answering model, extractive or generative, on this process's device.

    It gives `Answer`s. `text` is "" if it declines. `confidence` of the first is the probability that the best answer
    is exactly right, by the calibrator or else the softmax. Where `min_confidence` withholds an answer, that is the
    second, and the confidence is its own.

    Args:
        model: a Hugging Face folder or hub id. A model that a run exported is read with that run's windows.
        batch_size: windows in a forward pass.
        null_threshold: how much higher the score of no answer must be than the best answer's to decline a question.
            None = the model's own, which it has if it was trained with unanswerable questions; others never decline.
            Another than its own leaves out its calibrator, which was fitted with that.
        min_confidence: a question is declined where the best answer's confidence is lower.
        max_answer_tokens: the longest answer. None = the model's own, or 30. Clauses, lists and scripts whose letters
            are several tokens need more. Another than the model's own leaves out its calibrator as well.

    Raises InputError: `min_confidence` is no probability, `max_answer_tokens` < 1, or the model cannot be loaded or has
    no trained head.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        batch_size: int = 32,
        null_threshold: float | None = None,
        min_confidence: float = 0.0,
        max_answer_tokens: int | None = None,
    ):
        if not 0 <= min_confidence <= 1:
            raise InputError(f"min_confidence {min_confidence}: must be a probability, from 0 to 1")
        self.name = os.fspath(model)
        self.batch_size = batch_size
        self.min_confidence = min_confidence
        with quiet():
            self._saved = load_saved(self.name, null_threshold, max_answer_tokens)
        self.null_threshold = self._saved.null_threshold
        self.generative = self._saved.windows.task == "generative"
        self._cutter = WindowCutter(self._saved.tokenizer, self._saved.windows)
        self._texts_checked = 0

    @property
    def calibrated(self) -> bool:
        """Whether confidences are those of the model's calibrator."""
        return self._saved.calibrator is not None

    def __call__(self, question: str, context: str, n_best: int = 1) -> list[Answer]:
        """The `n_best` best answers to a question about a text, best first; "" is first where the model declines.

        Raises InputError: question or text are empty; or as `check`.
        """
        [replies] = self.answer([(question, context)], n_best)
        return replies

    def answer(self, questions: Iterable[tuple[str, str]], n_best: int = 1) -> Iterator[list[Answer]]:
        """As `__call__` for each (question, context), in order, `QUESTIONS_AT_A_TIME` together."""
        numbered = enumerate(questions, 1)
        while chunk := list(itertools.islice(numbered, QUESTIONS_AT_A_TIME)):
            examples = []
            for number, (question, context) in chunk:
                if is_blank(question) or is_blank(context):
                    raise InputError(f"question {number}: it or its text is empty: give at least one word of each")
                examples.append(Example(str(number), question, context, (), None, context))
            self.check(examples, n_best)
            yield from self.answer_together(examples, n_best)

    def over(self, texts: Texts | str | Path, passages: int = 10) -> TextsAnswerer:
        """To ask about many texts, by name, or all of a folder (`FolderTexts`), which stay on disk. The `passages` best
        by BM25 are read; answers name their texts. Their index is kept in the cache, and texts that have changed are
        indexed alone. A function `search(question, count)` replaces the index (`texts.search.Search`).

        Raises InputError: `passages` < 1; or as `FolderTexts` and `TextsAnswerer`.
        """
        if passages < 1:
            raise InputError(f"passages {passages}: must be at least 1")
        if isinstance(texts, str | Path):
            texts = FolderTexts(user_path(texts), f"texts {texts}")
        return TextsAnswerer(self, texts, passages)

    def check(self, examples: Sequence[Example], n_best: int) -> None:
        """Raises InputError: the model cannot give so many answers, or its tokenizer does not know the first texts."""
        if n_best > 1 and self.generative:
            raise InputError(f"n_best {n_best}: {self.name} gives one answer: set it to 1, or name an extractive model")
        if self._texts_checked < FIRST_TEXTS:  # not at every question: it takes as long as cutting the windows
            texts = [text for example in examples for text in (example.question, example.context)]
            check_knows(self._saved.tokenizer, texts, f"model {self.name}", "questions and texts")
            self._texts_checked += len(texts)

    def remark(self, question: str) -> str | None:
        """What of a question is not read, if it is too long."""
        limit = self._saved.windows.max_query_length
        tokens = self._cutter.encode(question)
        if len(tokens.ids) <= limit:
            return None
        rest = question[tokens.starts[limit] :].strip()
        if len(rest) > QUOTED:
            rest = f"{rest[:QUOTED]}…"
        return f"The question is longer than {limit} tokens: the model does not read “{rest}”."

    def answer_together(self, examples: list[Example], n_best: int = 1) -> Iterator[list[Answer]]:
        """As `answer`, for examples with different ids that are all batched together, without `check`."""
        saved = self._saved
        count = n_best
        if self.calibrated:
            count = max(n_best, N_BEST)
        readings = self.read(examples, count, null=saved.null_threshold is not None)
        for example, (answers, null, _) in zip(examples, readings, strict=True):
            candidates = with_null(answers, null, saved.null_threshold) or [NO_ANSWER]
            confidence = candidates[0].probability
            if self.calibrated:
                [confidence] = saved.calibrator.confidence(np.array([features(example, candidates)])).tolist()
            yield with_confidence(candidates, null or NO_ANSWER, confidence, self.min_confidence, n_best)

    def read(self, examples: list[Example], count: int, *, null: bool) -> Iterator[Reading]:
        """Reads them together, up to `CHARACTERS_AT_A_TIME`; the `count` best are exact. Null answers: if it may
        decline or (extractive) `null`."""
        ends = itertools.accumulate(len(example.context) for example in examples)
        numbers = [end // CHARACTERS_AT_A_TIME for end in ends]
        for _, block in itertools.groupby(zip(numbers, examples, strict=True), lambda pair: pair[0]):
            yield from self._read([example for _, example in block], count, null)

    def _read(self, examples: list[Example], count: int, null: bool) -> Iterator[Reading]:
        saved = self._saved
        if self.generative:
            decoder = GeneratedAnswers(examples, saved.tokenizer)
        else:
            exact = replace(saved.spans, n_best=max(saved.windows.max_length, count))
            decoder = SpanDecoder(examples, exact, best_only=count == 1, null=null)
        windows, questions_cut = windows_to_answer(examples, self._cutter)
        if questions_cut:
            limit = saved.windows.max_query_length
            log.warning("a question is longer than %d tokens, and what follows is not read", limit)
        decode_alone(saved.qa.predict, decoder, windows, saved.tokenizer, self.batch_size)
        answers, nulls = decoder.n_best(count), decoder.nulls()
        for number, example in enumerate(examples):
            yield answers[example.id], nulls.get(example.id), decoder.log_sums.get(number)
