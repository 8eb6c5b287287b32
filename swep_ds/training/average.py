"""The mean of the model's weights over a run's updates, which is tested and exported in their place.

With theta_u the weights after update u, U updates in all, and the share of the newest weights in the mean

    mean_u = mean_(u-1) + share_u (theta_u - mean_(u-1))

    ema:     share_u = (1 - d) / (1 - d^u)     d = `average_decay`; mean_u = sum_i (1 - d) d^(u-i) theta_i / (1 - d^u):
             corrected as Adam's moments are (Kingma and Ba 2015, Section 3), so the start with its new head has no part
    last_k:  share_u = 1 / (u - U + k)         for the last k = round(`average_last` U) updates, else 0. LAWA (Kaddour
             2022) and SWA (Lu et al. 2022, arXiv 2212.05956, for fine-tuning) are this mean over every n-th update

Notable:
- Training never sees the mean: losses and weights are those of a run without one.
- The model's parameters are averaged, as they are exported; the method's (such as SWEP's noise generator) are not.
- A rank keeps the mean of the elements that its optimizer updates, in float32: one copy of the weights at ZeRO-0, a
  part of it at ZeRO 1 to 3, in CPU memory with `offload_optimizer`.
- An update that fp16 skips counts with the weights it left as they were.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.errors import InputError
from swep_ds.training.checkpoint_files import Manifest
from swep_ds.training.conversion import copy_parts, engine_flats, engine_shares, refresh_weights
from swep_ds.training.deepspeed_files import WEIGHTS, Part, Share, average_file, is_average, read_state
from swep_ds.training.settings import TrainSection

EXPORTED = "qa."  # begins the names of the model's parameters in the engine's module


def last_k(train: TrainSection, updates: int) -> int:
    """The number of updates over which `average: last_k` takes the mean.

    Raises:
        InputError: over fewer than two.
    """
    count = round(train.average_last * updates)
    if count < 2:
        raise InputError(
            f"train.average_last {train.average_last:g}: that is {count} of {updates} update(s), and a mean needs 2: "
            "raise it, or set train.average to none"
        )
    return count


def newest_share(train: TrainSection, updates: int, update: int) -> float:
    """The share of the weights after `update` (from 1) in the mean; 0 before the mean begins, 1 where it does."""
    if train.average == "ema":
        return (1 - train.average_decay) / (1 - train.average_decay**update)
    counted = update - updates + last_k(train, updates)
    return 1 / counted if counted > 0 else 0.0


class WeightAverage:
    """What a rank keeps of the mean over an `Engine`, whose float32 weights must be its optimizer's parameters."""

    def __init__(self, engine, train: TrainSection, updates: int):
        """`updates`: those of the whole run."""
        self._engine, self._train, self._updates = engine, train, updates
        shares = engine_shares(engine.deepspeed, engine_flats(engine.deepspeed))
        self._shares = {name: share for name, share in shares.items() if name.startswith(EXPORTED)}
        self._means: list[Tensor] = []  # in the order of the shares, each of shape [count]; none before the mean begins

    @classmethod
    def of(cls, engine, train: TrainSection, updates: int) -> "WeightAverage | None":
        """The mean that the settings ask for; None if they ask for none."""
        return None if train.average == "none" else cls(engine, train, updates)

    def add(self, update: int) -> None:
        """Adds the weights after `update`, which counts from 1."""
        share = newest_share(self._train, self._updates, update)
        if share == 1:
            self._means = [weights.clone() for weights in self._weights()]
        elif share and self._means:  # none where a rank keeps nothing of a small model
            torch._foreach_lerp_(self._means, self._weights(), share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The engine has the mean as its weights inside, and its own again, to the last bit, outside. Collective.

        Before the mean begins these are the same. An exception leaves the mean in the engine: putting the weights back
        is collective, and other ranks may not get there.
        """
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

    def _weights(self) -> list[Tensor]:
        """The float32 weights behind the means; looked up anew, as DeepSpeed may replace its tensors."""
        flats = [flat.data.view(-1) for flat in engine_flats(self._engine.deepspeed)]
        return [flats[share.group].narrow(0, share.at, share.count) for share in self._shares.values()]

    def save(self, tag: Path) -> None:
        """Writes a file into the folder of a checkpoint: for each parameter, which of its elements, and their mean.

        Any number of ranks can read the files at any ZeRO stage.
        """
        if not self._means or (self._engine.stage == 0 and not ranks.is_main()):
            return
        self._engine.deepspeed.checkpoint_engine.save(self._content(), str(tag / average_file(ranks.rank())))

    def load(self, tag: Path, manifest: Manifest) -> None:
        """Loads what `save` wrote on all ranks; nothing if the mean had not begun.

        Raises:
            InputError: elements of the mean are missing.
        """
        self._means = []
        if not newest_share(self._train, self._updates, manifest.done.updates):
            return
        files = [read_state(tag / name) for name in sorted(manifest.files) if is_average(name)]
        self._means = [torch.empty_like(weights) for weights in self._weights()]
        copy_parts([_part(content) for content in files], _part(self._content()), tag)

    def _content(self) -> dict[str, dict[str, Any]]:
        """By parameter: its first element that this rank keeps, and their mean."""
        kept = zip(self._shares.items(), self._means, strict=True)
        return {name: {"first": share.first, "mean": mean} for (name, share), mean in kept}


def _part(content: dict[str, dict[str, Any]]) -> Part:
    """A part with a flat tensor for each parameter."""
    shares, flats = {}, []
    for group, (name, kept) in enumerate(content.items()):
        shares[name] = Share(group, 0, kept["first"], len(kept["mean"]))
        flats.append({WEIGHTS: kept["mean"]})
    return Part(shares, flats)
