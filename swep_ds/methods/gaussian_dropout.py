"""Gaussian-Dropout multiplies word embeddings by noise from N(1, p / (1 - p)) (Srivastava et al. 2014, Section 10)."""

from typing import ClassVar, Literal

from pydantic import Field

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, Settings, multiply_by_gaussian


class GaussianDropoutSettings(Settings):
    draws_noise: ClassVar[bool] = True
    name: Literal["gaussian_dropout"] = "gaussian_dropout"
    drop_probability: float = Field(0.1, gt=0, lt=1)  # p of the dropout that has its variance


class GaussianDropout(Method):
    def __init__(self, settings: GaussianDropoutSettings, hidden_size: int, embedding_size: int):
        super().__init__()
        self.variance = settings.drop_probability / (1 - settings.drop_probability)

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("noisy", 1.0, self._draw)]

    def _draw(self, inputs: Inputs) -> Perturbed:
        return Perturbed(multiply_by_gaussian(inputs, self.variance))
