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
from swep_ds.methods.ssmba_samples.corruption import Text, Vocabulary, corrupt, splice
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


@dataclass(frozen=True, eq=False)
class Sample:
    """One corruption of a question and its context. Positions count the question's tokens, then the context's."""

    example: Example
    question: Text
    context: Text
    number: int
    ids: np.ndarray  # [T] int64, corrupted
    selected: np.ndarray  # [S] int64, the positions of the tokens to predict, ascending
    uniforms: np.ndarray  # [S] float64 in [0, 1), for the draws
    predicted: np.ndarray  # [S] int64, which the model fills in

    @property
    def changed(self) -> np.ndarray:
        """The positions where the model predicts another token than the original one."""
        original = np.concatenate([self.question.ids, self.context.ids])[self.selected]
        return self.selected[self.predicted != original]

    def lost_its_answer(self) -> bool:
        """Whether a token of the answer changed. The text may still hold it: "in" may have become "inter"."""
        begin, end = self.example.span
        in_answer = (self.context.starts < end) & (self.context.ends > begin)
        positions = self.changed - len(self.question.ids)
        return bool(in_answer[positions[positions >= 0]].any())

    def texts(self, vocabulary: Vocabulary) -> tuple[str, str, int]:
        """Question, context, and the answer's first character in it."""
        asked = len(self.question.ids)
        split = np.searchsorted(self.selected, asked)
        question, _ = splice(self.question, self.selected[:split], self.predicted[:split], vocabulary)
        context, start = splice(self.context, self.selected[split:] - asked, self.predicted[split:], vocabulary)
        return question, context, start


class Row(NamedTuple):
    """A window of a sample as the model's input of T tokens, and the M selected tokens that it predicts."""

    sample: Sample
    owned: np.ndarray  # [M] int64, indices of the sample's selected tokens
    positions: np.ndarray  # [M] int64, where these are in ids
    ids: np.ndarray  # [T] int64
    types: np.ndarray  # [T] int8


class Reconstructor:
    """Makes samples of questions with one model, on one rank.

    Raises InputError: `model_name` is no masked language model.
    """

    def __init__(self, model_name: str, settings: AugmentSettings, device: torch.device):
        self.settings = settings
        self.device = device
        self.model, tokenizer = load_masked_lm(model_name, device)
        self.vocabulary = Vocabulary(tokenizer)
        self.backend = plain_backend(tokenizer)
        self.padding = Padding.of(tokenizer)
        self.template = Template.learn(self.backend)
        self.room = longest_window(tokenizer, self.model) - self.template.specials

    def __call__(self, examples: Sequence[Example]) -> tuple[list[dict[str, Any]], Counter]:
        """The samples of the questions as articles of a SQuAD document, and counts: of samples by fate, and over all of
        them of "tokens", those "corrupted", and those "changed" in the end."""
        samples = list(self._corrupted(examples))
        self._predict(samples)
        counts: Counter = Counter()
        seen: set[tuple[str, str, str]] = set()
        articles = []
        for title, group in itertools.groupby(samples, key=lambda sample: sample.example.article):
            paragraphs = [self._paragraph(sample, seen, counts) for sample in group]
            articles.append({"title": title, "paragraphs": [paragraph for paragraph in paragraphs if paragraph]})
        return articles, counts

    def _corrupted(self, examples: Sequence[Example]) -> Iterator[Sample]:
        questions = self.backend.encode_batch([e.question for e in examples], add_special_tokens=False)
        contexts = self.backend.encode_batch([e.context for e in examples], add_special_tokens=False)
        for example, in_question, in_context in zip(examples, questions, contexts, strict=True):
            question = Text.of(example.question, in_question, None)
            question.eligible[self.room // 2 :] = False  # what `_rows` cuts
            context = Text.of(example.context, in_context, example.span, protected=self.settings.protect_answer)
            ids = np.concatenate([question.ids, context.ids])
            eligible = np.concatenate([question.eligible, context.eligible])
            for number in range(self.settings.samples):
                key = hashlib.sha256(json.dumps([self.settings.seed, example.id, number]).encode()).digest()
                rng = np.random.default_rng(int.from_bytes(key, "big"))
                corruption = corrupt(ids, eligible, self.settings.share, self.vocabulary, rng)
                yield Sample(example, question, context, number, *corruption, predicted=np.empty_like(corruption[1]))

    def _predict(self, samples: Sequence[Sample]) -> None:
        """Predicts each selected token once, in the window that owns it."""
        rows = [row for sample in samples for row in self._rows(sample)]
        rows.sort(key=lambda row: -len(row.ids))  # little padding, and memory peaks at once
        candidates = torch.from_numpy(self.vocabulary.candidates).to(self.device)
        for at in range(0, len(rows), self.settings.batch_size):
            batch = rows[at : at + self.settings.batch_size]
            counts = [len(row.owned) for row in batch]
            columns = {"input_ids": [row.ids for row in batch], "token_type_ids": [row.types for row in batch]}
            inputs = self.padding.inputs(columns, len(batch[0].ids))
            places = [
                np.repeat(np.arange(len(batch)), counts),
                np.concatenate([row.positions for row in batch]),
                np.concatenate([row.sample.uniforms[row.owned] for row in batch]),
            ]
            drawn = draw(
                self.model,
                {name: value.to(self.device) for name, value in inputs.items()},
                *(torch.from_numpy(place).to(self.device) for place in places),
                candidates,
            )
            for row, tokens in zip(batch, drawn.cpu().split(counts), strict=True):
                row.sample.predicted[row.owned] = tokens.numpy()

    def _rows(self, sample: Sample) -> Iterator[Row]:
        """The windows of a sample that predict a token. All begin with the question, cut to half of the room; a context
        token belongs to the window that gives it the most context, and the question's tokens to the first."""
        template = self.template
        asked = len(sample.question.ids)
        shown = min(asked, self.room // 2)
        left = self.room - shown
        places = sample.selected - asked
        for window in context_windows(len(sample.context.ids), left, max(1, left // 2)):
            is_owned = (places >= window.own_begin) & (places < window.own_end)
            if window.begin == 0:
                is_owned |= places < 0
            owned = np.flatnonzero(is_owned)
            if len(owned) == 0:
                continue
            in_question = len(template.prefix) + sample.selected[owned]
            in_context = template.context_begin(shown) + places[owned] - window.begin
            question = sample.ids[:shown]
            context = sample.ids[asked + window.begin : asked + window.end]
            yield Row(
                sample,
                owned,
                ids=template.input_ids(question, context),
                types=template.type_ids(len(question), len(context)),
                positions=np.where(places[owned] < 0, in_question, in_context),
            )

    def _paragraph(self, sample: Sample, seen: set[tuple[str, str, str]], counts: Counter) -> dict[str, Any] | None:
        """The sample's paragraph; None where it is dropped."""
        example = sample.example
        question, context, start = sample.texts(self.vocabulary)
        text = (example.id, question, context)
        if sample.lost_its_answer():
            fate = "lost"
        elif text == (example.id, example.question, example.context):
            fate = "unchanged"
        elif text in seen:
            fate = "repeated"
        else:
            fate = "kept"
            seen.add(text)
        counts["tokens"] += len(sample.ids)
        counts["corrupted"] += len(sample.selected)
        counts["changed"] += len(sample.changed)
        counts[fate] += 1
        if fate != "kept":
            return None
        answer = example.context[slice(*example.span)]
        assert context[start : start + len(answer)] == answer, (example.id, sample.number)
        answers = [{"text": answer, "answer_start": start}]
        qa = {"id": sample_id(example.id, sample.number), "question": question, "answers": answers}
        return {"context": context, "qas": [qa]}
