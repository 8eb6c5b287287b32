"""SWEP: word embeddings multiplied by noise that the model itself learns (Lee et al., ACL 2021, Eq. 1-4, Algorithm 1).

    h = f(e)                                                    the clean pass
    (mu, log sigma^2) = MLP(stop_gradient(h))                   `NoiseGenerator` (Eq. 2)
    z = mu + sigma * eps, eps ~ N(0, I);  e~ = e * z            `Swep._perturb`
    loss = lambda * nll(e) + (1 - lambda) * (nll(e~) + beta * KL(N(mu, sigma^2) || N(1, alpha I)))

Algorithm 1 is `Swep.passes`: the clean pass leaves h, the noisy pass perturbs. `Objective.forward` detaches h, which is
the stop-gradient, and adds up the loss; `swep_ds.training.loop.run_update` goes forward and backward. At inference
nothing is perturbed.

With `divergence_weight` the loss also has R-Drop's divergence between p(y | e) and p(y | e~); the paper has none.

The ablations of Section 4.4 are settings: `noise` (additive e~ = e + mu + sigma * eps with prior N(0, alpha I), mu
fixed at 1, sigma fixed at 1, no epsilon: see `kernels/modes.py`), `beta` 0 (no KL), `mle_weight` 0 (no L_MLE).
"""

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from swep_ds.kernels import MODES, perturb
from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, Settings


class SwepSettings(Settings):
    draws_noise: ClassVar[bool] = True
    name: Literal["swep"] = "swep"
    noise: Literal["learned", "additive", "fixed_mu", "fixed_sigma", "no_eps"] = "learned"
    beta: float = Field(1.0, ge=0)  # weight of the KL; 1 = the ELBO. Its scale depends on d and on kl_reduction
    # to zero over the whole run, or over its second half: the paper's table by word frequency anneals in the second of
    # two epochs
    beta_schedule: Literal["constant", "linear_to_zero", "second_half_to_zero"] = "constant"
    prior_variance: float = Field(0.1, gt=0)  # alpha
    mle_weight: float = Field(0.5, ge=0, lt=1)  # lambda
    kl_reduction: Literal["sum", "mean"] = "sum"  # over a window's tokens; both sum over d
    # start at the prior, where the KL is 0 and SWEP is Prior-Aug; or as PyTorch does, where mu starts near 0 and sigma
    # near 1, so that the first noisy inputs are nearly erased
    initialisation: Literal["prior", "default"] = "prior"
    noise_dropout: float = Field(0.0, ge=0, lt=1)  # in the noise generator, after its ReLU (the published code's)
    separate_hidden_pass: bool = False  # h from a pass of its own, without gradient (the published code)
    divergence_weight: float = Field(0.0, ge=0)  # of R-Drop's symmetric KL between clean and noisy predictions


class NoiseGenerator(nn.Module):
    """q(z | x) of Eq. 2: two linear layers with a ReLU between, hidden -> d -> 2d.

    With hidden = d it has 3 d^2 + 3 d parameters, as the paper's.

    Args:
        hidden_size: width of h, the encoder's last hidden state.
        embedding_size: d, width of the word embeddings.
        prior_mean: where mu starts with initialisation "prior": 1, or 0 for additive noise.
    """

    def __init__(self, settings: SwepSettings, hidden_size: int, embedding_size: int, prior_mean: float = 1.0):
        super().__init__()
        self.inner = nn.Linear(hidden_size, embedding_size)
        self.dropout = nn.Dropout(settings.noise_dropout)
        self.outer = nn.Linear(embedding_size, 2 * embedding_size)
        if settings.initialisation == "prior":
            with torch.no_grad():
                nn.init.normal_(self.outer.weight, std=1e-3)
                self.outer.bias[:embedding_size] = prior_mean
                self.outer.bias[embedding_size:] = math.log(settings.prior_variance)

    def forward(self, hidden_NTH: Tensor) -> Tensor:
        """h [N, T, hidden] -> [N, T, 2d]: mu, then log sigma^2."""
        return self.outer(self.dropout(torch.relu(self.inner(hidden_NTH))))


class Swep(Method):
    def __init__(self, settings: SwepSettings, hidden_size: int, embedding_size: int):
        super().__init__()
        self.settings, self.mode, self.kl_reduction = settings, MODES[settings.noise], settings.kl_reduction
        self.noise = NoiseGenerator(settings, hidden_size, embedding_size, self.mode.prior_mean)

    def passes(self, progress: float) -> list[Pass]:
        """One update of Algorithm 1."""
        weight, divergence = self.settings.mle_weight, self.settings.divergence_weight
        noisy = Pass("noisy", 1 - weight, self._perturb, kl_weight=(1 - weight) * self.beta(progress))
        if self.settings.separate_hidden_pass:
            clean = [Pass("clean", weight, divergence_weight=divergence)] if weight else []
            return [Pass("hidden", 0.0, keeps_hidden=True), noisy, *clean]
        return [Pass("clean", weight, keeps_hidden=True), replace(noisy, divergence_weight=divergence)]

    def beta(self, progress: float) -> float:
        shares = {"constant": 1.0, "linear_to_zero": 1 - progress, "second_half_to_zero": min(1.0, 2 * (1 - progress))}
        return self.settings.beta * shares[self.settings.beta_schedule]

    def _perturb(self, inputs: Inputs) -> Perturbed:
        """e~ and the KL per token. h is detached (`PassState`): no gradient of the noise reaches the encoder by it."""
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
