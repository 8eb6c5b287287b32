"""What the noise can be: the method and its ablations as flags of one formula.

    eps ~ N(0, I);   z = mu + sigma * eps;   e~ = e * z   (additive: e~ = e + z)
    KL = 1/2 sum_i [ (sigma_i^2 + (mu_i - m)^2) / alpha - 1 - log(sigma_i^2 / alpha) ]
    with prior mean m = 1 (additive: m = 0) and prior variance alpha.

What is learned is given as its difference from the prior, delta = mu - m and v = log(sigma^2 / alpha):

    mu = m + delta;   sigma = sqrt(alpha) * exp(v / 2);   KL = 1/2 sum_i [ delta_i^2 / alpha + exp(v_i) - 1 - v_i ]

In bfloat16 a mu near 1 would come in steps of 0.004 to 0.008; near the prior, smaller differences matter.

| mode        | mu      | sigma        | KL                                          |
| ----------- | ------- | ------------ | ------------------------------------------- |
| learned     | learned | learned      | the formula                                 |
| additive    | learned | learned      | the formula with m = 0                      |
| fixed_mu    | m = 1   | learned      | the formula with mu = 1                     |
| fixed_sigma | learned | 1            | the formula with sigma = 1                  |
| no_eps      | learned | not used     | sum_i (mu_i - 1)^2 / (2 alpha)              |
| prior       | m = 1   | sqrt(alpha)  | 0                                           |

`no_eps` is deterministic, e~ = e * mu. The KL of a point mass is infinite; the one used is that of a Gaussian
of the prior's own variance around mu: the formula at sigma^2 = alpha.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """Flags of one kind of noise; `fixed_variance` is sigma^2 where not learned, None for the prior's alpha."""

    learned_mu: bool = True
    learned_sigma: bool = True
    additive: bool = False
    draws: bool = True
    fixed_variance: float | None = None

    @property
    def needs_params(self) -> bool:
        return self.learned_mu or self.learned_sigma

    @property
    def prior_mean(self) -> float:
        return 0.0 if self.additive else 1.0

    def fixed_sigma(self, alpha: float) -> float:
        """sigma where it is not learned."""
        return math.sqrt(alpha if self.fixed_variance is None else self.fixed_variance)

    def fixed_kl(self, alpha: float) -> float:
        """What a dimension whose sigma is not learned adds to 2 KL, apart from (mu - m)^2 / alpha."""
        ratio = 1.0 if self.fixed_variance is None else self.fixed_variance / alpha
        return ratio - 1.0 - math.log(ratio)


MODES = {
    "learned": Mode(),
    "additive": Mode(additive=True),
    "fixed_mu": Mode(learned_mu=False),
    "fixed_sigma": Mode(learned_sigma=False, fixed_variance=1.0),
    "no_eps": Mode(learned_sigma=False, draws=False),
    "prior": Mode(learned_mu=False, learned_sigma=False),
}
