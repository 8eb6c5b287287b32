"""The thread that asks the model: questions that wait are answered together."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.common.errors import InputError
from swep_ds.evaluation.spans import Answer
from swep_ds.serve.shown import Changed, ShownTexts
from swep_ds.texts.answerer import QUESTIONS_OF_TEXTS_AT_A_TIME, TextsAnswerer

KEPT = 1000  # replies, to questions that are asked again


class _Asked(NamedTuple):
    question: str
    n_best: int
    reply: Future


class Asking:
    """Asks `answerer` about the texts that are shown, as `asks` does."""

    def __init__(self, answerer: QuestionAnswerer, asks: TextsAnswerer, shown: ShownTexts):
        self._answerer = answerer
        self._asks = asks
        self._shown = shown
        self._waiting: SimpleQueue[_Asked] = SimpleQueue()
        self._known: dict[str, tuple[int, dict[str, Any]]] = {}  # by question the n_best and the reply
        self._known_of = asks.index.checksum
        Thread(target=self._run, daemon=True).start()

    def ask(self, question: str, n_best: int) -> Future:
        """Of the reply: {answer, probability, confidence, declined, others and the place} (`schema.Reply`)."""
        asked = _Asked(question, n_best, Future())
        self._waiting.put(asked)
        return asked.reply

    def _run(self) -> None:
        while True:
            together = [self._waiting.get()]
            with suppress(Empty):
                while len(together) < QUESTIONS_OF_TEXTS_AT_A_TIME:
                    together.append(self._waiting.get_nowait())
            self._answer([asked for asked in together if asked.reply.set_running_or_notify_cancel()])

    def _answer(self, together: list[_Asked]) -> None:
        questions = list(dict.fromkeys(asked.question for asked in together))
        n_best = max((asked.n_best for asked in together), default=1)
        try:
            self._shown.look()
            if self._shown.index.checksum != self._known_of:
                self._known.clear()
                self._known_of = self._shown.index.checksum
            replies = {question: self._known[question][1] for question in questions if self._is_known(question, n_best)}
            new = [question for question in questions if question not in replies]
            for question, reply in zip(new, self._replies(new, n_best), strict=True):
                replies[question] = reply
                self._known[question] = (n_best, reply)
            if len(self._known) > KEPT:
                self._known.clear()
        except BaseException as error:  # passed on to those who asked; the thread continues
            if len(questions) > 1:  # the fault of one of them
                for question in questions:
                    self._answer([asked for asked in together if asked.question == question])
                return
            for asked in together:
                asked.reply.set_exception(error)
            return
        for asked in together:
            reply = replies[asked.question]
            asked.reply.set_result(reply | {"others": reply["others"][: asked.n_best - 1]})

    def _replies(self, questions: list[str], n_best: int) -> Iterator[dict[str, Any]]:
        """Raises InputError: a question cannot be asked; Changed: a text changes all the time."""
        count = n_best
        if not self._answerer.generative:  # which gives one
            count += 1  # as no answer may be among them
        for question, replies in zip(questions, self._asks.answer(questions, count), strict=True):
            try:
                best, *others = map(self._shown.reply, replies)
            except Changed:  # between its answer and its quotation
                self._asks.index.refresh()
                [replies] = self._asks.answer([question], count)
                best, *others = map(self._shown.reply, replies)
            others = [other for other in others if other["answer"]]
            said = {"confidence": replies[0].confidence, "declined": self._declined(replies[0])}
            yield {"question": question, **best, **said, "others": others}

    def _is_known(self, question: str, n_best: int) -> bool:
        """Whether its reply is kept, and the texts that so much of it quotes are what they were."""
        count, reply = self._known.get(question, (0, {}))
        if count < n_best:
            return False
        try:
            for place in (reply, *reply["others"][: n_best - 1]):
                if place["text"] is not None:
                    self._shown.document(place["text"], place["version"])
        except InputError:
            return False
        return True

    def _declined(self, best: Answer) -> str | None:
        """Why a question is declined, if it is."""
        if best.text:
            return None
        if best.score is None:
            return "no passage of the texts shares a word with the question"
        threshold = self._answerer.null_threshold
        if threshold is not None and best.odds > threshold:
            return "the passages that were read do not seem to answer it"
        return f"the confidence in the best answer is below {self._answerer.min_confidence:g}"
