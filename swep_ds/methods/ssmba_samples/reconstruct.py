"""SSMBA samples of questions: corrupted, reconstructed by a masked language model, put back as SQuAD paragraphs.

The randomness of a sample depends on (seed, question id, number of the sample) and is drawn before the model runs.
A long context is reconstructed window by window, so nothing of it is cut.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from swep_ds.data.batches import Padding
from swep_ds.data.example import Example
from swep_ds.data.splits import sample_id
from swep_ds.data.windows import Template, context_windows, plain_backend
from swep_ds.methods.ssmba_samples.corruption import Corruption, Text, Vocabulary, corrupt, splice, tokenise
from swep_ds.methods.ssmba_samples.masked_lm import draw, load_masked_lm
from swep_ds.models.hub import longest_window


@dataclass(frozen=True)
class AugmentSettings:
    """What determines the samples, given data and model."""

    samples: int = 8  # per question
    share: float = 0.25  # the share of tokens that are corrupted
    seed: int = 0
    batch_size: int = 32  # windows per forward pass
    protect_answer: bool = True  # no token of the answer is corrupted; else samples that lose it are dropped
    repeated_answers: str = "error"  # as data.repeated_answers of the recipe that trains on the samples


class Window(NamedTuple):
    """Tokens [begin, end) of a question and tokens [begin, end) of its context, in one input of the model."""

    question: tuple[int, int]
    context: tuple[int, int]


def cover(question: int, context: int, room: int) -> tuple[list[Window], np.ndarray]:
    """Windows of at most `room` tokens that together hold all tokens of a question and of its context.

    Every window of the context has the beginning of the question, which takes at most half of the room. The rest of a
    longer question gets windows of its own, with the beginning of the context.

    Returns:
        The windows, and [question + context] int64: the window that gives a token the most context (the rule of
        `context_windows`, within the question and within the context).
    """
    first, *rest = context_windows(question, room // 2, max(1, room // 4))
    left = room - first.end
    parts = context_windows(context, left, max(1, left // 2))
    windows = [Window((0, first.end), (part.begin, part.end)) for part in parts]
    windows += [Window((part.begin, part.end), (0, min(context, left))) for part in rest]
    owner = np.zeros(question + context, np.int64)
    for number, part in enumerate(parts):
        owner[question + part.own_begin : question + part.own_end] = number
    for number, part in enumerate(rest, start=len(parts)):
        owner[part.own_begin : part.own_end] = number
    return windows, owner


@dataclass(frozen=True, eq=False)
class Pair:
    """A question and its context; positions count the question's tokens, then the context's."""

    example: Example
    question: Text
    context: Text
    ids: np.ndarray  # [T] int64
    windows: list[Window]
    owner: np.ndarray  # [T] int64, as `cover` returns it


@dataclass(frozen=True, eq=False)
class Sample:
    """One corruption of a pair. The model fills in `predicted` [S] int64."""

    pair: Pair
    number: int
    corruption: Corruption
    predicted: np.ndarray

    def text(self, vocabulary: Vocabulary) -> tuple[str, str, int]:
        """Question, context and the answer's first character, once the tokens are predicted."""
        selected = self.corruption.selected
        asked = len(self.pair.question.ids)
        split = np.searchsorted(selected, asked)
        question, _ = splice(self.pair.question, selected[:split], self.predicted[:split], vocabulary)
        context, start = splice(self.pair.context, selected[split:] - asked, self.predicted[split:], vocabulary)
        return question, context, start


@dataclass(frozen=True, eq=False)
class Row:
    """A window of a sample as the model's input of T tokens."""

    sample: Sample
    owned: np.ndarray  # [M] int64, indices of the sample's selected tokens that this window predicts
    ids: np.ndarray  # [T] int64
    types: np.ndarray  # [T] int8
    positions: np.ndarray  # [M] int64, where the owned tokens are in ids


class Reconstructor:
    """Makes samples of questions with one model, on one rank.

    Args:
        model_name: hub id or local folder of a masked language model.
        example: any of the questions.

    Raises:
        InputError: no masked language model of that name.
    """

    def __init__(self, model_name: str, example: Example, settings: AugmentSettings, device: torch.device):
        self.settings = settings
        self.model, tokenizer = load_masked_lm(model_name, device)
        self.vocabulary = Vocabulary.of(tokenizer)
        self.candidates = torch.from_numpy(self.vocabulary.candidates).to(device)
        self.backend = plain_backend(tokenizer)
        self.padding = Padding.of(tokenizer)
        self.template = Template.learn(self.backend, example)
        self.room = longest_window(tokenizer, self.model) - self.template.specials

    def __call__(self, examples: Sequence[Example]) -> tuple[list[dict[str, Any]], Counter]:
        """The samples of the questions as articles of a SQuAD document, and counts.

        Counts: samples "kept", "lost" (without the answer in its place), "unchanged" (equal to the original) and
        "repeated" (equal to an earlier sample of their question); over all of them "tokens", those "corrupted", and
        those "changed" in the end.
        """
        numbers = range(self.settings.samples)
        samples = [self._corrupt(pair, number) for pair in self._pairs(examples) for number in numbers]
        self._predict(samples)
        counts: Counter = Counter()
        articles = [
            {"title": title, "paragraphs": list(self._paragraphs(group, counts))}
            for title, group in itertools.groupby(samples, key=lambda sample: sample.pair.example.article)
        ]
        return articles, counts

    def _pairs(self, examples: Sequence[Example]) -> Iterator[Pair]:
        questions = tokenise(self.backend, self.vocabulary, [e.question for e in examples], [None] * len(examples))
        texts, spans = [e.context for e in examples], [e.span for e in examples]
        contexts = tokenise(self.backend, self.vocabulary, texts, spans, protected=self.settings.protect_answer)
        for example, question, context in zip(examples, questions, contexts, strict=True):
            ids = np.concatenate([question.ids, context.ids])
            yield Pair(example, question, context, ids, *cover(len(question.ids), len(context.ids), self.room))

    def _corrupt(self, pair: Pair, number: int) -> Sample:
        key = hashlib.sha256(json.dumps([self.settings.seed, pair.example.id, number]).encode()).digest()
        rng = np.random.default_rng(int.from_bytes(key, "big"))
        eligible = np.concatenate([pair.question.eligible, pair.context.eligible])
        corruption = corrupt(pair.ids, eligible, self.settings.share, self.vocabulary, rng)
        return Sample(pair, number, corruption, np.empty_like(corruption.selected))

    def _predict(self, samples: Sequence[Sample]) -> None:
        """Predicts each selected token once, in the window that owns it."""
        rows = [row for sample in samples for row in self._rows(sample)]
        rows.sort(key=lambda row: -len(row.ids))  # little padding, and memory peaks at once
        for at in range(0, len(rows), self.settings.batch_size):
            batch = rows[at : at + self.settings.batch_size]
            columns = {"input_ids": [row.ids for row in batch], "token_type_ids": [row.types for row in batch]}
            counts = [len(row.owned) for row in batch]
            predicted = draw(
                self.model,
                self.padding.inputs(columns, len(batch[0].ids)),
                np.repeat(np.arange(len(batch)), counts),
                np.concatenate([row.positions for row in batch]),
                np.concatenate([row.sample.corruption.uniforms[row.owned] for row in batch]),
                self.candidates,
            )
            for row, tokens in zip(batch, np.split(predicted, np.cumsum(counts)[:-1]), strict=True):
                row.sample.predicted[row.owned] = tokens

    def _rows(self, sample: Sample) -> Iterator[Row]:
        template = self.template
        corruption = sample.corruption
        asked = len(sample.pair.question.ids)
        for number, ((q_begin, q_end), (c_begin, c_end)) in enumerate(sample.pair.windows):
            owned = np.flatnonzero(sample.pair.owner[corruption.selected] == number)
            if len(owned) == 0:
                continue
            selected = corruption.selected[owned]
            in_question = len(template.prefix) + selected - q_begin
            in_context = template.context_begin(q_end - q_begin) + selected - asked - c_begin
            question, context = corruption.ids[q_begin:q_end], corruption.ids[asked + c_begin : asked + c_end]
            yield Row(
                sample,
                owned,
                ids=template.input_ids(question, context),
                types=template.type_ids(len(question), len(context)),
                positions=np.where(selected < asked, in_question, in_context),
            )

    def _paragraphs(self, samples: Iterator[Sample], counts: Counter) -> Iterator[dict[str, Any]]:
        for pair, group in itertools.groupby(samples, key=lambda sample: sample.pair):
            begin, end = pair.example.span
            answer = pair.example.context[begin:end]
            in_answer = np.zeros(len(pair.ids), bool)
            in_answer[len(pair.question.ids) :] = (pair.context.starts < end) & (pair.context.ends > begin)
            original = (pair.example.question, pair.example.context)
            seen = set()
            for sample in group:
                question, context, start = sample.text(self.vocabulary)
                changed = sample.corruption.selected[sample.predicted != pair.ids[sample.corruption.selected]]
                if in_answer[changed].any():  # "in" may have become "inter", which begins with the answer
                    fate = "lost"
                elif (question, context) == original:
                    fate = "unchanged"
                elif (question, context) in seen:
                    fate = "repeated"
                else:
                    fate = "kept"
                    seen.add((question, context))
                counts["tokens"] += len(pair.owner)
                counts["corrupted"] += len(sample.predicted)
                counts["changed"] += len(changed)
                counts[fate] += 1
                if fate == "kept":
                    assert context[start : start + len(answer)] == answer, (pair.example.id, sample.number)
                    answers = [{"text": answer, "answer_start": start}]
                    qa = {"id": sample_id(pair.example.id, sample.number), "question": question, "answers": answers}
                    yield {"context": context, "qas": [qa]}
