"""SWEP: word embeddings multiplied by noise that the model itself learns (Lee et al. 2021, Eq. 1-4, Algorithm 1).

h = f(e)                                                   clean pass
(mu, log sigma^2) = MLP(stop_gradient(h));  e~ = e * (mu + sigma * eps)
loss = lambda * nll(e) + (1 - lambda) * (nll(e~) + beta * KL(N(mu, sigma^2) || N(1, alpha I)))
"""

import math
from typing import Literal

from pydantic import Field
from torch import Tensor

from swep_ds.kernels import perturb
from swep_ds.methods.base import Method, Pass, Perturbed, Settings
from swep_ds.noise import Initialisation, NoiseGenerator


class SwepSettings(Settings):
    name: Literal["swep"] = "swep"
    beta: float = Field(1.0, ge=0)  # weight of the KL; 1 = the ELBO. Its scale depends on d and on kl_reduction
    beta_schedule: Literal["constant", "linear_to_zero"] = "constant"  # over the whole run
    prior_variance: float = Field(0.1, gt=0)  # alpha
    mle_weight: float = Field(0.5, ge=0, lt=1)  # lambda
    kl_reduction: Literal["sum", "mean"] = "sum"  # over a window's tokens; both sum over d
    initialisation: Initialisation = "prior"
    noise_dropout: float = Field(0.0, ge=0, lt=1)  # in the noise generator, after its ReLU
    separate_hidden_pass: bool = False  # h from a pass of its own, without gradient (the published code)


class Swep(Method):
    def __init__(self, settings: SwepSettings, hidden_size: int, embedding_size: int):
        super().__init__()
        self.settings = settings
        self.kl_reduction = settings.kl_reduction
        self.noise = NoiseGenerator(
            hidden_size,
            embedding_size,
            settings.initialisation,
            settings.prior_variance,
            settings.noise_dropout,
        )

    def beta(self, progress: float) -> float:
        linear = self.settings.beta_schedule == "linear_to_zero"
        return self.settings.beta * (1 - progress if linear else 1.0)

    def passes(self, progress: float) -> list[Pass]:
        weight = self.settings.mle_weight
        noisy = Pass("noisy", 1 - weight, self._draw, kl_weight=(1 - weight) * self.beta(progress))
        if self.settings.separate_hidden_pass:
            clean = [Pass("clean", weight)] if weight else []
            return [Pass("hidden", 0.0, keeps_hidden=True), noisy, *clean]
        return [Pass("clean", weight, keeps_hidden=True), noisy]

    def _draw(self, embeddings, batch, hidden, key) -> Perturbed:
        parameters = self.noise(hidden)
        perturbed, kl = perturb(
            embeddings,
            parameters,
            batch.attention_mask,
            batch.sample_id,
            seed=key.seed,
            draw=key.draw,
            prior_variance=self.settings.prior_variance,
        )
        return Perturbed(perturbed, kl, parameters)

    def idle(self, hidden: Tensor) -> Tensor:
        return 0.0 * self.noise(hidden[:1, :1]).float().sum()

    def remark(self, means: dict[str, float], progress: float) -> str | None:
        if progress < 0.1 or "sigma" not in means:
            return None
        prior_sigma = math.sqrt(self.settings.prior_variance)
        if means["mu_distance"] > 0.01 or abs(means["sigma"] / prior_sigma - 1) > 0.02:
            return None
        return (
            f"the learned noise is its prior (mean |mu - 1| {means['mu_distance']:.4f}, sigma {means['sigma']:.4f} "
            f"against sqrt(alpha) {prior_sigma:.4f}): SWEP is Prior-Aug now; lower method.beta to let it learn"
        )
