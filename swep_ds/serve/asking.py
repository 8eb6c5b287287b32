"""The thread that asks the model: questions that wait are answered together."""

from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.evaluation.spans import Answer
from swep_ds.serve.shown import ShownTexts
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
        self._kept: dict[tuple[str, str, int], dict[str, Any]] = {}  # replies by texts, question and n_best
        Thread(target=self._run, daemon=True).start()

    def ask(self, question: str, n_best: int) -> Future:
        """The future of the reply, as in `schema.Reply`."""
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
            replies = self._replies(questions, n_best)
        except BaseException as error:  # passed on to those who asked; the thread continues
            different = dict.fromkeys(asked[:2] for asked in together)  # by question and n_best
            if len(different) > 1:  # the fault of one of them
                for question in different:
                    self._answer([asked for asked in together if asked[:2] == question])
                return
            for asked in together:
                asked.reply.set_exception(error)
            return
        for asked in together:
            reply = replies[asked.question]
            asked.reply.set_result(reply | {"others": reply["others"][: asked.n_best - 1]})

    def _replies(self, questions: list[str], n_best: int) -> dict[str, dict[str, Any]]:
        """By question those that are kept, and new ones for all others. Raises InputError: a question cannot be asked;
        Changed: a text has changed after it was read."""
        self._shown.look()
        texts = self._shown.index.checksum
        if len(self._kept) > KEPT:
            self._kept.clear()
        replies = {question: self._kept.get((texts, question, n_best)) for question in questions}
        new = [question for question, kept in replies.items() if kept is None or not self._shown.holds(kept)]
        count = n_best
        if not self._answerer.generative:  # which gives one
            count += 1  # as no answer may be among them
        for question, answers in zip(new, self._asks.answer(new, count), strict=True):
            best, *others = map(self._shown.reply, answers)
            others = [other for other in others if other["answer"]]
            declined = self._declined(answers[0])
            notes = {"declined": declined, "remark": self._answerer.remark(question)}
            replies[question] = {"question": question, **best, **notes, "others": others}
            self._kept[texts, question, n_best] = replies[question]
        return replies

    def _declined(self, best: Answer) -> str | None:
        """Why a question is declined, if it is."""
        if best.text:
            return None
        if best.score is None:
            return "no passage of the texts shares a word with the question"
        threshold = self._answerer.null_threshold
        wrote_nothing = best.odds is None  # a generated text, and not the null answer
        if wrote_nothing or (threshold is not None and best.odds > threshold):
            return "the passages that were read do not seem to answer it"
        return f"the confidence in the best answer is below {self._answerer.min_confidence:g}"
