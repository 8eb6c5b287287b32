"""DeepSpeed's loops over the gradients of an update as one operation each, with results that are equal to the last bit.
benchmarks/training/launches.py counts them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from deepspeed import comm
from deepspeed.accelerator import get_accelerator
from torch import Tensor


def use_foreach(engine) -> None:
    """Replaces the loops of ZeRO 1 to 3. With offload they stay: there the gradients are copied one by one anyway."""
    optimizer = engine.optimizer
    stage = engine.zero_optimization_stage()
    if stage == 0 or engine.zero_cpu_offload():
        return
    replace(optimizer, "get_grad_norm_direct", partial(_norm_of_part, optimizer, stage))
    if stage == 3:
        return
    replace(optimizer, "unscale_and_clip_grads", partial(_clip_without_reading, optimizer))
    if stage == 2 and optimizer.contiguous_gradients and not optimizer.overlap_comm:
        _copy_together(optimizer)


def replace(holder, name: str, method: Callable) -> None:
    """Raises AttributeError: DeepSpeed has no such method any more, and would never call this one."""
    getattr(holder, name)
    setattr(holder, name, method)


def _norm_of_part(optimizer, stage: int, gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """The norm of a flat tensor's gradients over all ranks: 0-dim, of float32 (ZeRO-3: float64), on the device."""
    precise = torch.float64 if get_accelerator().is_fp64_supported() else torch.float32
    parts = gradients[: len(parameters)]  # padding may follow
    if parts:
        square = torch.stack(torch._foreach_norm(parts, 2.0, dtype=precise)).pow(2.0).sum()
    else:  # this rank's part of a small flat tensor may hold none
        square = torch.zeros((), dtype=precise, device=get_accelerator().current_device_name())
    if stage != 3:
        square = square.float()
    comm.all_reduce(square, group=optimizer.dp_process_group)
    return square.pow(0.5)


def _clip_without_reading(optimizer, gradients: Sequence[Tensor], norm: Tensor) -> None:
    """DeepSpeed's clipping, which also asks the device whether the norm is finite. If not, it is infinite already."""
    scale = optimizer.loss_scale
    limit = optimizer.clip_grad
    if limit > 0:
        scale = torch.clamp((norm / scale + 1e-6) / limit, min=1.0) * scale
    elif scale == 1:
        return
    for gradient in gradients:
        gradient.data.mul_(1.0 / scale)


def _copy_together(optimizer) -> None:
    """Copies a bucket's reduced gradients, which the next bucket overwrites, to this rank's part in one go."""
    copy_gradient = optimizer.copy_grads_in_partition
    reduce = optimizer.reduce_ipg_grads
    copies: list[tuple[Tensor, Tensor]] = []

    def note(parameter: Tensor, group: int) -> None:
        if optimizer.grads_in_partition is None:  # DeepSpeed makes it with an update's first gradient
            copy_gradient(parameter, group)
            return
        gradient = parameter.grad
        begin = optimizer.grads_in_partition_offset
        place = optimizer.grads_in_partition[begin : begin + parameter.numel()]
        copies.append((place, gradient.view(-1)))
        gradient.data = place.view_as(gradient)
        optimizer.grads_in_partition_offset += parameter.numel()

    def reduce_and_copy(*args: Any, **kwargs: Any) -> None:
        reduce(*args, **kwargs)
        if copies:
            places, gradients = zip(*copies, strict=True)
            torch._foreach_copy_(places, gradients)
            copies.clear()

    optimizer.copy_grads_in_partition = note
    optimizer.reduce_ipg_grads = reduce_and_copy
