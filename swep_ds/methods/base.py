"""A method is a list of weighted passes over the same batch.

Every method of the paper, its ablations and its rivals is such a list. The training loop knows passes, not
methods: it asks for a forward and a backward per pass (`split`) or one for all of them (`joint`) and steps once.
A new method is one small file: a `Settings` class with its fields, and a `Method` that says what its passes are.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from swep_ds.data.batches import Batch


class Settings(BaseModel):
    """A method's fields in the recipe's section `method`; `name` tells the methods apart."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class NoiseKey:
    """Which noise: the run's seed and the draw's number. The batch's sample ids complete it (`kernels/`)."""

    seed: int
    draw: int


@dataclass(frozen=True)
class Perturbed:
    """What a perturbation gives back.

    embeddings: [N, T, d], in place of the word embeddings.
    kl: [N, T] float32, the KL per token (nats), or None where the method has none.
    parameters: [N, T, 2d] (mu, then log sigma^2) of learned noise, for the log; else None.
    """

    embeddings: Tensor
    kl: Tensor | None = None
    parameters: Tensor | None = None


# (word embeddings [N, T, d], batch, h [N, T, hidden] of an earlier pass or None, key) -> Perturbed
Perturbation = Callable[[Tensor, Batch, Tensor | None, NoiseKey], Perturbed]


@dataclass(frozen=True)
class Pass:
    """One forward of the model in an update.

    name: "clean", "noisy" ...; the log's `nll_<name>`.
    weight: of this pass's negative log-likelihood in the loss; 0 = run without gradient, only for its h.
    perturb: what happens to the word embeddings first; None = nothing.
    kl_weight: of the perturbation's KL in the loss.
    keeps_hidden: whether later passes see this pass's last hidden state (detached: the paper's stop-gradient).
    """

    name: str
    weight: float
    perturb: Perturbation | None = None
    kl_weight: float = 0.0
    keeps_hidden: bool = False


class Method(nn.Module):
    """Base of all methods. Its parameters, if any, train with the model's and are never exported."""

    kl_reduction: str = "sum"  # over a window's tokens ("sum"), or the mean over the update's tokens ("mean")

    def passes(self, progress: float) -> list[Pass]:
        """The passes of one update, in order. `progress` is the share of all updates already done, in [0, 1)."""
        raise NotImplementedError

    def idle(self, hidden: Tensor) -> Tensor | None:
        """Zero, computed from all of this method's parameters; None where it has none.

        Added to the loss of every micro-step that does not use them otherwise: ZeRO-3 overwrites its gradient
        buffer in an update's first micro-step only, so a parameter without a gradient there would add to the
        last update's gradient.
        """
        return None

    def remark(self, means: dict[str, float], progress: float) -> str | None:
        """A sentence for the log where the statistics (`Objective.forward`) show something the user must know."""
        return None
