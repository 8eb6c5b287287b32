"""A finished run whose noise the analyses look at, and the window of each question that holds its answer."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from swep_ds.common.console import quiet
from swep_ds.common.errors import InputError, as_input_error, excerpt
from swep_ds.common.settings import suggest
from swep_ds.data.batches import IGNORED, Batch, padded_inputs
from swep_ds.data.example import Example
from swep_ds.data.places import occurrences
from swep_ds.data.windows import TextTokens, WindowCutter, WindowSettings
from swep_ds.methods import build
from swep_ds.methods.base import Inputs, Method, PassState, Perturbed
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.examples import answered_examples, load_examples
from swep_ds.pipeline.export import NOISE
from swep_ds.pipeline.folder import RunFolder
from swep_ds.pipeline.inputs import check_unchanged
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import load_saved
from swep_ds.ranks import accelerator

DRAWS = 16  # over which means are taken


class TextWord(NamedTuple):
    """A whitespace word of the text. `distance`: how far it moves, if `word_distances` has measured it."""

    text: str
    part: str  # "question", "context" or "answer"
    positions: list[int]  # its tokens'
    distance: float | None = None


class AnswerWindow(NamedTuple):
    """A window as the model reads it."""

    example: Example
    input_ids: list[int]
    token_type_ids: list[int]
    words: list[TextWord]  # those of the question, as far as it is not cut, then those of this part of the context
    answer: tuple[int, int]  # positions of the answer's first and last token
    target_ids: list[int]  # the answer's tokens with special ones, for models that generate answers

    @property
    def positions(self) -> list[int]:
        """Those of all words' tokens."""
        return [position for word in self.words for position in word.positions]


def answer_windows(
    examples: Iterable[Example], tokenizer: PreTrainedTokenizerFast, settings: WindowSettings
) -> Iterator[AnswerWindow]:
    """For each example the window that holds its whole answer; if several do, the one with most context around it.

    The answer is the training answer or, for an example read for evaluation, the first accepted text in the context.
    Windows are cut as in training; examples without such a window are left out.
    """
    cutter = WindowCutter(tokenizer, settings)
    for example in examples:
        span = example.span
        for answer in example.answers:  # test data is read without offsets
            starts = occurrences(example.context, answer)
            if span is None and starts:
                span = (starts[0], starts[0] + len(answer))
        if span:
            yield from _window(example, span, cutter)


def _window(example: Example, span: tuple[int, int], cutter: WindowCutter) -> Iterator[AnswerWindow]:
    template = cutter.template
    context = cutter.encode(example.context)
    question = TextTokens(*(column[: cutter.settings.max_query_length] for column in cutter.encode(example.question)))
    first, last = context.answer_tokens(span)
    windows = cutter.windows(len(question.ids), len(context.ids))
    whole = [window for window in windows if window.begin <= first <= last < window.end]
    if not whole:
        return
    begin, end, *_ = max(whole, key=lambda window: min(first - window.begin, window.end - 1 - last))
    context = TextTokens(*(column[begin:end] for column in context))
    context_begin = template.context_begin(len(question.ids))
    words = _words(example.question, question, len(template.prefix), "question")
    words += _words(example.context, context, context_begin, "context", span)
    shift = context_begin - begin  # from a token of the whole context to its position
    yield AnswerWindow(
        example,
        template.input_ids(question.ids, context.ids).tolist(),
        template.type_ids(len(question.ids), len(context.ids)).tolist(),
        words,
        (first + shift, last + shift),
        cutter.backend.encode(example.context[slice(*span)]).ids,
    )


def _words(text: str, tokens: TextTokens, begin: int, part: str, answer: tuple[int, int] = (0, 0)) -> list[TextWord]:
    """The words that have tokens, the first of them at position `begin`; `answer`: characters [start, end)."""
    words = []
    for word in re.finditer(r"\S+", text):
        first, last = tokens.answer_tokens(word.span())
        if first <= last:
            in_answer = word.end() > answer[0] and word.start() < answer[1]
            positions = list(range(begin + first, begin + last + 1))
            words.append(TextWord(word.group(), "answer" if in_answer else part, positions))
    return words


@dataclass(frozen=True)
class TrainedRun:
    """Model and method on this machine's device, in float32 and evaluation mode, without gradients."""

    folder: Path
    recipe: Recipe
    qa: ExtractiveQA | GenerativeQA
    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings  # as the run cut its windows
    method: Method  # with the parameters of the end of training

    @classmethod
    def load(cls, folder: Path) -> "TrainedRun":
        """Raises InputError: no finished run, a model that cannot be loaded, or no noise generator that fits it."""
        run = RunFolder(folder)
        recipe = run.read_recipe()
        run.check_finished()
        with quiet():
            saved = load_saved(str(run.model))
        qa = saved.qa.float().eval().requires_grad_(False)
        method = build(recipe.method, qa.hidden_size, qa.embedding_size)
        if method.state_dict():
            what = f"{folder / NOISE}: is missing, or does not fit this recipe's model and method"
            with as_input_error(what, "train the run again"):
                method.load_state_dict(load_file(folder / NOISE))
        method = method.to(accelerator.device()).eval().requires_grad_(False)
        return cls(folder, recipe, qa, saved.tokenizer, saved.windows, method)

    def test_examples(self, name: str | None = None) -> list[Example]:
        """The questions that the run answered of one of its test sets, by default the first, the source domain. Raises
        InputError: the run was not tested on a set of that name, or its source cannot be read or has changed."""
        names = self.recipe.test_sets
        name = name or next(iter(names), "")
        if name not in names:
            raise InputError(f"{self.folder}: was not tested on a data set {excerpt(name)}{suggest(name, names)}")
        return answered_examples(self.recipe, self.folder, name)

    def training_examples(self) -> list[Example]:
        """The training questions, augmented samples last. Raises InputError as `test_examples`."""
        check_unchanged(self.recipe, self.folder, [*self.recipe.data.sources, "data.augmented"])
        return load_examples(self.recipe)[0]

    def batch(self, windows: Sequence[AnswerWindow]) -> Batch:
        """The windows with their answers, padded, on the device; noise is keyed by the question's id."""
        columns = {name: [getattr(window, name) for window in windows] for name in ("input_ids", "token_type_ids")}
        width = max(map(len, columns["input_ids"]))
        start, end = torch.tensor([window.answer for window in windows]).T
        targets = [torch.tensor(window.target_ids) for window in windows]
        return Batch(
            **padded_inputs(self.tokenizer, columns, width),
            start_position=start,
            end_position=end,
            target_ids=pad_sequence(targets, batch_first=True, padding_value=IGNORED),
            sample_id=torch.tensor([crc32(window.example.id.encode()) for window in windows]),
        ).to(accelerator.device())

    def hidden(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """h [N, T, hidden], the encoder's last hidden state."""
        return self.qa(embeddings, batch, hidden=True).hidden

    @property
    def draws(self) -> int:
        """How many draws of the noise a mean is taken over; 1 for methods whose draws run the model."""
        return 1 if self.recipe.method.uses_model else DRAWS

    def perturb(self, batch: Batch, draws: int = 1) -> tuple[Tensor, Iterator[Perturbed]]:
        """Word embeddings [N, T, d] before, and draws of the method's first perturbation of them, made one by one.

        Raises InputError: the method changes no word embeddings, or needs a gradient, as only training has it.
        """
        embeddings = self.qa.embed(batch)
        state = PassState()
        for step in self.method.passes(0.0):
            if step.perturb and not self.recipe.method.needs_gradient:
                forward = partial(self.qa, batch=batch, hidden=True)
                given = (Inputs(embeddings, batch, self.recipe.seed, draw, state, forward) for draw in range(draws))
                return embeddings, map(step.perturb, given)
            if step.keeps_hidden:
                state = PassState(hidden=self.hidden(embeddings, batch))
        trained = f"{self.folder}: trained by {self.recipe.method.name}, which perturbs nothing after training"
        raise InputError(f"{trained}: name a run of swep, prior_aug or the like")
