"""What is served: a model over texts, or questions to label."""

import logging
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.api.forecast import answers_of
from swep_ds.common.errors import InputError
from swep_ds.common.files import public_names
from swep_ds.data.choices import Choices
from swep_ds.data.columns import Columns
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.evaluate import CACHE
from swep_ds.pipeline.asked import numbers, read_asked
from swep_ds.pipeline.folder import RunFolder
from swep_ds.serve.asking import Asking
from swep_ds.serve.labels import Labels, check_questions
from swep_ds.serve.schema import LONGEST, MOST, TOO_LONG, Said, Verdict
from swep_ds.serve.shown import ShownTexts
from swep_ds.serve.verdicts import Verdicts, row_of
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex

log = logging.getLogger(__name__)
BATCH = 64  # windows in a forward pass, of several questions


@dataclass
class Session:
    """What is served: a model to ask about texts, or questions to label, about their contexts or texts. The last three
    are there when it is `ready`, as far as its mode has them."""

    mode: Literal["ask", "label"]
    served: Sequence[str]  # a model, or runs
    texts: FolderTexts | None
    verdicts: Verdicts
    ready: bool = False
    most: int = 1  # answers to a question
    shown: ShownTexts | None = None
    asking: Asking | None = None
    labels: Labels | None = None

    def __post_init__(self):
        """Raises InputError: verdicts of another mode."""
        if self.mode == "ask" and any("asked" in row for row in self.verdicts.rows.values()):
            raise InputError(f"--output {self.verdicts.path}: holds labels of --label: name another file")
        self.names = public_names(self.served)  # by source of models or questions what replies call it

    def load_model(self, **settings: Any) -> None:
        """Loads the model and indexes the texts. Raises InputError: as `QuestionAnswerer` and its `over`."""
        answerer = QuestionAnswerer(self.served[0], batch_size=BATCH, **settings)
        asks = answerer.over(self.texts)
        self.shown = ShownTexts(self.texts, asks.index)
        self.asking = Asking(answerer, asks, self.shown)
        if not answerer.generative:
            self.most = MOST
        self.ready = True

    def read_questions(self, source: str, columns: Columns) -> list[Example]:
        """Those to label. Raises InputError: they or the runs cannot be used, or the verdicts are about others."""
        for run in self.served:
            RunFolder(Path(run)).check_finished()
        examples = read_examples(source, training=False, choices=Choices(columns=columns), labels=False)
        check_questions(examples, self.verdicts.rows, f"--output {self.verdicts.path}")
        lacking = [example.id for example in examples if not example.context]
        if lacking and not self.texts:
            raise InputError(f"--label {source}: question {lacking[0]!r} has no context: give it, or --texts")
        self.names |= public_names([source])
        return examples

    def load_labels(self, examples: Sequence[Example]) -> None:
        """Asks the questions that were not asked before. Raises InputError: as `answers_of`."""
        first = RunFolder(Path(self.served[0]))
        examples = self._untrained(examples)
        recipe = first.read_recipe()
        scorer = recipe.eval.scorer_of("".join(recipe.test_sets[:1]))
        folder = first.forecasts / "answers"
        folder.mkdir(parents=True, exist_ok=True)
        index = None
        if self.texts:
            index = TextIndex(self.texts)
            self.shown = ShownTexts(self.texts, index)
        answers = {self.names[run]: answers_of(Path(run), examples, folder, index) for run in self.served}
        self.labels = Labels(examples, answers, scorer)
        self.ready = True

    def _untrained(self, examples: Sequence[Example]) -> list[Example]:
        """Without the questions whose labels a run was trained on: their scores say nothing about new ones."""
        example_of = {example.id: example for example in examples}
        trained = np.concatenate([read_asked(Path(run) / "model", "trained") for run in self.served])
        labelled = []
        for row in self.verdicts.rows.values():
            labelled.append(replace(example_of[row["asked"]], answers=tuple(row["answers"]["text"])))
        known = {labelled[place].id for place in np.flatnonzero(np.isin(numbers(labelled), trained))}
        if known:
            text = "%d labels are training data of %s: their questions are left out of the scores"
            log.warning(text, len(known), ", ".join(self.names[run] for run in self.served))
        left = [example for example in examples if example.id not in known]
        check_questions(left, {}, "--label")
        return left

    def save(self, verdict: Verdict) -> str:
        """Saves a verdict and returns its id. Raises InputError: it marks no words of a text or context, or it cannot
        be written; Changed: its text has changed."""
        question, label = verdict.question, {}
        if self.labels:
            example = self.labels.example(verdict.asked)
            question, name, context, first = example.question, self.public(example.article), example.context, 0
            label = {"asked": example.id, "stratum": self.labels.stratum_of[example.id]}
        elif len(question) > LONGEST:
            raise InputError(TOO_LONG)
        if self.texts:
            if verdict.start is not None and verdict.text is None:
                raise InputError("text and version: give those of the text in which the words are marked")
            name, context, first = self._context(question, verdict)
        said = verdict.said and _said(verdict.said, name, context, first)
        return self.verdicts.add(row_of(question, name, context, verdict.after(first), said) | label)

    def _context(self, question: str, verdict: Verdict) -> tuple[str, str, int]:
        """The text that a verdict is about, what a reader is given of it, and where that begins."""
        for place in (verdict, verdict.said):  # it learns most from what misled the model
            if place and place.start is not None:
                return place.text, *self.shown.context(place.text, place.version, place.start, place.end)
        for passage in self.shown.search(question):
            return passage["text"], passage["passage"], passage["start"]
        names = list(self.shown.index.names)
        for name in random.sample(names, len(names)):  # no text shares a word with the question: any does not say
            with suppress(InputError):  # it has no word, or cannot be read
                return name, *self.shown.context(name, None, 0, 0)
        raise InputError("no text can be read: put them back, then save again")

    def public(self, sentence: str) -> str:
        """A sentence without the folders in which this machine keeps the files that it names."""
        folders = [self.verdicts.path.parent, CACHE]
        if self.texts:
            folders.insert(0, self.texts.folder)
        for source, name in self.names.items():
            sentence = sentence.replace(source, name)
        for folder in folders:
            if folder.is_absolute() and folder.name:  # the root's name says nothing, and all names hold its slash
                sentence = sentence.replace(os.path.join(folder, ""), "").replace(str(folder), folder.name)
        return sentence


def _said(said: Said, name: str, context: str, first: int) -> dict[str, Any]:
    """What the model said, with its place in the context, if it is there."""
    start, end = said.after(first) or (None, None)
    if said.text != name or start is None or start < 0 or context[start:end] != said.answer:
        start = end = None
    return said.model_dump(include={"answer", "probability", "confidence"}) | {"start": start, "end": end}
