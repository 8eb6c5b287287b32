"""Bernoulli-Dropout sets each dimension of a word embedding to zero with probability p, or divides it by 1 - p.

Srivastava et al., JMLR 2014, Section 4, with the scaling at training time that is usual today.
"""

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, uniform
from swep_ds.methods.settings import BernoulliDropoutSettings


class BernoulliDropout(Method):
    settings: BernoulliDropoutSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("noisy", 1.0, self._drop)]

    def _drop(self, inputs: Inputs) -> Perturbed:
        p = self.settings.drop_probability
        kept_NTd = (uniform(inputs) >= p).to(inputs.embeddings.dtype)
        return Perturbed(inputs.embeddings * kept_NTd / (1 - p))
