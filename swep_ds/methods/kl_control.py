"""Holds SWEP's KL at a target: dual ascent on log beta, with a proportional term.

    minimise nll  subject to  KL = target;   beta is the multiplier of the constraint

    m     <- m + (KL - m) / SMOOTHING
    theta <- theta + ASCENT * min(m / target - 1, 1)                        dual ascent, unless it waits
    beta   = exp(theta + DAMPING * clamp(error, +-REACH))                   error = log(m / target)
    r     <- r + (min(KL, 4 max(r, target)) - r) / RECENT         r = KL at first if the KL is above its target
    waits  : |error| > log 2 and error * (error + PACE * log(m / r)) < 0

Dual ascent by itself oscillates, because Adam moves the noise generator slowly. The proportional term responds at once
(Stooke et al., ICML 2020: PID Lagrangian methods).
The ascent waits while the KL is more than a factor of 2 away from its target and, at its present pace, would arrive
within about PACE * RECENT = 200 updates: a theta that moved meanwhile would wind up, and the KL would overshoot.
The ascent takes the relative error and not its logarithm, because the mean KL must equal the target. A burst counts as
twice the target, so that one batch does not move theta far.
"""

import math

import torch
from torch import Tensor

SMOOTHING = 2  # updates; a longer mean answers too late
DAMPING = 3.0  # a KL that is twice the target makes beta 8 times as large
REACH = 2.0  # beta is at most 400 times above or below exp(theta): bursts would live on in Adam's second moment
ASCENT = 0.1  # an error dies away over DAMPING / ASCENT = 30 updates, longer than the generator takes to answer
FAR = math.log(2.0)  # nearer, DAMPING and the ascent are gentle enough
RECENT = 16  # updates of the mean that tells where the KL comes from
BURST = 4.0  # clip each KL at BURST times r or the target, so that what follows a burst is no fall
PACE = 12.0
RANGE = math.log(1e6)  # how far theta may go from its start, where a target is never reached


class KLController:
    """Gives beta, which starts above 0, and takes the KL of each update's global batch in the target's unit. Computes
    in float64 on the KL's device."""

    def __init__(self, target: float, beta: float):
        self.target = target
        self.start = math.log(beta)
        # r is 0 as at the prior: a KL that rises from there counts as on its way while the learning rate warms up
        self.load({"theta": self.start, "mean": target, "recent": 0.0})

    @property
    def beta(self) -> Tensor:
        """0-dim float32."""
        return (self.theta + DAMPING * self._error().clamp(-REACH, REACH)).exp().float()

    def observe(self, kl: Tensor) -> None:
        """The KL of the update that used `beta`, 0-dim. A KL that is not finite counts as the mean, a negative as 0."""
        finite = kl.isfinite()
        kl = torch.where(finite, kl.double().clamp(min=0), self.mean)
        self.mean = self.mean + (kl - self.mean) / SMOOTHING
        begins_above = (self.recent == 0) & (kl > self.target)
        before = torch.where(begins_above, kl, self.recent)
        recent = before + (torch.minimum(kl, BURST * before.clamp(min=self.target)) - before) / RECENT
        self.recent = torch.where(finite | (before > 0), recent, before)  # the first finite KL says where it begins
        error = self._error()
        trend = (self.mean / self.recent).log()
        waits = (error.abs() > FAR) & (error * (error + PACE * trend) < 0) & (self.recent > 0)
        ascent = ASCENT * (self.mean / self.target - 1).clamp(max=1)
        ascended = self.theta + torch.where(waits, 0.0, ascent)
        self.theta = ascended.clamp(self.start - RANGE, self.start + RANGE)

    def _error(self) -> Tensor:
        return (self.mean / self.target).log()  # -infinity where the KL is 0

    def state(self) -> dict[str, float]:
        """For `load`, exactly. Waits for the device."""
        return {name: getattr(self, name).item() for name in ("theta", "mean", "recent")}

    def load(self, state: dict[str, float]) -> None:
        self.theta = torch.tensor(state["theta"], dtype=torch.double)
        self.mean = torch.tensor(state["mean"], dtype=torch.double)
        self.recent = torch.tensor(state["recent"], dtype=torch.double)
