"""Bernoulli-Dropout sets each dimension of a word embedding to zero with probability p, or divides it by 1 - p.

Srivastava et al., JMLR 2014, Section 4, with the scaling at training time that is usual today.
"""

from swep_ds.methods import method
from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, uniform
from swep_ds.methods.settings import BernoulliDropoutSettings


@method("bernoulli_dropout")
class BernoulliDropout(Method):
    def __init__(self, settings: BernoulliDropoutSettings, hidden_size: int, embedding_size: int):
        super().__init__()
        self.p = settings.drop_probability

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("noisy", 1.0, self._drop)]

    def _drop(self, inputs: Inputs) -> Perturbed:
        kept_NTd = (uniform(inputs) >= self.p).to(inputs.embeddings.dtype)
        return Perturbed(inputs.embeddings * kept_NTd / (1 - self.p))
