"""A finished run as the analyses see it: the exported model, the method and, where it has one, its noise generator."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.analysis.windows import AnswerWindow
from swep_ds.data.batches import IGNORED, Batch, Padding
from swep_ds.data.features import WindowSettings
from swep_ds.data.readers import Example
from swep_ds.errors import InputError, parsing
from swep_ds.methods import Method, build
from swep_ds.methods.base import Inputs, NoiseKey, PassState, Perturbed
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.examples import load_examples, reported_examples, tested_on
from swep_ds.pipeline.export import NOISE
from swep_ds.pipeline.saved import load_saved
from swep_ds.recipe import Recipe

DRAW = 0  # together with the run's seed and the question's id it keys the noise that analyses look at


@dataclass(frozen=True)
class SavedRun:
    """Model and method on this machine's device, in float32 and evaluation mode, no parameter with a gradient.

    method: with the parameters that the run ended with.
    windows: as the run cut them.
    """

    folder: Path
    recipe: Recipe
    qa: ExtractiveQA | GenerativeQA
    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    method: Method

    @classmethod
    def load(cls, folder: Path) -> "SavedRun":
        """Loads a run's folder.

        Raises:
            InputError: no finished run, a model that cannot be loaded, or no noise generator that fits it.
        """
        for name in ("recipe.yaml", "results.json", "model"):
            if not (folder / name).exists():
                raise InputError(f"{folder}: holds no {name}, so no finished run: name the folder of one")
        recipe = Recipe.load(os.fspath(folder / "recipe.yaml"))
        saved = load_saved(os.fspath(folder / "model"))
        qa = saved.qa.float().eval().requires_grad_(False)
        method = build(recipe.method, qa.hidden_size, qa.embedding_size)
        if method.state_dict():
            _fill(method, folder / NOISE)
        method = method.to(ranks.device()).eval().requires_grad_(False)
        return cls(folder, recipe, qa, saved.tokenizer, saved.windows, method)

    @property
    def noise(self) -> Method | None:
        """The method where it has learned a noise generator; None where it has no parameters of its own."""
        return self.method if self.method.state_dict() else None

    @property
    def perturbs(self) -> bool:
        """Whether `perturb` has something to do: the method changes word embeddings, and needs no training for it."""
        return not self.recipe.method.needs_split and any(one.perturb for one in self.method.passes(0.0))

    def test_examples(self, name: str | None = None) -> list[Example]:
        """The questions of one of the run's test sets that it answered; of the first, the source domain, of no name.

        Raises:
            InputError: the run was not tested on a set of that name, or its source cannot be read.
        """
        names = tested_on(self.recipe)
        if not names or (name is not None and name not in names):
            known = ", ".join(names) or "none"
            raise InputError(f"{self.folder}: no test set {name or 'at all'} (there: {known}): name another")
        name = name or names[0]
        return reported_examples(self.recipe, [name])[name]

    def training_examples(self) -> list[Example]:
        """What the run was trained on, augmented samples last.

        Raises:
            InputError: a source cannot be read.
        """
        return load_examples(self.recipe)[0]

    def batch(self, windows: Sequence[AnswerWindow]) -> Batch:
        """The windows, padded, with their answers, on the device; noise is keyed by the question's id."""
        width, padding = max(len(one.input_ids) for one in windows), Padding.of(self.tokenizer)
        columns = {name: [getattr(one, name) for one in windows] for name in ("input_ids", "token_type_ids")}
        first, last = torch.tensor([one.answer for one in windows]).unbind(1)
        longest = max(len(one.target_ids) for one in windows)
        targets = [one.target_ids + [IGNORED] * (longest - len(one.target_ids)) for one in windows]
        return Batch(
            **padding.inputs(columns, width),
            start_position=first,
            end_position=last,
            target_ids=torch.tensor(targets),
            sample_id=torch.tensor([crc32(one.example.id.encode()) for one in windows]),
        ).to(ranks.device())

    def hidden(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """h [N, T, hidden], the encoder's last hidden state."""
        return self.qa(embeddings, batch, hidden=True).hidden

    def perturb(self, batch: Batch, draw: int = DRAW) -> tuple[Tensor, Perturbed]:
        """Word embeddings [N, T, d] before, and what the method's own perturbation makes of them.

        Raises:
            InputError: the method has none (`perturbs`).
        """
        if not self.perturbs:
            name = self.recipe.method.name
            why = "its perturbation is a part of training" if self.recipe.method.needs_split else "it perturbs nothing"
            raise InputError(f"{self.folder}: trained by {name}: {why}: name a run of swep, prior_aug or the like")
        embeddings, carried = self.qa.embed(batch), PassState()
        key, read = NoiseKey(self.recipe.seed, draw), partial(self.qa, batch=batch, hidden=True)
        for one in self.method.passes(0.0):
            if one.perturb is not None:
                made = one.perturb(Inputs(embeddings, batch, key, carried, read))
                break
            if one.keeps_hidden:
                carried = PassState(hidden=self.hidden(embeddings, batch))
        return embeddings, made


def _fill(method: Method, file: Path) -> None:
    if not file.is_file():
        raise InputError(f"{file}: no such file: train the run again, by a version that saves the noise generator")
    with parsing(f"{file}: cannot be read", "train the run again"):
        weights = load_file(file)
    with parsing(f"{file}: is not of this recipe's model and method", "train the run again"):
        method.load_state_dict(weights)
