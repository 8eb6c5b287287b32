"""Prior-Aug: clean inputs, and inputs multiplied by noise from the prior N(1, alpha I) (Lee et al. 2021, 4.1)."""

from typing import Literal

from pydantic import Field

from swep_ds.kernels import perturb
from swep_ds.methods.base import Method, Pass, Perturbed, Settings


class PriorAugSettings(Settings):
    name: Literal["prior_aug"] = "prior_aug"
    prior_variance: float = Field(0.1, gt=0)  # alpha
    mle_weight: float = Field(0.5, ge=0, lt=1)  # lambda


class PriorAug(Method):
    def __init__(self, settings: PriorAugSettings, hidden_size: int, embedding_size: int):
        super().__init__()
        self.settings = settings

    def passes(self, progress: float) -> list[Pass]:
        weight = self.settings.mle_weight
        clean = [Pass("clean", weight)] if weight else []
        return [*clean, Pass("noisy", 1 - weight, self._draw)]

    def _draw(self, embeddings, batch, hidden, key) -> Perturbed:
        perturbed, _ = perturb(
            embeddings,
            None,
            batch.attention_mask,
            batch.sample_id,
            seed=key.seed,
            draw=key.draw,
            prior_variance=self.settings.prior_variance,
            mode="prior",
        )
        return Perturbed(perturbed)
