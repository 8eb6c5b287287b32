"""Adv-Aug trains on clean word embeddings and on adversarial ones (Volpi et al., NeurIPS 2018; Lee et al. 2021).

    e_{k+1} = e_k + step_size * ||e||_F * g_k / ||g_k||_F,   e_0 = e
    g_k = gradient of nll(e_k) - penalty * c(e_k) with respect to e_k
    c(e_k) = 1/2 * mean over the window's tokens of ||h(e_k) - h(e)||^2
    loss = lambda * nll(e) + (1 - lambda) * nll(e_K)

c is Volpi et al.'s distance in semantic space (their Eq. 3), h the last hidden state. They step along g_k itself. Here
a step has a fixed length, because the penalty is so curved that no single step size climbs for every model.
The ascent runs the model without dropout and computes only the gradient of the embeddings.
"""

import torch

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, direction, norm
from swep_ds.methods.settings import AdvAugSettings


class AdvAug(Method):
    settings: AdvAugSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        weight = self.settings.mle_weight
        clean = [Pass("clean", weight)] if weight else []
        return [*clean, Pass("adversarial", 1 - weight, self._ascend)]

    def _ascend(self, inputs: Inputs) -> Perturbed:
        mask_NT = inputs.batch.attention_mask
        base = inputs.embeddings.detach()
        step_N11 = self.settings.step_size * norm(base * mask_NT[..., None])
        delta = torch.zeros_like(base, dtype=torch.float32)
        h = None
        for _ in range(self.settings.ascent_steps):
            delta.requires_grad_()
            output = inputs.forward(base + delta.to(base.dtype))
            if h is None:
                h = output.hidden.detach()
            distance_NT = (output.hidden - h).float().square().sum(-1) / 2
            distance_N = (distance_NT * mask_NT).sum(1) / mask_NT.sum(1)
            goal = (output.nll - self.settings.penalty * distance_N).sum()
            [gradient] = torch.autograd.grad(goal, delta)
            delta = (delta + step_N11 * direction(gradient * mask_NT[..., None])).detach()
        return Perturbed(inputs.embeddings + delta.to(base.dtype))
