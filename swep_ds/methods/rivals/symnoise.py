"""SymNoise adds noise to embeddings in one pass, and subtracts it in another (Yadav and Singh 2023; arXiv 2605.23171).

    loss = 1/2 (nll(e + delta) + nll(e - delta)),   delta = alpha / sqrt(L d) * s,   s ~ U{-1, 1}^(L x d)

L tokens in the window (padding is not counted), as in NEFTune, whose scale this is.
"""

import torch

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, uniform
from swep_ds.methods.rivals.settings import SymnoiseSettings


class Symnoise(Method):
    settings: SymnoiseSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("plus", 0.5, self._add), Pass("minus", 0.5, self._add)]

    def _add(self, inputs: Inputs) -> Perturbed:
        """The first pass draws delta; the second one takes its negative, whatever its own key."""
        if inputs.carried.delta is not None:
            delta = -inputs.carried.delta
        else:
            scale_N = self.settings.noise_alpha / (inputs.mask.sum((1, 2)) * inputs.embeddings.shape[-1]).sqrt()
            delta = torch.where(uniform(inputs) < 0.5, -1.0, 1.0) * scale_N[:, None, None] * inputs.mask
        return Perturbed(inputs.embeddings + delta.to(inputs.embeddings.dtype), delta=delta)
