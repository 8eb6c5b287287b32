"""The settings of SWEP and the paper's baselines, and the base class of all methods' settings.

They import no PyTorch, so that a recipe is checked before that takes its seconds. A class here, or in
`rivals/settings.py`, is all that makes a method known: the file `name` in the same folder has the method, which is
called like its settings, without "Settings".
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from swep_ds.common.settings import FieldFault, Section


class Settings(Section):
    """A method's fields in the recipe's section `method`; `name` tells the methods apart."""

    needs_gradient: ClassVar[bool] = False  # whether a pass needs the gradient of the backward of the one before it
    uses_model: ClassVar[bool] = False  # whether perturbations run the model themselves (`Inputs.forward`)


class MleSettings(Settings):
    name: Literal["mle"] = "mle"  # Maximum likelihood: plain fine-tuning


class PriorAugSettings(Settings):
    # Prior-Aug: clean inputs, and inputs multiplied by noise from the prior N(1, alpha I)
    name: Literal["prior_aug"] = "prior_aug"
    prior_variance: float = Field(0.1, gt=0)  # alpha, the variance of the noise
    mle_weight: float = Field(0.5, ge=0, lt=1)  # lambda, the weight of the clean pass


class SwepSettings(Settings):
    name: Literal["swep"] = "swep"  # SWEP: word embeddings multiplied by noise that the model itself learns
    # learned is SWEP; the others are ablations: shuffled among a window's tokens, added, or with a part of it fixed
    noise: Literal["learned", "shuffled", "additive", "fixed_mu", "fixed_sigma", "no_eps"] = "learned"
    # weight of the KL; its scale depends on d and on kl_reduction. nll is the mean over the answer's start and end, or
    # its K tokens, so the ELBO, with their sum, is beta 0.5 for a span and 1 / K for generated tokens
    beta: float = Field(1.0, ge=0)
    # to zero over the whole run, or zero throughout its second half: the paper's table by word frequency anneals "in
    # the second epoch" of two
    beta_schedule: Literal["constant", "linear_to_zero", "zero_in_second_half"] = "constant"
    prior_variance: float = Field(0.1, gt=0)  # alpha, the variance of the noise's prior
    mle_weight: float = Field(0.5, ge=0, lt=1)  # lambda, the weight of the clean pass
    kl_reduction: Literal["sum", "mean"] = "sum"  # over a window's tokens; both sum over d
    # start at the prior, where SWEP is Prior-Aug; or as PyTorch does, near mu 0 and sigma 1: inputs are nearly erased
    initialisation: Literal["prior", "default"] = "prior"
    noise_dropout: float = Field(0.0, ge=0, lt=1)  # after the noise generator's ReLU, as in the published code
    separate_hidden_pass: bool = False  # computes h in an extra pass without gradient (published code)
    divergence_weight: float = Field(0.0, ge=0)  # weighs R-Drop's symmetric KL between clean and noisy predictions
    # nats per window, or per token with kl_reduction mean; beta starts at `beta` and holds the KL there: kl_control.py
    # the dose: at d 384 and 170 tokens 20 nats move sigma by at most 2 %, 2,000 by 18 % (docs/methods.md)
    kl_target: float | None = Field(None, gt=0)
    # not the paper's: the noise learns to raise the nll, bounded by the KL alone; the model learns under it as before
    adversarial: bool = False
    noise_learning_rate: float | None = Field(None, gt=0, le=1000)  # the noise generator's; null = train.learning_rate
    # clips the noise generator's gradient and the model's by the norm of each; null = by their common norm (the
    # published code); 0 = the generator's is not clipped
    noise_max_grad_norm: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _fits_together(self) -> "SwepSettings":
        faults = []
        if self.kl_target is not None:
            if self.beta == 0:
                faults.append("beta: with kl_target beta starts from this value and is then multiplied: set it above 0")
            if self.beta_schedule != "constant":
                faults.append("beta_schedule: kl_target decides beta: set it to constant, or kl_target to null")
            if self.noise == "fixed_sigma":
                faults.append("kl_target: with noise fixed_sigma the KL cannot fall below a constant: set it to null")
        elif self.adversarial and (self.beta == 0 or self.beta_schedule != "constant"):
            faults.append("adversarial: only the KL bounds it: set kl_target, or a constant beta above 0")
        if self.divergence_weight > 0 and self.mle_weight == 0:
            faults.append(
                "divergence_weight: it compares the noisy pass with the clean one, which does not train where "
                "mle_weight is 0: set divergence_weight to 0, or mle_weight above 0"
            )
        if faults:
            raise FieldFault(*faults)
        return self


class GaussianDropoutSettings(Settings):
    name: Literal["gaussian_dropout"] = "gaussian_dropout"  # Gaussian-Dropout: word embeddings times N(1, p / (1 - p))
    drop_probability: float = Field(0.1, gt=0, lt=1)  # p of the dropout that has its variance


class BernoulliDropoutSettings(Settings):
    # Bernoulli-Dropout: every dimension of a word embedding is zero with probability p, else divided by 1 - p
    name: Literal["bernoulli_dropout"] = "bernoulli_dropout"
    drop_probability: float = Field(0.1, gt=0, lt=1)  # p, for each dimension of an embedding


class WordDropoutSettings(Settings):
    # Word-Dropout: the whole embedding of a token is zero with probability p; nothing is scaled up
    name: Literal["word_dropout"] = "word_dropout"
    drop_probability: float = Field(0.1, gt=0, lt=1)  # p, for each word


class AdvAugSettings(Settings):
    uses_model: ClassVar[bool] = True
    name: Literal["adv_aug"] = "adv_aug"  # Adv-Aug: training on clean word embeddings and on adversarial ones
    ascent_steps: int = Field(5, ge=1, le=1000)  # steps of gradient ascent on the loss
    # share of the Frobenius norm of a window's embeddings; about 0.5 changes the paper's 20 % of the words on the quick
    # start, and leaves nothing to learn (docs/methods.md)
    step_size: float = Field(0.003, gt=0)
    penalty: float = Field(0.1, ge=0)  # gamma, weight of the distance in semantic space
    mle_weight: float = Field(0.5, ge=0, lt=1)  # lambda, the weight of the clean pass


class SsmbaSettings(Settings):
    name: Literal["ssmba"] = "ssmba"  # SSMBA: plain fine-tuning on the questions and on their augmented samples


def dose(means: Mapping[str, float]) -> str:
    """Says a KL per window in nats, and by how much sigma and mu vary around the prior's, where that was measured.

    `means`: of metrics.jsonl, "kl_per_window" among them. `sigma_spread` and `mu_spread` are measured, as roots of the
    mean square over tokens and dimensions, because the KL tells only their sum: near the prior and in d dimensions

        KL per token = d * (sigma_spread^2 + mu_spread^2 / 2)
    """
    parts = []
    if "sigma_spread" in means:
        parts.append(f"sigma varies by +- {100 * means['sigma_spread']:.2g} %")
    if "mu_spread" in means:
        parts.append(f"mu by +- {100 * means['mu_spread']:.2g} % of the prior's sigma")
    kl = means["kl_per_window"]
    nats = f"{kl:,.0f}" if kl >= 1000 else f"{kl:.3g}"
    text = f"{nats} nats per window"
    return f"{text} ({', '.join(parts)})" if parts else text
