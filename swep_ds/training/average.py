"""The mean of the model's weights over a run's updates, which is tested and exported in their place.

With theta_u the weights after update u, U updates in all and theta_0 the weights that training started from

    ema:    mean_u = mean_(u-1) + (1 - d) / (1 - d^u) (theta_u - mean_(u-1)) = sum_i (1 - d) d^(u-i) theta_i / (1 - d^u)
            d = `average_decay`; corrected as Adam's moments are (Kingma and Ba 2015, Section 3), so that theta_0 with
            its new head has no part
    start:  mean_U = s theta_0 + (1 - s) theta_U     WiSE-FT (Wortsman et al. 2022, CVPR); s = `average_start`. New
            weights, as of a head that the model had not before, have no start: they stay theta_U

Training never sees the mean. The model's parameters are averaged, as they are exported; the method's are not. A rank
keeps the mean of the elements that its optimizer updates, in float32. An update that fp16 skips counts, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from swep_ds import ranks
from swep_ds.training.settings import TrainSection
from swep_ds.training.zero.conversion import WEIGHTS, Piece, Pieces, copy_pieces, engine_pieces
from swep_ds.training.zero.files import read_state
from swep_ds.training.zero.weights import refresh_weights

EXPORTED = "qa."  # begins the names of the model's parameters in the engine's module
FILE = "average_rank_"  # begins the names of its files in a checkpoint


class WeightAverage:
    """This rank's part of the mean over an `Engine`, which the settings ask for. Make it before a checkpoint is loaded:
    the engine then has the start's weights."""

    def __init__(self, engine, train: TrainSection):
        self._engine = engine
        self._train = train
        self._mean: Pieces = {}  # the start's weights, if the kind is "start"
        if train.average == "start":
            new = {f"qa.model.{name}" for name in engine.module.qa.model.new_weights}
            self._mean = _copies({name: piece for name, piece in self._weights().items() if name not in new})

    def add(self, update: int) -> None:
        """Adds the weights after `update`, which counts from 1."""
        if self._train.average != "ema":
            return
        if update == 1:
            self._mean = _copies(self._weights())
        elif self._mean:  # this rank keeps a part of the model
            decay = self._train.average_decay
            torch._foreach_lerp_(_tensors(self._mean), self._averaged(), (1 - decay) / (1 - decay**update))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The engine has the mean as its weights inside, and its own again, to the last bit, outside. Collective, so an
        exception leaves the mean in the engine."""
        means = _tensors(self._mean)
        if self._train.average == "start":
            share = self._train.average_start
            means = [torch.lerp(now, start, share) for now, start in zip(self._averaged(), means, strict=True)]
        self._swap(means)
        yield
        self._swap(means)

    def _swap(self, means: list[Tensor]) -> None:
        if means:
            for mean, weights in zip(means, self._averaged(), strict=True):
                swapped = weights.clone()
                weights.copy_(mean)
                mean.copy_(swapped)
        refresh_weights(self._engine.deepspeed)

    def _averaged(self) -> list[Tensor]:
        """The engine's weights of which there is a mean."""
        weights = self._weights()
        return [weights[name].values[WEIGHTS] for name in self._mean]

    def _weights(self) -> Pieces:
        """The float32 weights of the model. DeepSpeed may replace its tensors."""
        pieces = engine_pieces(self._engine.deepspeed)
        return {name: piece for name, piece in pieces.items() if name.startswith(EXPORTED)}

    def save(self, tag: Path) -> None:
        """Writes a file into a checkpoint's folder, which any number of ranks can read at any ZeRO stage: for each
        parameter its first element that this rank keeps, and the mean of the elements from there on."""
        if not self._mean or (self._engine.stage == 0 and not ranks.is_main()):
            return
        content = {name: {"first": piece.first, "mean": piece.values[WEIGHTS]} for name, piece in self._mean.items()}
        self._engine.writer.save(content, str(tag / f"{FILE}{ranks.rank()}.pt"))

    def load(self, tag: Path, files: Sequence[str]) -> None:
        """Loads what `save` wrote on all ranks; `files` are the names of the checkpoint's."""
        saved = []
        for file in files:
            if file.startswith(FILE):
                content = read_state(tag / file)
                saved.append({key: Piece(kept["first"], {WEIGHTS: kept["mean"]}) for key, kept in content.items()})
        names = {name for pieces in saved for name in pieces}
        self._mean = _copies({name: piece for name, piece in self._weights().items() if name in names})
        copy_pieces(saved, self._mean, tag)


def _copies(pieces: Pieces) -> Pieces:
    return {name: Piece(piece.first, {WEIGHTS: piece.values[WEIGHTS].clone()}) for name, piece in pieces.items()}


def _tensors(pieces: Pieces) -> list[Tensor]:
    return [piece.values[WEIGHTS] for piece in pieces.values()]
