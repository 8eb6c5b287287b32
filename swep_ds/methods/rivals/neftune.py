"""NEFTune adds uniform noise to word embeddings (Jain et al., ICLR 2024, Algorithm 1).

e~ = e + alpha / sqrt(L d) * u,   u ~ U(-1, 1)^(L x d),   L tokens without padding
"""

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, uniform
from swep_ds.methods.rivals.settings import NeftuneSettings


class Neftune(Method):
    settings: NeftuneSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("noisy", 1.0, self._add)]

    def _add(self, inputs: Inputs) -> Perturbed:
        embeddings = inputs.embeddings
        lengths_N = inputs.batch.attention_mask.sum(1)
        scale_N = self.settings.noise_alpha / (lengths_N * embeddings.shape[-1]).sqrt()
        noise_NTd = (2 * uniform(inputs) - 1) * scale_N[:, None, None]
        return Perturbed(embeddings + noise_NTd.to(embeddings.dtype))
