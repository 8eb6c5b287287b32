"""SWEP multiplies word embeddings by noise that the model itself learns (Lee et al., ACL 2021, Eq. 1-4, Algorithm 1).

    h = f(e)                                                    the clean pass
    (mu, log sigma^2) = (1, log alpha) + MLP(stop_gradient(h))  `NoiseGenerator` (Eq. 3)
    z = mu + sigma * eps, eps ~ N(0, I);  e~ = e * z            `Swep._perturb` (Eq. 3)
    loss = lambda * nll(e)                                      L_MLE (Eq. 1), weighted by Eq. 4
           + (1 - lambda) * (nll(e~) + beta * KL(N(mu, sigma^2) || N(1, alpha I)))     L_noise (Eq. 2)

Algorithm 1 is `Swep.passes`: the clean pass leaves h, the noisy pass perturbs. `Objective.forward` detaches h, which is
the stop-gradient, and adds up the loss; `swep_ds.training.loop.run_update` goes forward and backward. At inference
nothing is perturbed.

With `divergence_weight` the loss also has R-Drop's divergence between p(y | e) and p(y | e~); the paper has none.

The ablations of Section 5.1 are settings: `noise` (additive e~ = e + mu + sigma * eps with prior N(0, alpha I), mu
fixed at 1, sigma fixed at 1, no epsilon: see `kernels/modes.py`), `beta` 0 (no KL), `mle_weight` 0 (no L_MLE).
A further one is not the paper's: `shuffled` gives the mu and sigma of a window's tokens to other tokens of the window,
so that noise of the same strength and the same KL no longer depends on the word that it perturbs.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from swep_ds.kernels import MODES
from swep_ds.methods.base import Inputs, Method, Need, Pass, Perturbed, Settings, draw_noise
from swep_ds.methods.kl_control import KLController
from swep_ds.methods.noise_effect import collapse_remark, noise_effect, noise_statistics, shuffle
from swep_ds.settings import FieldFault


class SwepSettings(Settings):
    draws_noise: ClassVar[bool] = True
    needs: ClassVar[Need] = "h"
    name: Literal["swep"] = "swep"
    # learned is SWEP; the others are ablations: shuffled among a window's tokens, added, or with a part of it fixed
    noise: Literal["learned", "shuffled", "additive", "fixed_mu", "fixed_sigma", "no_eps"] = "learned"
    # weight of the KL; its scale depends on d and on kl_reduction. nll is the mean over the answer's start and end, or
    # its K tokens, so the ELBO, with their sum, is beta 0.5 for a span and 1 / K for generated tokens
    beta: float = Field(1.0, ge=0)
    # to zero over the whole run, to zero over its second half, or zero throughout its second half: the paper's table by
    # word frequency anneals "in the second epoch" of two
    beta_schedule: Literal["constant", "linear_to_zero", "second_half_to_zero", "zero_in_second_half"] = "constant"
    prior_variance: float = Field(0.1, gt=0)  # alpha, the variance of the noise's prior
    mle_weight: float = Field(0.5, ge=0, lt=1)  # lambda, the weight of the clean pass
    kl_reduction: Literal["sum", "mean"] = "sum"  # over a window's tokens; both sum over d
    # start at the prior, where the KL is 0 and SWEP is Prior-Aug; or as PyTorch does, where mu starts near 0 and sigma
    # near 1, so that the first noisy inputs are nearly erased
    initialisation: Literal["prior", "default"] = "prior"
    noise_dropout: float = Field(0.0, ge=0, lt=1)  # after the noise generator's ReLU, as in the published code
    separate_hidden_pass: bool = False  # computes h in an extra pass without gradient (published code)
    divergence_weight: float = Field(0.0, ge=0)  # weighs R-Drop's symmetric KL between clean and noisy predictions
    # nats per window, or per token with kl_reduction mean; beta starts at `beta` and holds the KL there: kl_control.py
    kl_target: float | None = Field(None, gt=0)
    noise_learning_rate: float | None = Field(None, gt=0, le=1000)  # the noise generator's; null = train.learning_rate
    # clips the noise generator's gradient and the model's by the norm of each; null = by their common norm (the
    # published code); 0 = the generator's is not clipped
    noise_max_grad_norm: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _fits_together(self) -> "SwepSettings":
        holds_kl = self.kl_target is not None
        rules = (
            (
                holds_kl and self.beta == 0,
                "beta: with kl_target beta starts from this value and is then multiplied: set it above 0",
            ),
            (
                holds_kl and self.beta_schedule != "constant",
                "beta_schedule: kl_target decides beta: set it to constant, or kl_target to null",
            ),
            (
                holds_kl and self.noise == "fixed_sigma",
                "kl_target: with noise fixed_sigma the KL cannot fall below a constant: set it to null",
            ),
            (
                self.divergence_weight > 0 and self.mle_weight == 0,
                "divergence_weight: it compares the noisy pass with the clean one, which does not train where "
                "mle_weight is 0: set divergence_weight to 0, or mle_weight above 0",
            ),
        )
        if faults := [fault for broken, fault in rules if broken]:
            raise FieldFault(*faults)
        return self


class NoiseGenerator(nn.Module):
    """q(z | x) of Eq. 3: two linear layers with a ReLU between, hidden -> d -> 2d.

    With hidden = d it has 3 d^2 + 3 d parameters, as the paper's.

    Args:
        hidden_size: width of h, the encoder's last hidden state.
        embedding_size: d, width of the word embeddings.
        prior_mean: m, of the noise: 1, or 0 for additive noise.
    """

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
        """h [N, T, hidden] -> what `swep_ds.kernels.perturb` takes, [N, T, 2d]: mu - m, then log(sigma^2 / alpha)."""
        hidden_NTH = hidden_NTH.to(self.inner.weight.dtype)  # a frozen model may be in bf16, and this in float32
        return self.difference(self.dropout(torch.relu(self.inner(hidden_NTH))))


class Swep(Method):
    control: KLController | None = None

    def __init__(self, settings: SwepSettings, hidden_size: int, embedding_size: int):
        super().__init__()
        self.settings, self.kl_reduction = settings, settings.kl_reduction
        self.mode = "learned" if settings.noise == "shuffled" else settings.noise
        self.noise = NoiseGenerator(settings, hidden_size, embedding_size, MODES[self.mode].prior_mean)
        self.learning_rate, self.max_grad_norm = settings.noise_learning_rate, settings.noise_max_grad_norm
        if settings.kl_target is not None:
            self.control = KLController(settings.kl_target, settings.beta)
            self.watches = "kl_per_window" if self.kl_reduction == "sum" else "kl_per_token"

    def passes(self, progress: float) -> list[Pass]:
        """One update of Algorithm 1."""
        weight, divergence = self.settings.mle_weight, self.settings.divergence_weight
        noisy = Pass("noisy", 1 - weight, self._perturb, kl_weight=(1 - weight) * self.beta(progress))
        if self.settings.separate_hidden_pass:
            clean = [Pass("clean", weight, divergence_weight=divergence)] if weight else []
            return [Pass("hidden", 0.0, keeps_hidden=True), noisy, *clean]
        return [Pass("clean", weight, keeps_hidden=True), replace(noisy, divergence_weight=divergence)]

    def beta(self, progress: float) -> float | Tensor:
        if self.control:
            return self.control.beta
        shares = {
            "constant": 1.0,
            "linear_to_zero": 1 - progress,
            "second_half_to_zero": min(1.0, 2 * (1 - progress)),
            "zero_in_second_half": float(progress < 0.5),
        }
        return self.settings.beta * shares[self.settings.beta_schedule]

    def observe(self, mean: Tensor) -> None:
        self.control.observe(mean)

    def state(self) -> dict[str, float]:
        return self.control.state() if self.control else {}

    def load(self, state: Mapping[str, float]) -> None:
        if self.control:
            self.control.load(state)

    def _perturb(self, inputs: Inputs) -> Perturbed:
        """e~ and the KL per token. h is detached (`PassState`): no gradient of the noise reaches the encoder by it."""
        parameters, alpha = self.noise(inputs.carried.hidden), self.settings.prior_variance
        if self.settings.noise == "shuffled":
            parameters = shuffle(parameters, inputs.batch, inputs.key)
        return Perturbed(
            *draw_noise(inputs, parameters, alpha, self.mode),
            measure=lambda: noise_statistics(parameters.detach(), inputs.batch, alpha, self.mode),
            compare=lambda: noise_effect(inputs, self.noise, alpha, self.mode),
        )

    def remark(self, means: dict[str, float], progress: float) -> str | None:
        fix = "lower method.beta to let it learn"
        if self.control:
            fix = "raise method.kl_target to let it learn"
            tokens = 1 if self.kl_reduction == "sum" else math.exp(means["span_nats"] / 2)
            target = self.control.target * tokens
            if target >= means["span_nats"]:
                if means["kl_per_window"] > target / 4:
                    return None  # means of ten updates swing around the target, down to a third of it
                fix = "method.kl_target is not reached: raise method.noise_learning_rate, or train for more updates"
        elif not self.beta(progress):
            fix = "beta is 0 here: raise method.noise_learning_rate, or train for more updates"
        unlearned = self.noise.inner.out_features * MODES[self.mode].fixed_kl(self.settings.prior_variance) / 2
        return collapse_remark(means, progress, unlearned, self.mode, fix)
