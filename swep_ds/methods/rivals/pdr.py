"""PDR penalises the divergence of predictions on clean and on virtually adversarial embeddings (Cheng et al. 2021).

    loss = nll(e) + weight * (KL(p || q) + KL(q || p)),   p = p(y | e),   q = p(y | e + epsilon * g / ||g||_F)
    g = gradient of KL(p || r) + KL(r || p) with respect to xi, per window;   r = p(y | e + start * xi), xi ~ N(0, I)

The symmetric KL is one of their f-divergences, and the regulariser of SMART (Jiang et al., ACL 2020) in its first half.
No answer enters the ascent, as in virtual adversarial training (Miyato et al. 2017). The ascent runs the model without
dropout and computes only the gradient of the embeddings.
"""

import torch

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, direction, gaussian
from swep_ds.methods.rivals.settings import PdrSettings
from swep_ds.models.outputs import symmetric_divergence


class Pdr(Method):
    settings: PdrSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        weight = 2 * self.settings.divergence_weight  # a pass halves the sum of both directions
        return [Pass("clean", 1.0), Pass("adversarial", 0.0, self._ascend, divergence_weight=weight)]

    def _ascend(self, inputs: Inputs) -> Perturbed:
        base = inputs.embeddings.detach()
        with torch.no_grad():
            clean = inputs.forward(base)
        start = (self.settings.start_size * gaussian(inputs) * inputs.mask).requires_grad_()
        divergence_N = symmetric_divergence(clean, inputs.forward(base + start.to(base.dtype)))
        # the logarithm rises in the same direction, and its gradient does not underflow where the divergence is small
        [gradient_NTd] = torch.autograd.grad(divergence_N.log().sum(), start)
        delta = self.settings.epsilon * direction(gradient_NTd * inputs.mask)
        return Perturbed(inputs.embeddings + delta.to(base.dtype))
