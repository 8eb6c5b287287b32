"""Gaussian-Dropout multiplies word embeddings by noise from N(1, p / (1 - p)) (Srivastava et al. 2014, Section 10).

p is the probability of dropping, so 0.1 is a variance of 0.111. Lee et al. 2021 write (1 - p) / p: at 0.1 that is 9.
"""

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, multiply_by_gaussian
from swep_ds.methods.settings import GaussianDropoutSettings


class GaussianDropout(Method):
    settings: GaussianDropoutSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("noisy", 1.0, self._draw)]

    def _draw(self, inputs: Inputs) -> Perturbed:
        p = self.settings.drop_probability
        return Perturbed(multiply_by_gaussian(inputs, p / (1 - p)))
