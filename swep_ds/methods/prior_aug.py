"""Prior-Aug trains on clean inputs, and on inputs times noise from the prior N(1, alpha I) (Lee et al. 2021, 4.2)."""

from typing import ClassVar, Literal

from pydantic import Field

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, Settings, multiply_by_gaussian


class PriorAugSettings(Settings):
    draws_noise: ClassVar[bool] = True
    name: Literal["prior_aug"] = "prior_aug"
    prior_variance: float = Field(0.1, gt=0)  # alpha, the variance of the noise
    mle_weight: float = Field(0.5, ge=0, lt=1)  # lambda, the weight of the clean pass


class PriorAug(Method):
    def __init__(self, settings: PriorAugSettings, hidden_size: int, embedding_size: int):
        super().__init__()
        self.settings = settings

    def passes(self, progress: float) -> list[Pass]:
        weight = self.settings.mle_weight
        clean = [Pass("clean", weight)] if weight else []
        return [*clean, Pass("noisy", 1 - weight, self._draw)]

    def _draw(self, inputs: Inputs) -> Perturbed:
        return Perturbed(multiply_by_gaussian(inputs, self.settings.prior_variance))
