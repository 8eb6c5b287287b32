"""A finished run whose noise the analyses look at: the exported model, the method and its learned parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.analysis.answer_windows import AnswerWindow
from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.settings import shown, suggest
from swep_ds.data.batches import IGNORED, Batch, Padding
from swep_ds.data.example import Example
from swep_ds.data.features import WindowSettings
from swep_ds.methods import build
from swep_ds.methods.base import Inputs, Method, NoiseKey, PassState, Perturbed
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.examples import load_examples, reported_examples
from swep_ds.pipeline.export import NOISE
from swep_ds.pipeline.folder import RunFolder
from swep_ds.pipeline.inputs import check_unchanged, source_of_test_set
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import load_saved

DRAWS = 16  # over which means are taken


@dataclass(frozen=True)
class TrainedRun:
    """Model and method on this machine's device, in float32 and evaluation mode, without gradients.

    `method` has the parameters of the end of training; `windows` says how the run cut its windows.
    """

    folder: Path
    recipe: Recipe
    qa: ExtractiveQA | GenerativeQA
    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    method: Method

    @classmethod
    def load(cls, folder: Path) -> "TrainedRun":
        """Loads a run's folder.

        Raises InputError: no finished run, a model that cannot be loaded, or no noise generator that fits it.
        """
        run = RunFolder(folder)
        recipe = run.read_recipe()
        run.check_finished()
        with ranks.quiet():
            saved = load_saved(str(run.model))
        qa = saved.qa.float().eval().requires_grad_(False)
        method = build(recipe.method, qa.hidden_size, qa.embedding_size)
        if method.state_dict():
            file = folder / NOISE
            with as_input_error(
                f"{file}: is missing, or does not fit this recipe's model and method", "train the run again"
            ):
                method.load_state_dict(load_file(file))
        method = method.to(ranks.device()).eval().requires_grad_(False)
        return cls(folder, recipe, qa, saved.tokenizer, saved.windows, method)

    @property
    def perturbs(self) -> bool:
        """Whether `perturb` works: the method changes word embeddings, and does so outside of training, too."""
        return not self.recipe.method.needs_gradient and any(step.perturb for step in self.method.passes(0.0))

    def test_examples(self, name: str | None = None) -> list[Example]:
        """The questions that the run answered of one of its test sets; None names the first, the source domain.

        Raises InputError: the run was not tested on a set of that name, or its source cannot be read or has changed.
        """
        names = self.recipe.test_sets
        if not names:
            raise InputError(f"{self.folder}: the run was tested on no data set: name a run with data.eval")
        name = name or names[0]
        if name not in names:
            raise InputError(f"{self.folder}: was not tested on a data set {shown(name)}{suggest(name, names)}")
        check_unchanged(self.recipe, self.folder, [source_of_test_set(name)])
        return reported_examples(self.recipe, name)

    def training_examples(self) -> list[Example]:
        """The training questions, augmented samples last.

        Raises InputError: a source cannot be read, or has changed since the run.
        """
        check_unchanged(self.recipe, self.folder, ["data.train", "data.augmented"])
        return load_examples(self.recipe)[0]

    def batch(self, windows: Sequence[AnswerWindow]) -> Batch:
        """The windows with their answers, padded, on the device; noise is keyed by the question's id."""
        columns = {name: [getattr(window, name) for window in windows] for name in ("input_ids", "token_type_ids")}
        width = max(map(len, columns["input_ids"]))
        longest = max(len(window.target_ids) for window in windows)
        targets = [window.target_ids + [IGNORED] * (longest - len(window.target_ids)) for window in windows]
        return Batch(
            **Padding.of(self.tokenizer).inputs(columns, width),
            start_position=torch.tensor([window.answer[0] for window in windows]),
            end_position=torch.tensor([window.answer[1] for window in windows]),
            target_ids=torch.tensor(targets),
            sample_id=torch.tensor([crc32(window.example.id.encode()) for window in windows]),
        ).to(ranks.device())

    def hidden(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """h [N, T, hidden], the encoder's last hidden state."""
        return self.qa(embeddings, batch, hidden=True).hidden

    @property
    def draws(self) -> int:
        """The number of draws that a mean is over: `DRAWS`, but one where each takes forwards and backwards."""
        return 1 if self.recipe.method.uses_model else DRAWS

    def perturb(self, batch: Batch) -> tuple[Tensor, Perturbed]:
        """Word embeddings [N, T, d] before, and one draw of the method's first perturbation of them.

        Raises InputError: the method has none (`perturbs`).
        """
        embeddings, [perturbed] = self.perturb_often(batch, 1)
        return embeddings, perturbed

    def perturb_often(self, batch: Batch, draws: int) -> tuple[Tensor, Iterator[Perturbed]]:
        """As `perturb`, with several draws of the noise, made one by one; the model runs once for all of them."""
        if not self.perturbs:
            method = self.recipe.method
            why = "its perturbation is a part of training" if method.needs_gradient else "it perturbs nothing"
            raise InputError(
                f"{self.folder}: trained by {method.name}: {why}: name a run of swep, prior_aug or the like"
            )
        embeddings, state = self.qa.embed(batch), PassState()
        steps = iter(self.method.passes(0.0))
        while not (step := next(steps)).perturb:
            if step.keeps_hidden:
                state = PassState(hidden=self.hidden(embeddings, batch))
        forward = partial(self.qa, batch=batch, hidden=True)
        keys = (NoiseKey(self.recipe.seed, draw) for draw in range(draws))
        return embeddings, (step.perturb(Inputs(embeddings, batch, key, state, forward)) for key in keys)
