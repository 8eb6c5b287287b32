"""Trains the head first and then everything (LP-FT; Kumar et al. 2022, ICLR), in one run with one schedule.

In the first updates the optimizer passes over its first group, the model's pretrained base. So those weights stay to
the last bit, no weight decay shrinks them, and Adam's moments and its count of steps begin with their first own update,
as in a plain loop that sets `requires_grad` only then. (Given gradients of 0, Adam would count on, and after some 1,000
updates make its first steps several times as large.) The gradients of the base are computed nevertheless, so that ZeRO,
the flat gradient and CUDA graphs know nothing of all this. They count neither in the gradient's norm nor in clipping.
"""

from functools import partial
from itertools import cycle

import torch


def freeze_base(engine, updates: int) -> None:
    """Keeps DeepSpeed's `engine` from updating the base in the first `updates` of a run; any that fp16 skips count."""
    optimizer = engine.optimizer
    stage = engine.zero_optimization_stage()

    def drop_gradients(take_step, *arguments) -> None:
        if engine.global_steps < updates:
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.grad = None
        take_step(*arguments)

    if stage == 0:
        engine._take_model_step = partial(drop_gradients, engine._take_model_step)
        return
    groups = range(len(engine.basic_optimizer.param_groups))
    if stage == 3:  # a group may have several flat tensors
        groups = optimizer.sub_group_to_group_id.values()
    is_base = [group == 0 for group in groups]
    coming = cycle(is_base)

    def norm_of_trained(compute, *arguments) -> torch.Tensor:
        norm = compute(*arguments)
        if next(coming) and engine.global_steps < updates:
            return torch.zeros_like(norm)
        return norm

    def step_trained(step, flat: int) -> None:
        if not is_base[flat] or engine.global_steps >= updates:
            step(flat)

    # a flat tensor's norm without and with offload, which DeepSpeed takes in the tensors' order
    for name in ("get_grad_norm_direct", "complete_grad_norm_calculation_for_cpu_offload"):
        setattr(optimizer, name, partial(norm_of_trained, getattr(optimizer, name)))
    optimizer._optimizer_step = partial(step_trained, optimizer._optimizer_step)
