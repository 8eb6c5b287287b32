"""SSMBA as data: more training questions from a masked language model (Ng, Cho, Ghassemi, EMNLP 2020).

The randomness of a sample depends on (seed, question id, number of the sample) and is drawn before the model runs. A
long context is reconstructed window by window. The unit of work is a chunk of consecutive questions, whose windows are
batched among themselves: it does not depend on ranks, other chunks or a restart, not even through a batch's rounding.
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel

from swep_ds import ranks
from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import InputError
from swep_ds.data.batches import padded_inputs
from swep_ds.data.choices import Choices, Remark
from swep_ds.data.chunks import Chunks, digest
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.data.splits import SAMPLE_SUFFIX
from swep_ds.data.windows import Template, context_windows, plain_backend
from swep_ds.methods.ssmba_samples.corruption import Text, Vocabulary, corrupt, splice
from swep_ds.models.folders import model_checksum, resolve_model
from swep_ds.models.hub import fit_tokenizer, load_config, load_tokenizer, longest_window
from swep_ds.models.loading import load_weights
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0

QUESTIONS_IN_A_CHUNK = 32
PLACES_AT_A_TIME = 256  # with their float64 probabilities over the vocabulary in memory


@dataclass(frozen=True)
class AugmentSettings:
    """What determines the samples, given data and model."""

    samples: int = 8  # per question
    share: float = 0.25  # the share of tokens that are corrupted
    seed: int = 0
    batch_size: int = 32  # windows per forward pass
    protect_answer: bool = True  # no token of the answer is corrupted; else samples that lose it are dropped


class Sample(NamedTuple):
    """One corruption of a question and its context. Positions count the question's tokens, then the context's."""

    example: Example
    question: Text
    context: Text
    number: int
    ids: np.ndarray  # [T] int64, corrupted
    selected: np.ndarray  # [S] int64, the positions of the tokens to predict, ascending
    uniforms: np.ndarray  # [S] float64 in [0, 1), for the draws
    original: np.ndarray  # [S] int64, the selected tokens as they were
    predicted: np.ndarray  # [S] int64, which the model fills in


class Row(NamedTuple):
    """A window of a sample as the model's input of T tokens, and the M selected tokens that it predicts."""

    sample: Sample
    owned: np.ndarray  # [M] int64, indices of the sample's selected tokens
    positions: np.ndarray  # [M] int64, where these are in ids
    ids: np.ndarray  # [T] int64
    types: np.ndarray  # [T] int8


@torch.no_grad()
def draw(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    places: tuple[Tensor, Tensor],
    uniforms: Tensor,
    candidates: Tensor,
) -> Tensor:
    """Tokens [S] drawn from the softmax over the ids `candidates` at S places (rows, positions) of the inputs [N, T],
    by inversion of its distribution in float64 at `uniforms` [S] in [0, 1)."""
    # the output layer gets only the places: on all [N, T] it would cost as much as a small encoder, and its logits
    # would take most of the memory
    with model.get_output_embeddings().register_forward_pre_hook(lambda _, hidden: (hidden[0][places],)):
        logits = model(**inputs, return_dict=True).logits
    if logits.dim() == 3:  # MobileBERT multiplies by the layer's weights itself, past the hook
        logits = logits[places]
    drawn = []
    for part, u in zip(logits.split(PLACES_AT_A_TIME), uniforms.split(PLACES_AT_A_TIME), strict=True):
        cumulated = part[:, candidates].double().softmax(-1).cumsum(-1)
        reached = u[:, None] * cumulated[:, -1:]
        drawn.append(candidates[torch.searchsorted(cumulated, reached, right=True)[:, 0]])
    return torch.cat(drawn)


class Reconstructor:
    """Makes samples of questions with one model, a hub id or a local folder, on one rank.

    Raises InputError: it cannot be loaded, or has no mask token or no trained head.
    """

    def __init__(self, model_name: str, settings: AugmentSettings, device: torch.device):
        self.settings = settings
        self.device = device
        tokenizer = load_tokenizer(model_name, "--model")
        label = f"--model {model_name}"
        if tokenizer.mask_token_id is None:
            raise InputError(f"{label}: its tokenizer has no mask token: name a model such as bert-base-uncased")
        source = resolve_model(model_name, "--model")
        config = load_config(source, "--model")
        model = load_weights(AutoModelForMaskedLM, config, source, label, dtype=torch.float32)
        fit_tokenizer(tokenizer, model, label)
        self.model = model.eval().to(device)
        self.vocabulary = Vocabulary(tokenizer)
        self.backend = plain_backend(tokenizer)
        self.tokenizer = tokenizer
        self.template = Template.learn(self.backend)
        self.room = longest_window(tokenizer, self.model) - self.template.specials

    def __call__(self, examples: Sequence[Example]) -> tuple[list[dict[str, Any]], Counter]:
        """The samples of the questions as articles of a SQuAD document, and counts: of samples "kept", "lost" (without
        their answer) and "dropped", and over all of them of "tokens", those "corrupted" and those "changed"."""
        samples = list(self._corrupted(examples))
        self._predict(samples)
        counts: Counter = Counter()
        seen = {(example.id, example.question, example.context) for example in examples}
        articles = []
        for title, group in itertools.groupby(samples, key=lambda sample: sample.example.article):
            paragraphs = []
            for sample in group:
                example = sample.example
                counts["tokens"] += len(sample.ids)
                counts["corrupted"] += len(sample.selected)
                counts["changed"] += int((sample.predicted != sample.original).sum())
                asked = len(sample.question.ids)
                at = np.searchsorted(sample.selected, asked)
                question, _ = splice(sample.question, sample.selected[:at], sample.predicted[:at], self.vocabulary)
                places = sample.selected[at:] - asked
                context, start = splice(sample.context, places, sample.predicted[at:], self.vocabulary)
                text = (example.id, question, context)
                if start is None:
                    counts["lost"] += 1
                elif text in seen:
                    counts["dropped"] += 1
                else:
                    counts["kept"] += 1
                    seen.add(text)
                    answers = [{"text": example.context[slice(*example.span)], "answer_start": start}]
                    id_ = f"{example.id}{SAMPLE_SUFFIX}{sample.number}"
                    qa = {"id": id_, "question": question, "answers": answers}
                    paragraphs.append({"context": context, "qas": [qa]})
            articles.append({"title": title, "paragraphs": paragraphs})
        return articles, counts

    def _corrupted(self, examples: Sequence[Example]) -> Iterator[Sample]:
        questions = self.backend.encode_batch([e.question for e in examples], add_special_tokens=False)
        contexts = self.backend.encode_batch([e.context for e in examples], add_special_tokens=False)
        for example, in_question, in_context in zip(examples, questions, contexts, strict=True):
            question = Text.of(example.question, in_question, None, protected=False)
            question.eligible[self.room // 2 :] = False  # what `_rows` cuts
            context = Text.of(example.context, in_context, example.span, protected=self.settings.protect_answer)
            ids = np.concatenate([question.ids, context.ids])
            eligible = np.concatenate([question.eligible, context.eligible])
            for number in range(self.settings.samples):
                key = hashlib.sha256(json.dumps([self.settings.seed, example.id, number]).encode()).digest()
                rng = np.random.default_rng(int.from_bytes(key, "big"))
                corruption = corrupt(ids, eligible, self.settings.share, self.vocabulary, rng)
                original = ids[corruption[1]]
                yield Sample(example, question, context, number, *corruption, original, np.empty_like(original))

    def _predict(self, samples: Sequence[Sample]) -> None:
        """Predicts each selected token once, in the window that owns it."""
        rows = [row for sample in samples for row in self._rows(sample)]
        rows.sort(key=lambda row: -len(row.ids))  # little padding, and memory peaks at once
        for at in range(0, len(rows), self.settings.batch_size):
            batch = rows[at : at + self.settings.batch_size]
            counts = [len(row.owned) for row in batch]
            columns = {"input_ids": [row.ids for row in batch], "token_type_ids": [row.types for row in batch]}
            inputs = padded_inputs(self.tokenizer, columns, len(batch[0].ids))
            inputs = {name: value.to(self.device) for name, value in inputs.items()}
            windows = np.repeat(np.arange(len(batch)), counts)
            positions = np.concatenate([row.positions for row in batch])
            uniforms = np.concatenate([row.sample.uniforms[row.owned] for row in batch])
            arrays = (windows, positions, uniforms, self.vocabulary.candidates)
            windows, positions, uniforms, candidates = (torch.from_numpy(array).to(self.device) for array in arrays)
            drawn = draw(self.model, inputs, (windows, positions), uniforms, candidates)
            for row, tokens in zip(batch, drawn.cpu().split(counts), strict=True):
                row.sample.predicted[row.owned] = tokens.numpy()

    def _rows(self, sample: Sample) -> Iterator[Row]:
        """The windows of a sample that predict a token. All begin with the question, cut to half of the room; a context
        token belongs to the window that gives it the most context, and the question's tokens to the first."""
        asked = len(sample.question.ids)
        question = sample.ids[: min(asked, self.room // 2)]
        left = self.room - len(question)
        places = sample.selected - asked
        for window in context_windows(len(sample.context.ids), left, max(1, left // 2)):
            is_owned = (places >= window.own_begin) & (places < window.own_end)
            if window.begin == 0:
                is_owned |= places < 0
            owned = np.flatnonzero(is_owned)
            if len(owned) == 0:
                continue
            in_question = len(self.template.prefix) + sample.selected[owned]
            in_context = self.template.context_begin(len(question)) + places[owned] - window.begin
            context = sample.ids[asked + window.begin : asked + window.end]
            yield Row(
                sample,
                owned,
                ids=self.template.input_ids(question, context),
                types=self.template.type_ids(len(question), len(context)),
                positions=np.where(places[owned] < 0, in_question, in_context),
            )


def augment(source: str, model_name: str, output: Path, settings: AugmentSettings, choices: Choices) -> None:
    """Writes samples of the questions of `source` to `output`, a new file on a file system that all ranks share.
    Collective. Started again with the same arguments, on any number of ranks, it resumes with the missing chunks.

    Raises InputError: bad data or model, `output` exists, or its chunks have other settings.
    """
    console = Console(quiet=not ranks.is_main())
    examples = ranks.on_all_ranks(lambda: read_answerable(source, choices, console))
    chunks = ranks.on_all_ranks(lambda: Chunks(output, math.ceil(len(examples) / QUESTIONS_IN_A_CHUNK)))
    reconstruct = ranks.on_all_ranks(lambda: Reconstructor(model_name, settings, ranks.device()))

    def take() -> tuple[dict[str, Any], list[int]]:
        setup = {"model": model_name, "files": model_checksum(model_name, "--model")}
        setup |= {**asdict(settings), **asdict(choices), "columns": dict(choices.columns)}
        setup |= {"data": source, "questions": digest(examples)}
        return setup, chunks.take(setup)

    setup, missing = ranks.from_rank0(take)
    done = chunks.count - len(missing)
    if done:
        console.print(f"resuming: {done} of {chunks.count} chunks are done")
    with Progress(console, "chunks", chunks.count, done) as progress:
        for at in range(0, len(missing), ranks.world_size()):
            group = missing[at : at + ranks.world_size()]
            write = None
            if ranks.rank() < len(group):
                chunk = group[ranks.rank()]
                begin = chunk * QUESTIONS_IN_A_CHUNK
                articles, counts = reconstruct(examples[begin : begin + QUESTIONS_IN_A_CHUNK])
                write = partial(chunks.write, chunk, {"articles": articles, "counts": counts})
            write_on_all_ranks(write, output)  # in step: no rank waits for another longer than one chunk takes
            progress.update(done + at + len(group))
    counts = write_on_rank0(lambda: _merge(chunks, setup), output)
    if counts is not None:
        console.print(
            f"kept {counts['kept']} samples of {len(examples)} questions, dropped {counts['dropped']} that came back as"
            f" the original or as another sample, and {counts['lost']} that lost their answer",
            f"{counts['corrupted'] / max(counts['tokens'], 1):.1%} of the tokens were corrupted, "
            f"{counts['changed'] / max(counts['corrupted'], 1):.1%} of those came back as another token",
            f"written to {output}",
            sep="\n",
        )


def read_answerable(source: str, choices: Choices, console: Console) -> list[Example]:
    """The questions that have an answer: a corrupted text may begin to answer a question, or cease to, and only an
    answer that is kept says which."""
    remarks: list[Remark] = []
    examples = read_examples(source, training=True, choices=choices, remark=remarks.append)
    for reason, count in Counter(remark.reason for remark in remarks).items():
        console.print(f"{count} questions: {reason}")
    answerable = [example for example in examples if example.answers]
    if not answerable:
        raise InputError(f"--data: {source}: no question has an answer: name other data")
    return answerable


def _merge(chunks: Chunks, setup: dict[str, Any]) -> Counter:
    """Joins all chunks to the output and removes their folder; returns the sums of the counts."""
    counts: Counter = Counter()
    articles = []
    for number in range(chunks.count):
        part = chunks.read(number)
        counts.update(part["counts"])
        articles += part["articles"]
    document = {"version": "1.1", "data": articles, "ssmba": {**setup, **counts}}
    chunks.finish([json.dumps(document, ensure_ascii=False)])
    return counts
