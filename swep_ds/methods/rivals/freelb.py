"""FreeLB takes K ascent steps on an additive perturbation, and trains on the embeddings of each step (Zhu et al. 2020).

Algorithm 1, with delta_0 ~ U(-radius, radius) / sqrt(L d) for a window of L tokens:

    loss = 1/K sum_k nll(e + delta_k),   delta_{k+1} = project(delta_k + step * g_k / ||g_k||_F)
    g_k = gradient of nll(e + delta_k) with respect to delta_k;   project: onto ||delta||_F <= radius, per window

The gradient of an ascent step is a by-product of the backward that trains the model, and all K passes drop the same
units (Section 3.3).
"""

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, direction, norm, uniform
from swep_ds.methods.rivals.settings import FreelbSettings


class Freelb(Method):
    settings: FreelbSettings

    def passes(self, progress: float) -> list[Pass]:
        count = self.settings.ascent_steps
        return [Pass(f"step{k}", 1 / count, self._perturb, repeats_dropout=True) for k in range(count)]

    def _perturb(self, inputs: Inputs) -> Perturbed:
        before = inputs.carried.delta
        if before is None:
            size_N = inputs.mask.sum((1, 2)) * inputs.embeddings.shape[-1]
            scale_N = self.settings.radius / size_N.sqrt()
            delta = (2 * uniform(inputs) - 1) * scale_N[:, None, None] * inputs.mask
        else:
            # only the direction counts: the length depends on the window's weight and the loss scale
            delta = before.detach() + self.settings.step_size * direction(before.grad * inputs.mask)
            delta = delta * (self.settings.radius / norm(delta)).clamp(max=1)
        delta.requires_grad_()
        return Perturbed(inputs.embeddings + delta.to(inputs.embeddings.dtype), delta=delta)
