"""Holds SWEP's KL at a target: dual ascent on log beta, with a proportional term.

    minimise nll  subject to  KL = target;   beta is the multiplier of the constraint

    m     <- m + (KL - m) / SMOOTHING           e = log(m / target)
    theta <- theta + ASCENT * clamp(e, +-STEP)                              dual ascent
    beta   = exp(theta + DAMPING * clamp(e, +-REACH))

Dual ascent alone oscillates around the target. The noise generator responds slowly: in an update Adam moves a weight by
at most about its learning rate, however large beta is. The KL therefore overshoots for many updates before a raised
beta brings it down. The proportional term responds at once (Stooke et al., ICML 2020: PID Lagrangian methods).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

SMOOTHING = 2  # updates; Adam's momentum smooths enough, and a longer mean answers too late
DAMPING = 4.0  # a KL that is twice the target makes beta 16 times as large
REACH = 2.0  # beta moves at most by a factor of 3,000 at once: bursts would live on in Adam's second moment
ASCENT = 0.1  # an error dies away over DAMPING / ASCENT = 40 updates, longer than the generator takes to answer
STEP = 0.5  # at first the KL rises no faster than Adam lets it: what theta loses meanwhile, for nothing, is bounded
RANGE = math.log(1e6)  # of theta around its start, where a target is never reached


class KLController:
    """Gives beta, and takes the KL of each update's global batch. All in float64 on the KL's device, without a
    synchronisation.

    Args:
        target: nats, in the unit of the KL that `observe` gets.
        beta: where it starts, greater than 0.
    """

    def __init__(self, target: float, beta: float):
        self.target, self.start = target, math.log(beta)
        self.theta = torch.tensor(self.start, dtype=torch.double)
        self.mean = torch.tensor(target, dtype=torch.double)

    @property
    def beta(self) -> Tensor:
        """0-dim float32."""
        return (self.theta + DAMPING * self._error().clamp(-REACH, REACH)).exp().float()

    def observe(self, kl: Tensor) -> None:
        """The KL of the update that used the present `beta`, 0-dim."""
        self.mean = self.mean + (kl.double() - self.mean) / SMOOTHING
        ascended = self.theta + ASCENT * self._error().clamp(-STEP, STEP)
        self.theta = ascended.clamp(self.start - RANGE, self.start + RANGE)

    def _error(self) -> Tensor:
        return (self.mean / self.target).log()  # -infinity where the KL is 0

    def state(self) -> dict[str, float]:
        """For `load`. Waits for the device."""
        return {"theta": self.theta.item(), "mean": self.mean.item()}

    def load(self, state: Mapping[str, float]) -> None:
        """Continues from a `state`, exactly."""
        self.theta, self.mean = (torch.tensor(state[name], dtype=torch.double) for name in ("theta", "mean"))
