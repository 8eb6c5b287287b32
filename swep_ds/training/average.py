"""The mean of the model's weights over a run's updates, which is tested and exported in their place.

With theta_u the weights after update u, U updates in all, and the share of the newest weights in the mean

    mean_u = mean_(u-1) + share_u (theta_u - mean_(u-1))

    ema:     share_u = (1 - d) / (1 - d^u)     d = `average_decay`; mean_u = sum_i (1 - d) d^(u-i) theta_i / (1 - d^u):
             corrected as Adam's moments are (Kingma and Ba 2015, Section 3), so the start with its new head has no part
    last_k:  share_u = 1 / (u - U + k)         for the last k = round(`average_last` U) updates, else 0. LAWA (Kaddour
             2022) and SWA (Lu et al. 2022, arXiv 2212.05956, for fine-tuning) are this mean over every n-th update

Training never sees the mean. The model's parameters are averaged, as they are exported; the method's are not. A rank
keeps the mean of the elements that its optimizer updates, in float32. An update that fp16 skips counts, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from swep_ds import ranks
from swep_ds.training.checkpoint_files import Manifest
from swep_ds.training.conversion import WEIGHTS, Piece, copy_pieces, engine_pieces, read_state, refresh_weights
from swep_ds.training.settings import TrainSection

EXPORTED = "qa."  # begins the names of the model's parameters in the engine's module
FILE = "average_rank_"  # begins the names of its files in a checkpoint


def newest_share(train: TrainSection, updates: int, update: int) -> float:
    """The share of the weights after `update` (from 1) in the mean; 0 before the mean begins, 1 where it does."""
    if train.average == "ema":
        return (1 - train.average_decay) / (1 - train.average_decay**update)
    last = max(1, round(train.average_last * updates))
    counted = update - updates + last
    if counted <= 0:
        return 0.0
    return 1 / counted


class WeightAverage:
    """What a rank keeps of the mean over an `Engine`, in a run of so many `updates`, if the settings ask for a mean."""

    def __init__(self, engine, train: TrainSection, updates: int):
        self._engine = engine
        self._train = train
        self._updates = updates
        self._means: list[Tensor] = []  # in the order of `_pieces`; none before the mean begins

    def add(self, update: int) -> None:
        """Adds the weights after `update`, which counts from 1."""
        share = newest_share(self._train, self._updates, update)
        if share == 0:
            return
        weights = self._weights()
        if share == 1:
            self._means = [part.clone() for part in weights]
        elif weights:  # none where a rank keeps nothing of a small model
            torch._foreach_lerp_(self._means, weights, share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The engine has the mean as its weights inside, and its own again, to the last bit, outside. Collective, so an
        exception leaves the mean in the engine."""
        self._swap()
        yield
        self._swap()

    def _swap(self) -> None:
        if self._means:
            for mean, weights in zip(self._means, self._weights(), strict=True):
                swapped = weights.clone()
                weights.copy_(mean)
                mean.copy_(swapped)
        refresh_weights(self._engine.deepspeed)

    def _pieces(self) -> dict[str, Piece]:
        """The float32 weights behind the means. DeepSpeed may replace its tensors."""
        pieces = engine_pieces(self._engine.deepspeed)
        return {name: piece for name, piece in pieces.items() if name.startswith(EXPORTED)}

    def _weights(self) -> list[Tensor]:
        return [piece.values[WEIGHTS] for piece in self._pieces().values()]

    def save(self, tag: Path) -> None:
        """Writes a file into a checkpoint's folder, which any number of ranks can read at any ZeRO stage: for each
        parameter its first element that this rank keeps, and the mean of the elements from there on."""
        if not self._means or (self._engine.stage == 0 and not ranks.is_main()):
            return
        kept = zip(self._pieces().items(), self._means, strict=True)
        content = {name: {"first": piece.first, "mean": mean} for (name, piece), mean in kept}
        self._engine.deepspeed.checkpoint_engine.save(content, str(tag / f"{FILE}{ranks.rank()}.pt"))

    def load(self, tag: Path, manifest: Manifest) -> None:
        """Loads what `save` wrote on all ranks; nothing if the mean had not begun."""
        self._means = []
        if not newest_share(self._train, self._updates, manifest.done.updates):
            return
        saved = []
        for name in manifest.files:
            if name.startswith(FILE):
                content = read_state(tag / name)
                saved.append({key: Piece(kept["first"], {WEIGHTS: kept["mean"]}) for key, kept in content.items()})
        kept = {
            name: Piece(piece.first, {WEIGHTS: torch.empty_like(piece.values[WEIGHTS])})
            for name, piece in self._pieces().items()
        }
        copy_pieces(saved, kept, tag)
        self._means = [piece.values[WEIGHTS] for piece in kept.values()]
