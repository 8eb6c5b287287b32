"""What DeepSpeed's files of a checkpoint hold, and where in them which elements of which parameter lie.

A rank keeps float32 weights and the optimizer's moments in flat tensors: at ZeRO-1 and 2 an equal piece of all
parameters laid end to end, at ZeRO-3 an equal piece of each parameter, at ZeRO-0 everything. The files are mapped into
memory; they are read as tensors, plain values and a few classes of DeepSpeed, and code in them is refused.
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

from swep_ds.errors import InputError

WEIGHTS, MOMENTS = "weights", ("exp_avg", "exp_avg_sq")  # every optimizer that runs beyond ZeRO-0 is an Adam
FLATS = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}  # by stage
STATES = {1: "base_optimizer_state", 2: "base_optimizer_state", 3: "optimizer_state_dict"}
Shapes = Sequence[dict[str, torch.Size]]  # by flat tensor: of the parameters by name, in order


def enumeration_member(kind: type[Enum], name: str) -> Enum:
    """In place of `getattr`, as which Python 3.11.0 to 3.11.3 pickles a member of an enumeration.

    Raises:
        UnpicklingError: it is none.
    """
    if not (isinstance(kind, EnumMeta) and name in kind.__members__):
        raise UnpicklingError(f"GLOBAL builtins.getattr of {kind}")
    return kind[name]


# in DeepSpeed's files, beside tensors
SAVED_CLASSES = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
SAVED_CLASSES += [(enumeration_member, "builtins.getattr")]


class Share(NamedTuple):
    """Elements `first` to `first + count` of a parameter: in a rank's flat tensor number `group`, from `at` on."""

    group: int
    at: int
    first: int
    count: int


@dataclass(frozen=True)
class Part:
    """What one rank keeps."""

    shares: dict[str, Share]  # by parameter
    flats: list[dict[str, Tensor]]  # WEIGHTS and, unless there was no update yet, MOMENTS
    step: Any = None  # Adam's count, a tensor or an int


def find_shares(
    stage: int,
    shapes: Shapes,
    rank: int,
    world_size: int,
    *,
    sizes: Sequence[int],
    gaps: Sequence[Sequence[int]] | None = None,
) -> dict[str, Share]:
    """What a rank keeps of every parameter, and where; parameters of which it keeps nothing are left out.

    Args:
        sizes: elements of a rank's flat tensors, which ZeRO 0 to 2 cut at.
        gaps: unused elements behind each parameter there (`zero_optimization.parameter_alignment`); None = none.
    """
    found = {}
    for group, named in enumerate(shapes):
        end = 0  # of the parameter before: in the rank's flat tensor at ZeRO-3, else in all ranks' laid end to end
        for number, (name, shape) in enumerate(named.items()):
            total = math.prod(shape)
            if stage == 3:
                size = -(-total // world_size)
                first, last, at = size * rank, min(total, size * (rank + 1)), end
                end += size
            else:
                begin = sizes[group] * rank - end  # of the rank's piece, counted from this parameter's first element
                first, last = max(0, begin), min(total, begin + sizes[group])
                at = first - begin
                end += total + (gaps[group][number] if gaps else 0)
            if first < last:
                found[name] = Share(group, at, first, last - first)
    return found


def read_state(file: Path, *, mapped: bool = True) -> dict[str, Any]:
    """What DeepSpeed saved in a file, in CPU memory or `mapped` into it; no code that is pickled in it is run.

    Raises:
        InputError: it holds more than tensors, plain values and `SAVED_CLASSES`.
    """
    try:
        with torch.serialization.safe_globals(SAVED_CLASSES):
            return torch.load(file, map_location="cpu", mmap=mapped, weights_only=True)
    except UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        raise InputError(
            f"{file}: holds {named[1] if named else 'objects'}, as no checkpoint of this DeepSpeed does: resume only "
            "from what swep-ds wrote"
        ) from None


def name_files(names: Collection[str], stage: int, world_size: int) -> tuple[list[str], list[str]]:
    """Names of the files of the model and of those of the optimizer, each by rank; below ZeRO-3 one file has the
    whole model, and at ZeRO-0 the optimizer's state as well.

    Raises:
        ValueError: `names` are not those of a checkpoint that `world_size` ranks wrote at ZeRO `stage`.
    """
    fault = ValueError(f"its files are not those of {world_size} rank(s) at ZeRO-{stage}")
    if len(names) != (world_size if stage == 3 else 1) + (world_size if stage else 0):
        raise fault
    models, optimizers = ["mp_rank_00_model_states.pt"], []
    if stage == 3:
        models = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(world_size)]
    if stage:
        optimizers = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(world_size)]
        optimizers = [name if name in names else f"bf16_{name}" for name in optimizers]
    if set(names) != {*models, *optimizers}:
        raise fault
    return models, optimizers


def saved_shapes(model: dict[str, Any], stage: int, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The parameters' shapes, of a file of the model; at ZeRO-0 of the tensors called `names` in it."""
    if stage == 0:
        return {name: tuple(tensor.shape) for name, tensor in model["module"].items() if name in names}
    return {name: tuple(shape) for group in model["param_shapes"] for name, shape in group.items()}


def saved_whole(model: dict[str, Any], names: list[str]) -> Part:
    """ZeRO-0: the module's weights, and the optimizer's state by the parameters' numbers."""
    weights = [model["module"][name] for name in names]
    states = [model["optimizer"]["state"].get(number, {}) for number in range(len(names))]
    shapes = [{name: weight.shape} for name, weight in zip(names, weights, strict=True)]
    return _saved(find_shares(0, shapes, 0, 1, sizes=[weight.numel() for weight in weights]), weights, states)


def saved_pieces(stage: int, shapes: Shapes, optimizers: Sequence[dict[str, Any]]) -> list[Part]:
    """ZeRO 1 to 3: the optimizer's files, one of each rank."""
    sizes = [flat.numel() for flat in optimizers[0][FLATS[stage]]]  # the last ranks' lack the padding
    gaps = optimizers[0].get("param_alignment_paddings")
    world_size = len(optimizers)
    return [
        saved_piece(stage, find_shares(stage, shapes, rank, world_size, sizes=sizes, gaps=gaps), optimizer)
        for rank, optimizer in enumerate(optimizers)
    ]


def saved_piece(stage: int, shares: dict[str, Share], optimizer: dict[str, Any]) -> Part:
    """One of them, which holds these shares."""
    flats, states = optimizer[FLATS[stage]], optimizer[STATES[stage]]["state"]
    return _saved(shares, flats, [states.get(number, {}) for number in range(len(flats))])


def _saved(shares: dict[str, Share], weights: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> Part:
    """Raises ValueError where a tensor is not as long as its shares, or holds no numbers."""
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
