"""Gaussian-Dropout multiplies word embeddings by noise from N(1, p / (1 - p)) (Srivastava et al. 2014, Section 10)."""

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
