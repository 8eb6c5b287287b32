"""Prior-Aug trains on clean inputs, and on inputs times noise from the prior N(1, alpha I) (Lee et al. 2021, 4.2)."""

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, multiply_by_gaussian
from swep_ds.methods.settings import PriorAugSettings


class PriorAug(Method):
    settings: PriorAugSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        weight = self.settings.mle_weight
        clean = [Pass("clean", weight)] if weight else []
        return [*clean, Pass("noisy", 1 - weight, self._draw)]

    def _draw(self, inputs: Inputs) -> Perturbed:
        return Perturbed(multiply_by_gaussian(inputs, self.settings.prior_variance))
