"""FGM adds a second pass, on embeddings that one ascent step made worse (Miyato, Dai, Goodfellow, ICLR 2017).

    loss = nll(e) + nll(e + epsilon * g / ||g||_F),   g = gradient of nll(e) with respect to e, per window

The ascent is a by-product of the clean pass's backward, which trains the model.
"""

import torch

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, direction
from swep_ds.methods.rivals.settings import FgmSettings


class Fgm(Method):
    settings: FgmSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("clean", 1.0, self._watch), Pass("adversarial", 1.0, self._ascend)]

    def _watch(self, inputs: Inputs) -> Perturbed:
        """The embeddings as they are, with a leaf for their gradient."""
        delta = torch.zeros_like(inputs.embeddings, dtype=torch.float32).requires_grad_()
        return Perturbed(inputs.embeddings + delta.to(inputs.embeddings.dtype), delta=delta)

    def _ascend(self, inputs: Inputs) -> Perturbed:
        # only the direction counts: the length depends on the window's weight and the loss scale
        gradient_NTd = inputs.carried.delta.grad * inputs.batch.attention_mask[..., None]
        delta = self.settings.epsilon * direction(gradient_NTd)
        return Perturbed(inputs.embeddings + delta.to(inputs.embeddings.dtype))
