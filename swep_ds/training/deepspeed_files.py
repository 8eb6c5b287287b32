"""The content of DeepSpeed's checkpoint files: which elements of each parameter are where.

Every rank keeps float32 weights and the optimizer's moments in flat tensors: at ZeRO-0 everything, at ZeRO-1 and 2 an
equal piece of all parameters laid end to end, at ZeRO-3 an equal piece of each parameter.

DeepSpeed pickles its files. `read_state` reads tensors, plain values and a few classes of DeepSpeed, and refuses code.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor

WEIGHTS, MOMENTS = "weights", ("exp_avg", "exp_avg_sq")  # every optimizer that runs at ZeRO 1 to 3 is an Adam
# keys of an optimizer's file, by ZeRO stage
FLATS = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}
STATES = {1: "base_optimizer_state", 2: "base_optimizer_state", 3: "optimizer_state_dict"}
Shapes = Sequence[dict[str, torch.Size]]  # for every flat tensor: shape by parameter name, in order


def enumeration_member(kind: type[Enum], name: str) -> Enum:
    """Replaces `getattr`, a call of which Python 3.11.0 to 3.11.3 pickles for every member of an enumeration."""
    if kind is not ZeroStageEnum:
        raise UnpicklingError(f"getattr of {kind}, which no checkpoint of DeepSpeed calls")
    return kind[name]


SAVED_CLASSES = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
SAVED_CLASSES += [(enumeration_member, "builtins.getattr")]


class Share(NamedTuple):
    """Elements `first` to `first + count` of a parameter are in a rank's flat tensor number `group`, from `at` on."""

    group: int
    at: int
    first: int
    count: int


@dataclass(frozen=True)
class Part:
    """What one rank keeps of the float32 weights and the optimizer's state."""

    shares: dict[str, Share]  # by parameter
    flats: list[dict[str, Tensor]]  # WEIGHTS and, after the first update, MOMENTS; all of shape [elements]
    step: Any = None  # Adam's step count, a tensor or an int


def find_shares(
    stage: int,
    shapes: Shapes,
    rank: int,
    world_size: int,
    *,
    sizes: Sequence[int],
    gaps: Sequence[Sequence[int]] | None = None,
) -> dict[str, Share]:
    """What a rank keeps of each parameter, and where; parameters of which it keeps nothing are left out.

    Args:
        sizes: elements in each flat tensor of a rank; ZeRO 0 to 2 cut the parameters there.
        gaps: unused elements behind each parameter (`zero_optimization.parameter_alignment`); None = no gaps.
    """
    shares = {}
    for group, named in enumerate(shapes):
        # where the previous parameter ends: in the rank's flat tensor at ZeRO-3, else in all ranks' laid end to end
        end = 0
        for number, (name, shape) in enumerate(named.items()):
            total = math.prod(shape)
            if stage == 3:
                size = -(-total // world_size)
                first, last, at = size * rank, min(total, size * (rank + 1)), end
                end += size
            else:
                begin = sizes[group] * rank - end  # where the rank's piece begins, relative to this parameter
                first, last = max(0, begin), min(total, begin + sizes[group])
                at = first - begin
                end += total + (gaps[group][number] if gaps else 0)
            if first < last:
                shares[name] = Share(group, at, first, last - first)
    return shares


def read_state(file: Path, *, mapped: bool = True) -> dict[str, Any]:
    """What DeepSpeed saved in a file, in CPU memory or, if `mapped`, read from the file when it is used.

    Raises:
        UnpicklingError: the file holds more than tensors, plain values and `SAVED_CLASSES`. No code of it is run.
    """
    with torch.serialization.safe_globals(SAVED_CLASSES):
        return torch.load(file, map_location="cpu", mmap=mapped, weights_only=True)


def average_file(rank: int) -> str:
    """The name of a rank's part of the weights' mean (`training.average`)."""
    return f"average_rank_{rank}.pt"


def is_average(name: str) -> bool:
    return re.fullmatch(r"average_rank_[0-9]+\.pt", name) is not None


def name_files(names: Collection[str], stage: int, world_size: int) -> tuple[list[str], list[str]]:
    """The names of the model's files and of the optimizer's files among a checkpoint's, both in rank order.

    Below ZeRO-3 one file holds the whole model; at ZeRO-0 it holds the optimizer's state as well.
    """
    models, optimizers = ["mp_rank_00_model_states.pt"], []
    if stage == 3:
        models = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(world_size)]
    if stage:
        prefix = "bf16_" if any(name.startswith("bf16_") for name in names) else ""
        optimizers = [f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(world_size)]
    return models, optimizers


def saved_parts(
    stage: int, model: dict[str, Any], optimizers: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[Part]:
    """What every rank saved; at ZeRO-0 there is one part.

    Args:
        model: content of a file of the model.
        optimizers: contents of the optimizer's files, by rank.
        names: the parameters' names, in the optimizer's order.
    """
    if stage == 0:
        weights = [model["module"][name] for name in names]
        shapes = [{name: weight.shape} for name, weight in zip(names, weights, strict=True)]
        shares = find_shares(0, shapes, 0, 1, sizes=[weight.numel() for weight in weights])
        return [_part(shares, weights, model["optimizer"]["state"])]
    sizes = [flat.numel() for flat in optimizers[0][FLATS[stage]]]  # the last ranks save theirs without padding
    gaps = optimizers[0].get("param_alignment_paddings")
    parts = []
    for rank, optimizer in enumerate(optimizers):
        shares = find_shares(stage, model["param_shapes"], rank, len(optimizers), sizes=sizes, gaps=gaps)
        parts.append(_part(shares, optimizer[FLATS[stage]], optimizer[STATES[stage]]["state"]))
    return parts


def _part(shares: dict[str, Share], weights: Sequence[Tensor], state_of: dict[int, dict[str, Any]]) -> Part:
    flats, step = [], None
    for number, weight in enumerate(weights):
        state = state_of.get(number, {})
        flat = {WEIGHTS: weight.reshape(-1)}
        for key in MOMENTS:
            if key in state:
                flat[key] = state[key].reshape(-1)
        flats.append(flat)
        if step is None:
            step = state.get("step")
    return Part(shares, flats, step)
