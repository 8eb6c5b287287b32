"""R3F penalises what small noise on the embeddings changes in the predictions (Aghajanyan et al., ICLR 2021).

    loss = nll(e) + lambda (KL(p || q) + KL(q || p)),   p = p(y | e),   q = p(y | e + sigma u)
    u ~ U(-1, 1)^(L x d)

Both distributions receive the gradient, and their dropout differs, as in the authors' code. The divergence of a window
is the mean over its predictions (start and end; the target tokens).
"""

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, uniform
from swep_ds.methods.rivals.settings import R3fSettings


class R3f(Method):
    settings: R3fSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        weight = 2 * self.settings.divergence_weight  # a pass halves the sum of both directions
        return [Pass("clean", 1.0), Pass("noisy", 0.0, self._add, divergence_weight=weight)]

    def _add(self, inputs: Inputs) -> Perturbed:
        size_NT1 = self.settings.noise_size * inputs.mask
        noise_NTd = size_NT1 * (2 * uniform(inputs) - 1)
        return Perturbed(inputs.embeddings + noise_NTd.to(inputs.embeddings.dtype))
