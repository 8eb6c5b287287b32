"""The module's weights: partitioned at ZeRO-3 without a whole model on any rank, made anew from the optimizer's, and
gathered one at a time."""

import itertools
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor, nn
from transformers import PreTrainedModel

from swep_ds import ranks
from swep_ds.models.backends import HALVES
from swep_ds.training.zero.flats import is_partitioned


def shard(module: nn.Module, config: dict[str, Any]) -> None:
    """Leaves each rank its part of every parameter, in the engine's precision, and moves buffers to the device.

    The values are rank 0's. The parameters pass one by one through a buffer of the largest one's size: weights that are
    mapped from files (`load_trainable`) are never all in memory. Collective.
    """
    [dtype] = [half for name, half in HALVES.items() if config[name]["enabled"]] or [torch.float32]
    first, *_ = parameters = list(module.parameters())
    buffer = torch.empty(max(p.numel() for p in parameters), dtype=dtype, device=ranks.device())
    for parameter in parameters:
        whole = buffer[: parameter.numel()].view(parameter.shape)
        if ranks.is_main():
            whole.copy_(parameter.detach())
        parameter.data = whole
        if parameter is first:
            deepspeed.zero.Init(module=nn.ParameterList([first]), config_dict_or_path=config)
        else:
            first.convert_to_zero_parameters(param_list=[parameter])
    for tensor in module.buffers():
        tensor.data = tensor.data.to(ranks.device())


def refresh_weights(engine) -> None:
    """Makes the module's weights from the optimizer's; at ZeRO-0 they are the same. Collective."""
    optimizer = engine.optimizer
    stage = engine.zero_optimization_stage()
    if stage in (1, 2):
        optimizer.update_lp_params()
    elif stage == 3:
        optimizer.checkpoint_event_prologue()
        for number in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)
        optimizer.checkpoint_event_epilogue()


def full_weights(engine, model: nn.Module, *, masters: bool) -> Iterator[tuple[str, Tensor | None]]:
    """Yields name and value of all that the model saves, tied weights once: in CPU memory on rank 0, None elsewhere.

    Collective: all ranks iterate together. At ZeRO-3 only one weight at a time is whole. `model` is part of the module
    of an `Engine`. With `masters` the values are the optimizer's float32 weights, which ZeRO 1 to 3 have.
    """
    saved = set(model.state_dict())
    if isinstance(model, PreTrainedModel):
        saved -= model.all_tied_weights_keys.keys()
    for name, tensor in itertools.chain(model.named_parameters(remove_duplicate=False), model.named_buffers()):
        if name not in saved:
            continue
        if masters and engine.stage and tensor.requires_grad:
            value = safe_get_full_fp32_param(tensor)
            yield name, value.detach().cpu() if ranks.is_main() else None
            continue
        # transformers takes the dtype of one weight for that of all
        dtype = torch.float32 if masters and isinstance(tensor, nn.Parameter) else tensor.dtype
        with deepspeed.zero.GatheredParameters([tensor], enabled=is_partitioned(tensor)):
            value = tensor.detach().to("cpu", dtype, copy=True) if ranks.is_main() else None
        yield name, value
