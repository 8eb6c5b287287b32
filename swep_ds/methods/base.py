"""A method is a list of weighted passes over the same batch: the training loop knows passes, not methods.

A method draws its noise in `Pass.perturb`, by `draw_noise`, `gaussian` or `uniform`. A number depends on the run's
seed, the update, the pass, the draw in it, the window's row and the place in the window. So it is the same again in a
resumed run, on other ranks, in another batch and in the backward, and new in every update.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from swep_ds.kernels import perturb, standard_normal
from swep_ds.kernels.philox import MASK, noise_words
from swep_ds.methods.kl_control import KLController
from swep_ds.methods.settings import Settings

if TYPE_CHECKING:  # these import transformers, and every command imports the methods of other packages
    from swep_ds.data.batches import Batch
    from swep_ds.models.outputs import QAOutput

STREAM = 0x2545F4914F6CDD1D  # odd, so that no two streams of a perturbation share a seed


@dataclass(frozen=True)
class PassState:
    """What a pass leaves for later passes over the same micro-batch."""

    hidden: Tensor | None = None  # h [N, T, hidden] of a pass that keeps it, detached: the paper's stop-gradient
    delta: Tensor | None = None  # [N, T, d] float32, a leaf; after the backward of its pass it holds its gradient
    dropout: Tensor | None = None  # the generator's state before the first pass that repeats its dropout


@dataclass(frozen=True)
class Scalars:
    """The numbers of an update on the device, where a CUDA graph reads them anew at each replay."""

    seed: Tensor  # 0-dim int64
    draw: Tensor  # 0-dim int64, of the update's first perturbed pass
    kl_weights: Tensor  # [passes] float64


@dataclass(frozen=True)
class MicroStep:
    """Which part of which update a call of the objective computes."""

    update: int  # from 0; keys the noise
    progress: float = 0.0  # share of all updates already done, in [0, 1), for schedules
    part: int | None = None  # micro-step of `split` execution (`Objective.parts`); None = all passes, as in `joint`
    carried: PassState = PassState()  # what the micro-steps before it left
    measure: bool = False  # whether to compute statistics of the noise as well,
    compare: bool = False  # and whether to compare it with other noise, which runs the model
    scalars: Scalars | None = None  # in place of what follows from `update` and `progress`


@dataclass(frozen=True)
class Inputs:
    """What a perturbation may use."""

    embeddings: Tensor  # word embeddings e [N, T, d]
    batch: "Batch"
    seed: int | Tensor  # the run's; with `draw` and the sample ids it keys the noise (`kernels/`)
    # update * P + k for pass k among the update's P perturbed passes: methods with equally many draw the same numbers
    draw: int | Tensor
    carried: PassState
    forward: Callable[[Tensor], "QAOutput"]  # runs the model on other embeddings, without dropout
    streams: Iterator[int] = field(default_factory=count)  # numbers the draws of this perturbation

    @property
    def mask(self) -> Tensor:
        """1 at tokens, 0 at padding, [N, T, 1] int64."""
        return self.batch.attention_mask[..., None]

    def next_key(self) -> dict[str, int | Tensor]:
        """`seed` and `draw` of one more draw, which is independent of those before. The first has the run's seed."""
        return {"seed": self.seed ^ (next(self.streams) * STREAM % 2**63), "draw": self.draw}


@dataclass(frozen=True)
class Perturbed:
    """What a perturbation returns."""

    embeddings: Tensor  # [N, T, d], in place of the word embeddings
    kl: Tensor | None = None  # [N, T] float32, nats per token; None where the method's parameters took no part
    measure: Callable[[], dict[str, Tensor]] = dict  # statistics for the log, per token [N, T] or per window [N]
    compare: Callable[[], dict[str, Tensor]] = dict  # the same, of what takes forward passes of the model
    delta: Tensor | None = None  # for `PassState.delta`


@dataclass(frozen=True)
class Pass:
    """One forward of the model in an update."""

    name: str  # "clean", "noisy" ...; the log's `nll_<name>`
    weight: float  # this pass's negative log-likelihood in the loss
    perturb: Callable[[Inputs], Perturbed] | None = None  # changes the word embeddings first
    kl_weight: float | Tensor = 0.0  # the perturbation's KL in the loss of a pass that trains
    # the symmetric KL between the answer distributions of this pass and the one before it
    divergence_weight: float = 0.0
    keeps_hidden: bool = False  # whether later passes see this pass's last hidden state
    repeats_dropout: bool = False  # whether all such passes of an update drop the same units
    # the squared distance between the hidden states of this pass and the one before it
    hidden_distance_weight: float = 0.0

    def __post_init__(self):
        if not self.trains and (isinstance(self.kl_weight, Tensor) or self.kl_weight):
            raise ValueError(f"pass {self.name!r}: a KL needs a pass that trains: weigh its nll or a divergence")

    @property
    def compares(self) -> bool:
        """Whether the loss compares this pass with the one before it; both then share a micro-step."""
        return self.divergence_weight != 0 or self.hidden_distance_weight != 0

    @property
    def trains(self) -> bool:
        """Whether the loss depends on this pass. Otherwise it runs without gradient, only for its h."""
        return self.weight != 0 or self.compares

    @property
    def forwards(self) -> int:
        """How many forwards take as long as this pass: a backward counts as two."""
        return 1 + 2 * self.trains


class Method(nn.Module):
    """Base of all methods, whose class is annotated with its own `settings`. Its parameters train with the model's and
    are never exported. They belong to child modules that take h [N, T, hidden]."""

    kl_reduction: str = "sum"  # over a window's tokens ("sum"), or the mean over the update's tokens ("mean")
    learning_rate: float | None = None  # for the method's parameters; None = the model's
    max_grad_norm: float | None = None  # for their gradient; None = clipped with the model's; 0 = no clipping
    watches: str | None = None  # the statistic of `Objective.loss` that `observe` gets
    control: KLController | None = None  # holds it at a target
    # Whether a CUDA graph may replay the passes: but for the weight of the KL they follow from the `Inputs` and from
    # parameters, and read neither other state nor a generator's on the host. A subclass says it anew.
    replayable: bool = False

    def __init__(self, settings: Settings | None = None, hidden_size: int = 0, embedding_size: int = 0):
        super().__init__()
        self.settings = settings

    def passes(self, progress: float) -> list[Pass]:
        """The passes of one update, in order, at this share of all updates, in [0, 1). At least one trains."""
        raise NotImplementedError

    def observe(self, mean: Tensor) -> None:
        """Takes the mean of what it `watches` over an update's global batch: 0-dim, the same on every rank."""
        self.control.observe(mean)

    def state(self) -> dict[str, float]:
        """The control's, for `load` in a resumed run, which continues exactly."""
        return self.control.state() if self.control else {}

    def load(self, state: dict[str, float]) -> None:
        if self.control:
            self.control.load(state)

    def remark(self, means: dict[str, float], progress: float) -> str | None:
        """A sentence for the log where the means of `Objective.loss`'s statistics show what the user must know."""
        if "divergence" in means and means["divergence"] <= 1e-6 * means["nll_clean"]:
            return "the passes that are compared predict the same: this model has no dropout, or the noise is too small"
        return None


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """The module is in evaluation mode inside, and every part of it as it was after."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def draw_noise(inputs: Inputs, parameters: Tensor | None, prior_variance: float, mode: str) -> tuple[Tensor, Tensor]:
    """The embeddings under noise of one more draw, [N, T, d], zero at padding; and the KL per token, [N, T].
    `parameters` is what is learned, [N, T, 2d], as `swep_ds.kernels.perturb` takes it; None for the mode "prior"."""
    tensors = (inputs.embeddings, parameters, inputs.batch.padding_mask, inputs.batch.sample_id)
    return perturb(*tensors, **inputs.next_key(), prior_variance=prior_variance, mode=mode)


def multiply_by_gaussian(inputs: Inputs, variance: float) -> Tensor:
    """e * z [N, T, d] with z ~ N(1, variance I); zero at padding."""
    return draw_noise(inputs, None, variance, "prior")[0]


def gaussian(inputs: Inputs, per: str = "dimension") -> Tensor:
    """Numbers from N(0, 1) in float32, or in float64 for such embeddings; shaped and keyed as `uniform`'s."""
    counter = _counter(inputs, per)
    dtype = torch.promote_types(inputs.embeddings.dtype, torch.float32)
    if per != "dimension":
        return standard_normal(**counter, dtype=dtype)[..., :1]
    ones = torch.ones_like(inputs.embeddings, dtype=dtype)
    key = {"seed": counter["seed"], "draw": counter["draw"]}
    noise_NTd = perturb(ones, None, None, inputs.batch.sample_id, **key, prior_variance=1.0, mode="prior")[0] - 1
    columns_NT = counter["positions"] % ones.shape[1]  # the kernel counts positions from column 0
    return noise_NTd.take_along_dim(columns_NT[..., None], 1)


def uniform(inputs: Inputs, per: str = "dimension") -> Tensor:
    """Numbers from U[0, 1) in steps of 2^-24, float32, at padding as well: [N, T, d], [N, T, 1] or [N, 1, 1], one for
    each dimension, token or window.

    All draws of a perturbation are independent. A number does not depend on the other windows, the ranks or padding.
    Raises ValueError: `per` is none of these, or d is not divisible by 4.
    """
    words = torch.broadcast_tensors(*noise_words(**_counter(inputs, per)))
    numbers = torch.cat([((word & MASK) >> 8).float() for word in words], -1) * 2.0**-24
    return numbers if per == "dimension" else numbers[..., :1]


def _counter(inputs: Inputs, per: str) -> dict[str, int | Tensor]:
    """What keys a new draw, as `standard_normal` takes it. Positions [N, T], or [N, 1] for a number per window, count
    from the window's first token, which may follow padding."""
    mask_NT = inputs.batch.attention_mask
    if per not in ("dimension", "token", "window"):
        raise ValueError(f'per must be "dimension", "token" or "window"; got {per!r}')
    positions = torch.arange(mask_NT.shape[1], device=mask_NT.device) - mask_NT.argmax(1, keepdim=True)
    if per == "window":
        positions = torch.zeros_like(positions[:, :1])
    width = inputs.embeddings.shape[-1] if per == "dimension" else 4  # a Philox counter yields four words
    return {**inputs.next_key(), "sample_ids": inputs.batch.sample_id[:, None], "positions": positions, "d": width}


def norm(values_NTd: Tensor) -> Tensor:
    """Frobenius norm of every window, [N, 1, 1] float32."""
    return torch.linalg.vector_norm(values_NTd.float(), dim=(1, 2), keepdim=True)


def direction(gradient_NTd: Tensor) -> Tensor:
    """Every window's gradient at length 1; 0 where it is 0 or not finite, as in an fp16 update that will be skipped."""
    length_N11 = norm(gradient_NTd)
    usable_N11 = length_N11.isfinite() & (length_N11 > 0)
    return torch.where(usable_N11, gradient_NTd / length_N11, 0.0)
