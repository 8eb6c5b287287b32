"""What is served: a model over texts, or questions to label."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.api.forecast import answers_of
from swep_ds.common.errors import InputError
from swep_ds.data.choices import Choices
from swep_ds.data.columns import Columns
from swep_ds.data.readers import read_examples
from swep_ds.pipeline.folder import RunFolder
from swep_ds.serve.asking import Asking
from swep_ds.serve.labels import Labels
from swep_ds.serve.schema import MOST, Said, Verdict
from swep_ds.serve.shown import ShownTexts
from swep_ds.serve.verdicts import Verdicts, row_of
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex

BATCH = 64  # windows in a forward pass, of several questions


@dataclass
class Session:
    """What is served: a model to ask about texts, or questions to label, about their contexts or texts. The last three
    are there when it is `ready`, as far as its mode has them."""

    mode: Literal["ask", "label"]
    model: str  # for the page
    texts: FolderTexts | None
    verdicts: Verdicts
    ready: bool = False
    most: int = 1  # answers to a question
    shown: ShownTexts | None = None
    asking: Asking | None = None
    labels: Labels | None = None

    def load_model(self, **settings: Any) -> None:
        """Loads the model and indexes the texts. Raises InputError: as `QuestionAnswerer` and its `over`."""
        if any("asked" in row for row in self.verdicts.rows.values()):
            raise InputError(f"--output {self.verdicts.path}: holds labels of --label: name another file")
        answerer = QuestionAnswerer(self.model, batch_size=BATCH, **settings)
        asks = answerer.over(self.texts)
        self.shown = ShownTexts(self.texts, asks.index)
        self.asking = Asking(answerer, asks, self.shown)
        self.most = 1 if answerer.generative else MOST
        self.ready = True

    def load_labels(self, runs: Sequence[Path], source: str, columns: Columns) -> None:
        """Reads the questions, and asks those that were not asked before. Raises InputError: runs or questions cannot
        be used, or the verdicts are about others."""
        for run in runs:
            RunFolder(run).check_finished()
        recipe = RunFolder(runs[0]).read_recipe()
        scorer = recipe.eval.scorer_of("".join(recipe.test_sets[:1]))
        examples = read_examples(source, training=False, choices=Choices(columns=columns), labels=False)
        lacking = [example.id for example in examples if not example.context]
        if lacking and not self.texts:
            raise InputError(f"--label {source}: question {lacking[0]!r} has no context: give it, or --texts")
        folder = RunFolder(runs[0]).forecasts / "answers"
        folder.mkdir(parents=True, exist_ok=True)
        index = None
        if self.texts:
            index = TextIndex(self.texts)
            self.shown = ShownTexts(self.texts, index)
        answers = {str(run): answers_of(run, examples, folder, index) for run in runs}
        self.labels = Labels(examples, answers, scorer)
        self.labels.check(self.verdicts.rows, f"--output {self.verdicts.path}")
        self.ready = True

    def save(self, verdict: Verdict) -> str:
        """Saves a verdict and returns its id. Raises InputError: it marks no words of a text or context, or it cannot
        be written; Changed: its text has changed."""
        if self.labels is None:
            name, context, first = self._context(verdict.question, verdict)
            row = row_of(
                verdict.question, name, context, verdict.span(first), _said(verdict.said, name, context, first)
            )
            return self.verdicts.add(row)
        example = self.labels.example(verdict.asked)
        name, context, first = example.article, example.context, 0
        if self.texts:
            name, context, first = self._context(example.question, verdict)
        row = row_of(example.question, name, context, verdict.span(first), None)
        row |= {"asked": example.id, "stratum": self.labels.stratum_of[example.id]}
        return self.verdicts.add(row, example.id)

    def _context(self, question: str, verdict: Verdict) -> tuple[str, str, int]:
        """The text that a verdict is about, what a reader is given of it, and where that begins."""
        if verdict.start is not None:
            return verdict.text, *self.shown.context(verdict.text, verdict.version, verdict.start, verdict.end)
        said = verdict.said
        if said and None not in (said.start, said.end):  # of what misled the model it learns most
            return said.text, *self.shown.context(said.text, said.version, said.start, said.end)
        found = self.shown.found(question)
        if not found:
            raise InputError("no text shares a word with the question: ask it in words of the texts")
        return found[0]["text"], found[0]["passage"], found[0]["start"]


def _said(said: Said | None, name: str, context: str, first: int) -> dict[str, Any] | None:
    """What the model said, with its place in the context, if it is there."""
    if said is None:
        return None
    shown = {"answer": said.answer, "probability": said.probability, "confidence": said.confidence}
    start = None if said.start is None or said.text != name else said.start - first
    if start is not None and start >= 0 and context[start:].startswith(said.answer):
        return shown | {"start": start, "end": start + len(said.answer)}
    return shown | {"start": None, "end": None}
