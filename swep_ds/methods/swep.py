"""SWEP: word embeddings multiplied by noise that the model itself learns (Lee et al. 2021, Eq. 1-4, Algorithm 1).

h = f(e)                                                   clean pass
(mu, log sigma^2) = MLP(stop_gradient(h));  e~ = e * (mu + sigma * eps)
loss = lambda * nll(e) + (1 - lambda) * (nll(e~) + beta * KL(N(mu, sigma^2) || N(1, alpha I)))

The ablations of Section 4.4 are settings: `noise` (additive e~ = e + mu + sigma * eps with prior N(0, alpha I), mu
fixed at 1, sigma fixed at 1, no epsilon: see `kernels/modes.py`), `beta` 0 (no KL), `mle_weight` 0 (no L_MLE).
"""

import math
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from swep_ds.kernels import MODES, perturb
from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, Settings
from swep_ds.methods.noise import Initialisation, NoiseGenerator


class SwepSettings(Settings):
    draws_noise: ClassVar[bool] = True
    name: Literal["swep"] = "swep"
    noise: Literal["learned", "additive", "fixed_mu", "fixed_sigma", "no_eps"] = "learned"
    beta: float = Field(1.0, ge=0)  # weight of the KL; 1 = the ELBO. Its scale depends on d and on kl_reduction
    # to zero over the whole run, or over its second half: of the paper's two epochs the second, as in its table by word
    # frequency
    beta_schedule: Literal["constant", "linear_to_zero", "second_half_to_zero"] = "constant"
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
        self.mode = MODES[settings.noise]
        self.kl_reduction, self.hidden_size = settings.kl_reduction, hidden_size
        self.noise = NoiseGenerator(
            hidden_size,
            embedding_size,
            settings.initialisation,
            settings.prior_variance,
            settings.noise_dropout,
            self.mode.prior_mean,
        )

    def beta(self, progress: float) -> float:
        shares = {"constant": 1.0, "linear_to_zero": 1 - progress, "second_half_to_zero": min(1.0, 2 * (1 - progress))}
        return self.settings.beta * shares[self.settings.beta_schedule]

    def passes(self, progress: float) -> list[Pass]:
        weight = self.settings.mle_weight
        noisy = Pass("noisy", 1 - weight, self._draw, kl_weight=(1 - weight) * self.beta(progress))
        if self.settings.separate_hidden_pass:
            clean = [Pass("clean", weight)] if weight else []
            return [Pass("hidden", 0.0, keeps_hidden=True), noisy, *clean]
        return [Pass("clean", weight, keeps_hidden=True), noisy]

    def _draw(self, inputs: Inputs) -> Perturbed:
        parameters = self.noise(inputs.carried.hidden)
        perturbed, kl = perturb(
            inputs.embeddings,
            parameters,
            inputs.batch.attention_mask,
            inputs.batch.sample_id,
            seed=inputs.key.seed,
            draw=inputs.key.draw,
            prior_variance=self.settings.prior_variance,
            mode=self.settings.noise,
        )
        return Perturbed(perturbed, kl, lambda: self._statistics(parameters.detach()))

    def _statistics(self, parameters: Tensor) -> dict[str, Tensor]:
        """Means over d, [N, T], of what is learned: mu, |mu - the prior's mean| and sigma."""
        mu, log_variance = parameters.float().chunk(2, -1)
        statistics = {}
        if self.mode.learned_mu:
            statistics |= {"mu": mu.mean(-1), "mu_distance": (mu - self.mode.prior_mean).abs().mean(-1)}
        if self.mode.learned_sigma:
            statistics["sigma"] = (log_variance / 2).exp().mean(-1)
        return statistics

    def idle(self, embeddings: Tensor) -> Tensor:
        return 0.0 * self.noise(embeddings.new_zeros(1, 1, self.hidden_size)).float().sum()

    def remark(self, means: dict[str, float], progress: float) -> str | None:
        learned = {name: means[name] for name in ("mu_distance", "sigma") if name in means}
        prior_sigma = math.sqrt(self.settings.prior_variance)
        sigma_ratio = learned.get("sigma", prior_sigma) / prior_sigma
        moved = learned.get("mu_distance", 0.0) > 0.01 or abs(sigma_ratio - 1) > 0.02
        if progress < 0.1 or not learned or moved:
            return None
        seen = ", ".join(f"{name.replace('mu_distance', 'mean |mu - prior|')} {v:.4f}" for name, v in learned.items())
        return (
            f"the learned noise is its prior ({seen}; sqrt(alpha) {prior_sigma:.4f}): the model learns nothing about "
            "noise now, as in Prior-Aug; lower method.beta to let it learn"
        )
