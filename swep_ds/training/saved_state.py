"""The content of DeepSpeed's checkpoint files: which elements of each parameter are where.

Every rank keeps float32 weights and the optimizer's moments in flat tensors: at ZeRO-0 everything, at ZeRO-1 and 2 an
equal piece of all parameters laid end to end, at ZeRO-3 an equal piece of each parameter.

DeepSpeed pickles its files. `read_state` reads tensors, plain values and a few classes of DeepSpeed, and refuses code.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, EnumMeta
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor

from swep_ds.common.errors import InputError

WEIGHTS, MOMENTS = "weights", ("exp_avg", "exp_avg_sq")  # every optimizer that runs at ZeRO 1 to 3 is an Adam
# keys of an optimizer's file, by ZeRO stage
FLATS = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}
STATES = {1: "base_optimizer_state", 2: "base_optimizer_state", 3: "optimizer_state_dict"}
Shapes = Sequence[dict[str, torch.Size]]  # for every flat tensor: shape by parameter name, in order


def enumeration_member(kind: type[Enum], name: str) -> Enum:
    """Replaces `getattr`, a call of which Python 3.11.0 to 3.11.3 pickles for every member of an enumeration.

    Raises:
        UnpicklingError: the call asks for anything else.
    """
    if not (isinstance(kind, EnumMeta) and name in kind.__members__):
        raise UnpicklingError(f"GLOBAL builtins.getattr of {kind}")
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
        InputError: the file holds more than tensors, plain values and `SAVED_CLASSES`.
    """
    try:
        with torch.serialization.safe_globals(SAVED_CLASSES):
            return torch.load(file, map_location="cpu", mmap=mapped, weights_only=True)
    except UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        raise InputError(
            f"{file}: contains {named[1] if named else 'objects'}, which no checkpoint of this DeepSpeed does: resume "
            "only from what swep-ds wrote"
        ) from None


def average_file(rank: int) -> str:
    """The name of a rank's part of the weights' mean (`training.average`)."""
    return f"average_rank_{rank}.pt"


def is_average(name: str) -> bool:
    return re.fullmatch(r"average_rank_[0-9]+\.pt", name) is not None


def name_files(names: Collection[str], stage: int, world_size: int) -> tuple[list[str], list[str]]:
    """The names of the model's files and of the optimizer's files, both in rank order.

    Below ZeRO-3 one file holds the whole model; at ZeRO-0 it holds the optimizer's state as well.

    Raises:
        ValueError: `names` are not the files that `world_size` ranks write at ZeRO `stage`.
    """
    names = {name for name in names if not is_average(name)}
    models, optimizers = ["mp_rank_00_model_states.pt"], []
    if stage == 3:
        models = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(world_size)]
    if stage:
        prefix = "bf16_" if any(name.startswith("bf16_") for name in names) else ""
        optimizers = [f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(world_size)]
    if names != {*models, *optimizers}:
        raise ValueError(f"its files are not those of {world_size} rank(s) at ZeRO-{stage}")
    return models, optimizers


def saved_shapes(model: dict[str, Any], stage: int, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Shape by parameter in a file of the model; at ZeRO-0, which lists none, of the tensors called `names`."""
    if stage == 0:
        return {name: tuple(tensor.shape) for name, tensor in model["module"].items() if name in names}
    return {name: tuple(shape) for group in model["param_shapes"] for name, shape in group.items()}


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
    shapes, size = model["param_shapes"], len(optimizers)
    shares = (find_shares(stage, shapes, rank, size, sizes=sizes, gaps=gaps) for rank in range(size))
    return [saved_part(stage, *of_rank) for of_rank in zip(shares, optimizers, strict=True)]


def saved_part(stage: int, shares: dict[str, Share], optimizer: dict[str, Any]) -> Part:
    """What one rank saved at ZeRO 1 to 3."""
    return _part(shares, optimizer[FLATS[stage]], optimizer[STATES[stage]]["state"])


def _part(shares: dict[str, Share], weights: Sequence[Tensor], state_of: dict[int, dict[str, Any]]) -> Part:
    """Raises ValueError if a tensor is shorter than its shares or holds no floating-point numbers."""
    states = [state_of.get(number, {}) for number in range(len(weights))]
    flats = [
        {WEIGHTS: weight.reshape(-1)} | {key: state[key].reshape(-1) for key in MOMENTS if key in state}
        for weight, state in zip(weights, states, strict=True)
    ]
    for name, share in shares.items():
        for key, flat in flats[share.group].items():
            if not flat.is_floating_point() or len(flat) < share.at + share.count:
                raise ValueError(f"{key} of {name}: {len(flat)} numbers of {flat.dtype}")
    step = next((state["step"] for state in states if "step" in state), None)
    if step is not None and float(step) < 0:
        raise ValueError(f"step {step}")
    return Part(shares, flats, step)
