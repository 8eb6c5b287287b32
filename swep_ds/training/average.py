"""The mean of the model's weights over a run's updates, which is tested and exported in their place.

With theta_u the weights after update u, U updates in all, and the share of the newest weights in the mean

    mean_u = mean_(u-1) + share_u (theta_u - mean_(u-1))

    ema:     share_u = (1 - d) / (1 - d^u)     d = `average_decay`; mean_u = sum_i (1 - d) d^(u-i) theta_i / (1 - d^u):
             corrected as Adam's moments are (Kingma and Ba 2015, Section 3), so the start with its new head has no part
    last_k:  share_u = 1 / (u - U + k)         for the last k = round(`average_last` U) updates, else 0. LAWA (Kaddour
             2022) and SWA (Lu et al. 2022, arXiv 2212.05956, for fine-tuning) are this mean over every n-th update

or, of the weights theta_0 that training started from and those after it (WiSE-FT; Wortsman et al. 2022, CVPR),

    start:   mean_U = s theta_0 + (1 - s) theta_U     s = `average_start`. New weights, as of a head that the model had
             not before, have no start: they stay theta_U

Training never sees the mean. The model's parameters are averaged, as they are exported; the method's are not. A rank
keeps the mean of the elements that its optimizer updates, in float32. An update that fp16 skips counts, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.errors import InputError
from swep_ds.training.checkpoint_files import Manifest
from swep_ds.training.conversion import WEIGHTS, Piece, Pieces, copy_pieces, engine_pieces, read_state, refresh_weights
from swep_ds.training.settings import TrainSection

EXPORTED = "qa."  # begins the names of the model's parameters in the engine's module
FILE = "average_rank_"  # begins the names of its files in a checkpoint


def newest_share(train: TrainSection, updates: int, update: int) -> float:
    """The share of the weights after `update` (from 1) in the mean; 0 before the mean begins, 1 where it does."""
    if train.average == "start":
        return 0.0  # its mean is made only when it is applied
    if train.average == "ema":
        return (1 - train.average_decay) / (1 - train.average_decay**update)
    counted = update - updates + round(train.average_last * updates)
    if counted <= 0:
        return 0.0
    return 1 / counted


class WeightAverage:
    """What a rank keeps of the mean over an `Engine`, in a run of so many `updates`, if the settings ask for a mean.
    Make it before a checkpoint is loaded: the engine then has the start's weights. Raises InputError: `average_last`
    asks for the mean of fewer than two updates."""

    def __init__(self, engine, train: TrainSection, updates: int):
        if train.average == "last_k" and round(train.average_last * updates) < 2:
            raise InputError(
                f"train.average_last: {train.average_last:g} of {updates} update(s) are fewer than the 2 that a mean "
                "needs: raise it, or set train.average to none"
            )
        self._engine = engine
        self._train = train
        self._updates = updates
        self._mean: Pieces = {}  # empty before the mean begins; of kind "start" the start's weights
        if train.average == "start":
            new = {f"qa.model.{name}" for name in engine.module.qa.model.new_weights}
            self._mean = _copies({name: piece for name, piece in self._weights().items() if name not in new})

    def add(self, update: int) -> None:
        """Adds the weights after `update`, which counts from 1."""
        share = newest_share(self._train, self._updates, update)
        if share == 1:
            self._mean = _copies(self._weights())
        elif share and self._mean:  # it has begun, and this rank keeps a part of the model
            torch._foreach_lerp_(_tensors(self._mean), self._averaged(), share)

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
        self._engine.deepspeed.checkpoint_engine.save(content, str(tag / f"{FILE}{ranks.rank()}.pt"))

    def load(self, tag: Path, manifest: Manifest) -> None:
        """Loads what `save` wrote on all ranks; nothing if the mean had not begun."""
        saved = []
        for name in manifest.files:
            if name.startswith(FILE):
                content = read_state(tag / name)
                saved.append({key: Piece(kept["first"], {WEIGHTS: kept["mean"]}) for key, kept in content.items()})
        names = {name for pieces in saved for name in pieces}
        self._mean = _copies({name: piece for name, piece in self._weights().items() if name in names})
        copy_pieces(saved, self._mean, tag)


def _copies(pieces: Pieces) -> Pieces:
    return {name: Piece(piece.first, {WEIGHTS: piece.values[WEIGHTS].clone()}) for name, piece in pieces.items()}


def _tensors(pieces: Pieces) -> list[Tensor]:
    return [piece.values[WEIGHTS] for piece in pieces.values()]
