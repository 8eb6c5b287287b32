"""SWEP multiplies word embeddings by noise that the model itself learns (Lee et al., ACL 2021, Section 3, Algorithm 1).

    Eq. 1   L_MLE   = nll(e)                                   the clean pass, which leaves h = f(e)
    Eq. 2   L_noise = nll(e~) + beta * KL(N(mu, sigma^2) || N(1, alpha I))      the noisy pass: the ELBO, for beta 1/K
    Eq. 3   (mu, log sigma^2) = (1, log alpha) + MLP(stop_gradient(h))          `NoiseGenerator`
            z = mu + sigma * eps, eps ~ N(0, I);  e~ = e * z                    `Swep._perturb`
    Eq. 4   loss = lambda * L_MLE + (1 - lambda) * L_noise                      `Swep.passes`

`Objective.loss` runs the passes, detaches h, which is the stop-gradient, and adds up the loss. At inference nothing is
perturbed.

The ablations of Section 5.1 are settings: `noise` (additive e~ = e + mu + sigma * eps with prior N(0, alpha I), mu
fixed at 1, sigma fixed at 1, no epsilon: see `kernels/modes.py`), `beta` 0 (no KL), `mle_weight` 0 (no L_MLE).
Not the paper's are `divergence_weight`, R-Drop's divergence between p(y | e) and p(y | e~), noise `shuffled`, which
gives the mu and sigma of a window's tokens to other tokens of the window, and `adversarial`: the noise generator then
maximises nll(e~) - beta * KL, while the model still minimises Eq. 4.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from swep_ds.kernels import MODES
from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, draw_noise
from swep_ds.methods.kl_control import KLController
from swep_ds.methods.noise_effect import noise_effect, noise_statistics, shuffle
from swep_ds.methods.settings import SwepSettings, dose


class NoiseGenerator(nn.Module):
    """q(z | x) of Eq. 3: two linear layers with a ReLU between, hidden -> d -> 2d. The prior's mean m is 1, or 0 for
    additive noise."""

    def __init__(self, settings: SwepSettings, hidden_size: int, embedding_size: int, prior_mean: float = 1.0):
        super().__init__()
        self.inner = nn.Linear(hidden_size, embedding_size)
        self.dropout = nn.Dropout(settings.noise_dropout)
        self.difference = nn.Linear(embedding_size, 2 * embedding_size)
        with torch.no_grad():
            if settings.initialisation == "prior":
                nn.init.normal_(self.difference.weight, std=1e-3)
                nn.init.zeros_(self.difference.bias)
            else:  # mu and log sigma^2 are then what PyTorch starts with
                self.difference.bias[:embedding_size] -= prior_mean
                self.difference.bias[embedding_size:] -= math.log(settings.prior_variance)

    def forward(self, hidden_NTH: Tensor) -> Tensor:
        """h [N, T, hidden] -> differences from the prior [N, T, 2d]: mu - m, then log(sigma^2 / alpha).

        bfloat16 would round such small differences away from mu itself (`kernels/modes.py`).
        """
        hidden_NTH = hidden_NTH.to(self.inner.weight.dtype)  # a frozen model may be in bf16, and this in float32
        return self.difference(self.dropout(torch.relu(self.inner(hidden_NTH))))


def reverse_gradient(values: Tensor) -> Tensor:
    """The same values, whose gradient goes back with the other sign (Ganin and Lempitsky, ICML 2015)."""
    return 2 * values.detach() - values  # exact, and known to autocast, graphs and ZeRO


class Swep(Method):
    settings: SwepSettings
    replayable = True

    def __init__(self, settings: SwepSettings, hidden_size: int, embedding_size: int):
        super().__init__(settings)
        self.kl_reduction = settings.kl_reduction
        self.learning_rate = settings.noise_learning_rate
        self.max_grad_norm = settings.noise_max_grad_norm
        self.mode = "learned" if settings.noise == "shuffled" else settings.noise
        self.noise = NoiseGenerator(settings, hidden_size, embedding_size, MODES[self.mode].prior_mean)
        if settings.kl_target is not None:
            self.control = KLController(settings.kl_target, settings.beta)
            self.watches = "kl_per_window" if self.kl_reduction == "sum" else "kl_per_token"

    def passes(self, progress: float) -> list[Pass]:
        """Algorithm 1, with the weights of Eq. 4."""
        weight = self.settings.mle_weight
        divergence = self.settings.divergence_weight
        noisy = Pass("noisy", 1 - weight, self._perturb, kl_weight=(1 - weight) * self.beta(progress))
        if self.settings.separate_hidden_pass:
            clean = [Pass("clean", weight, divergence_weight=divergence)] if weight else []
            return [Pass("hidden", 0.0, keeps_hidden=True), noisy, *clean]
        return [Pass("clean", weight, keeps_hidden=True), replace(noisy, divergence_weight=divergence)]

    def _perturb(self, inputs: Inputs) -> Perturbed:
        """Eq. 3: e~ = e * z with z = mu + sigma * eps; and the KL of Eq. 2 per token."""
        alpha = self.settings.prior_variance
        h = inputs.carried.hidden  # detached by `Objective.loss`: the noise gives the encoder no gradient through it
        parameters = self.noise(h)
        if self.settings.noise == "shuffled":
            parameters = shuffle(parameters, inputs)
        if self.settings.adversarial:
            parameters = reverse_gradient(parameters)
        # one call computes mu, sigma, z, the product and the KL: `kernels/modes.py` has the formulas
        embeddings, kl = draw_noise(inputs, parameters, alpha, self.mode)
        if self.settings.adversarial:
            kl = reverse_gradient(kl)  # twice reversed: the KL still holds the noise near its prior
        return Perturbed(
            embeddings,
            kl,
            measure=lambda: noise_statistics(parameters.detach(), alpha, self.mode),
            compare=lambda: noise_effect(inputs, self.noise, alpha, self.mode),
        )

    def beta(self, progress: float) -> float | Tensor:
        """The weight of the KL in Eq. 2."""
        if self.control:
            return self.control.beta
        shares = {
            "constant": 1.0,
            "linear_to_zero": 1 - progress,
            "zero_in_second_half": float(progress < 0.5),
        }
        return self.settings.beta * shares[self.settings.beta_schedule]

    def remark(self, means: dict[str, float], progress: float) -> str | None:
        """Says where the noise is nearly its prior, judged by its KL, which bounds what it tells about the answer."""
        if "span_nats" not in means or progress < 0.1:  # it starts there
            return None
        kl = means["kl_per_window"]
        span = means["span_nats"]
        if self.control and means[self.watches] > self.control.target / 4:  # a mean of ten updates swings
            return None
        if kl >= span:
            return None
        return (
            f"the learned noise is nearly its prior: the KL is {dose(means)}, and naming an answer span takes "
            f"{span:.1f} (2 ln of the window's tokens); lower method.beta, raise method.noise_learning_rate, or train "
            "for more updates"
        )
