"""The norms of the gradients of two groups of parameters, the model's and the method's own. (In the optimizer the
model's are two groups if `train.freeze_updates` sets the head apart.)

With `method.noise_max_grad_norm` each group is clipped by its own norm; without, by that of the whole gradient, the
only one that DeepSpeed 0.19 knows. ZeRO 1 to 3 compute a norm for each flat tensor of the optimizer (at ZeRO-3 a group
may have several), combine them, and scale one flat tensor after the other: `GroupNorms` notes the norms, and scales
each by its group's. At ZeRO-0 a hook right before the optimizer's step clips.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, cycle
from typing import Any

import torch
from deepspeed.runtime.utils import combine_grad_norm_groups
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from swep_ds.methods.objective import Objective

MODEL, METHOD = 0, 1


def watch_norms(engine, objective: Objective, max_norm: float) -> "GroupNorms | None":
    """None if the method has no parameters, or where DeepSpeed clips without a norm for each group."""
    limit = objective.method.max_grad_norm
    if len(objective.parameter_groups()) == 1 or (limit is None and engine.zero_optimization_stage() == 0):
        return None
    return GroupNorms(engine, None if limit is None else (max_norm, limit))


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
        stage = engine.zero_optimization_stage()
        if stage == 0:
            engine.basic_optimizer.register_step_pre_hook(self._clip_whole)
            return
        count = len(engine.basic_optimizer.param_groups)
        numbers = optimizer.sub_group_to_group_id.values() if stage == 3 else range(count)
        self._groups = [METHOD if number == count - 1 else MODEL for number in numbers]  # of each flat tensor
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
        return combine_grad_norm_groups(norm for norm, of in zip(self._norms, self._groups, strict=True) if of == group)

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
        *model, own = (group["params"] for group in optimizer.param_groups)
        groups = zip(([*chain(*model)], own), self._limits, strict=True)
        self._norms = [clip_grad_norm_(parameters, limit or math.inf) for parameters, limit in groups]
