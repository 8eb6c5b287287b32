"""The norms of the gradients of two groups of parameters, the model's and the method's own.

With `method.noise_max_grad_norm` each group is clipped by its own norm; without, by that of the whole gradient, the
only one that DeepSpeed knows. ZeRO 1 to 3 compute a norm for each flat tensor of the optimizer, combine them, and scale
one flat tensor after the other: `GroupNorms` notes the norms, and scales each by its group's. At ZeRO-0 a hook right
before the optimizer's step clips.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from swep_ds.training.zero.flats import flats

MODEL, METHOD = 0, 1  # numbers of the optimizer's groups


class GroupNorms:
    """The norm of each group's gradient in the latest update, before clipping; none may be left if fp16 skipped it.

    With `limits` each group is clipped by its norm, to its limit; 0 = no clipping. None = DeepSpeed clips.
    """

    def __init__(self, engine, limits: tuple[float, float] | None):
        self._optimizer = optimizer = engine.optimizer
        self._limits = limits
        self._scale = 1.0
        self._norms: Sequence[Tensor] = []
        self._groups = [MODEL, METHOD]  # the group of each norm
        if engine.zero_optimization_stage() == 0:
            engine.basic_optimizer.register_step_pre_hook(self._clip_whole)
            return
        self._groups = [flat.group for flat in flats(engine)]
        # what follows DeepSpeed calls once for each flat tensor, in their order; of the norms without or with offload
        self._norms = deque(maxlen=len(self._groups))
        for name in ("get_grad_norm_direct", "complete_grad_norm_calculation_for_cpu_offload"):
            setattr(optimizer, name, partial(self._note, getattr(optimizer, name)))
        if limits:
            self._unscale_and_clip = optimizer.unscale_and_clip_grads
            self._coming = cycle(self._groups)
            optimizer.unscale_and_clip_grads = self._clip_flat

    def method_norm(self) -> float:
        """The gradient norm of the method's parameters; infinite if not computed, or after an overflow."""
        if not self._norms or getattr(self._optimizer, "overflow", False):
            return math.inf
        return float(self._norm(METHOD)) / self._scale

    def _norm(self, group: int) -> Tensor:
        return _combined(norm for norm, of in zip(self._norms, self._groups, strict=True) if of == group)

    def _note(self, compute: Callable[..., Tensor], *arguments) -> Tensor:
        norm = compute(*arguments)
        self._norms.append(norm)
        self._scale = self._optimizer.loss_scale  # by which fp16's gradients are still multiplied
        return norm

    def _clip_flat(self, gradients: Any, _) -> None:
        group = next(self._coming)
        self._optimizer.clip_grad = self._limits[group]
        self._unscale_and_clip(gradients, self._norm(group))

    def _clip_whole(self, optimizer: torch.optim.Optimizer, *_) -> None:
        groups = zip(optimizer.param_groups, self._limits, strict=True)
        self._norms = [clip_grad_norm_(group["params"], limit or math.inf) for group, limit in groups]


def _combined(norms: Iterable[Tensor]) -> Tensor:
    """The norm of what has these norms: infinite if one of them is not finite, or -1, which stands for that."""
    stacked = torch.stack(list(norms))
    invalid = (~stacked.isfinite() | (stacked < 0)).any()
    return torch.where(invalid, torch.inf, torch.linalg.vector_norm(stacked))
