"""How the loss of a micro-batch is normalised over windows, ranks, accumulation and passes.

An update runs P backwards (`split` execution: one for each pass that trains; `joint`: one) for each of A micro-batches
(the accumulation) on each of R ranks. Its gradient is that of

    sum over passes of   weight of the pass  x  mean over the update's W windows of the window's loss

Gradients are averaged, not added. DeepSpeed divides by A P on each rank and by R between ranks. With the flat gradient
of ZeRO-1, `Engine.backward` divides by A P, and `FlatGradient.hand_over` by R. So a window weighs R A / W in a batch,
in place of 1 / W, and `Engine.backward` multiplies by P:

    1 / (R A P)  x  sum over ranks, micro-batches and backwards of   P  x  sum over windows of  (R A / W)  x  loss
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LossNormalisation:
    """The numbers of ranks (R), of micro-batches on each rank (A), and of backwards of each micro-batch (P)."""

    ranks: int = 1
    micro_batches: int = 1
    backwards: int = 1

    @property
    def engine_steps(self) -> int:
        """A P, what each rank divides by: DeepSpeed's `gradient_accumulation_steps`."""
        return self.micro_batches * self.backwards

    def weight(self, count: int | Tensor) -> float | Tensor:
        """R A / W: a window's factor in the loss for a mean over the update's `count` windows, or a token's for a mean
        over its tokens."""
        return self.ranks * self.micro_batches / count
