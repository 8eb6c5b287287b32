"""Going on from a checkpoint that another number of ranks or another ZeRO stage wrote.

A rank of DeepSpeed keeps float32 weights and the optimizer's moments in flat tensors: at ZeRO-1 and 2 an equal piece
of all parameters laid end to end, at ZeRO-3 an equal piece of each parameter, at ZeRO-0 everything. `find_shares` says
which elements of which parameter lie where in them, of the files as of the engine, and what overlaps is copied. All
four stages and any numbers of ranks are that one case; weights in half precision are then made from the float32 ones,
as after any update. The files are mapped into memory: a rank reads what it keeps, and nobody holds a parameter more.

DeepSpeed's own way (universal checkpoints) writes the whole state to disk a second time and ends in a bare assertion
between ZeRO-2 and ZeRO-3.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, EnumMeta
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor

from swep_ds.errors import InputError

WEIGHTS, MOMENTS = "weights", ("exp_avg", "exp_avg_sq")  # every optimizer that runs beyond ZeRO-0 is an Adam
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


def convert(engine, tag: Path, stage: int, world_size: int) -> None:
    """Puts the checkpoint `tag`, which `world_size` ranks wrote at ZeRO `stage`, into an engine of any other layout.

    Afterwards the engine stands where it would stand, had it made the updates itself: weights, moments, step counts,
    schedule, loss scale. Every rank calls it for itself, and once all are done, `refresh_weights`.

    Raises:
        InputError: a half-precision state of ZeRO-0, or not all elements of a parameter are there.
    """
    here = engine.zero_optimization_stage()
    if 0 in (stage, here) and (engine.bfloat16_enabled() or engine.fp16_enabled()):
        raise InputError(
            f"{tag}: in half precision the state of ZeRO-0 has another form than that of the other stages, and "
            f"ZeRO-{stage} wrote this checkpoint: take a ds_config of stage {'1, 2 or 3' if stage else '0'}"
        )
    model = read_state(tag / f"{'zero_pp_rank_0_' if stage == 3 else ''}mp_rank_00_model_states.pt")
    if stage == 0:
        scaler, saved = {}, [_saved_whole(model, _names(engine))]
    else:
        files = [next(tag.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")) for rank in range(world_size)]
        optimizers = [read_state(file)["optimizer_state_dict"] for file in files]
        scaler, saved = optimizers[0], list(_saved_pieces(stage, model["param_shapes"], optimizers))
    _copy(saved, _kept(engine), tag)
    _set_steps(engine, next((part.step for part in saved if part.step is not None), None))
    for name, buffer in engine.module.named_buffers():
        if name in model["module"]:
            buffer.copy_(model["module"][name])
    for name in ("loss_scaler", "dynamic_loss_scale"):
        if here and name in scaler:
            setattr(engine.optimizer, name, scaler[name])
    engine.lr_scheduler.load_state_dict(model["lr_scheduler"])
    for group, rate in zip(engine.basic_optimizer.param_groups, engine.lr_scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    for name in ("global_steps", "global_samples", "skipped_steps"):
        setattr(engine, name, model[name])


def refresh_weights(engine) -> None:
    """Makes the weights that the model computes with of the optimizer's. All ranks call this together."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage in (1, 2):
        optimizer.update_lp_params()
    elif stage == 3:
        optimizer.checkpoint_event_prologue()
        for number in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)
        optimizer.checkpoint_event_epilogue()


# Files


def read_state(file: Path, *, mapped: bool = True) -> dict[str, Any]:
    """What DeepSpeed saved in a file, in CPU memory or `mapped` into it; no code that is pickled in it is run.

    Raises:
        InputError: it holds more than tensors, plain values and `SAVED_CLASSES`.
    """
    try:
        with torch.serialization.safe_globals(SAVED_CLASSES):
            return torch.load(file, map_location="cpu", mmap=mapped, weights_only=True)
    except UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise InputError(
            f"{file}: holds {found[1] if found else 'objects'}, as no checkpoint of this DeepSpeed does: resume only "
            "from what swep-ds wrote"
        ) from None


def _saved_whole(model: dict[str, Any], names: list[str]) -> Part:
    """ZeRO-0: the module's weights, and the optimizer's state by the parameters' numbers."""
    weights = [model["module"][name] for name in names]
    states = [model["optimizer"]["state"].get(number, {}) for number in range(len(names))]
    shapes = [{name: weight.shape} for name, weight in zip(names, weights, strict=True)]
    return _saved(find_shares(0, shapes, 0, 1, sizes=[weight.numel() for weight in weights]), weights, states)


def _saved_pieces(stage: int, shapes: Shapes, optimizers: Sequence[dict[str, Any]]) -> Iterator[Part]:
    """ZeRO 1 to 3: the optimizer's files, one of each rank."""
    weights, inner = "single_partition_of_fp32_groups", "base_optimizer_state"
    if stage == 3:
        weights, inner = "fp32_flat_groups", "optimizer_state_dict"
    sizes = [flat.numel() for flat in optimizers[0][weights]]  # the last ranks' lack the padding
    gaps = optimizers[0].get("param_alignment_paddings")
    for rank, optimizer in enumerate(optimizers):
        shares = find_shares(stage, shapes, rank, len(optimizers), sizes=sizes, gaps=gaps)
        flats = optimizer[weights]
        yield _saved(shares, flats, [optimizer[inner]["state"].get(number, {}) for number in range(len(flats))])


def _saved(shares: dict[str, Share], weights: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> Part:
    flats = [
        {WEIGHTS: weight.reshape(-1)} | {key: state[key].reshape(-1) for key in MOMENTS if key in state}
        for weight, state in zip(weights, states, strict=True)
    ]
    return Part(shares, flats, next((state["step"] for state in states if "step" in state), None))


# The engine


def _names(engine) -> list[str]:
    """Of the optimizer's parameters, in its order; a tied weight has one."""
    return [name for name, parameter in engine.module.named_parameters() if parameter.requires_grad]


def _flats(engine) -> list[Tensor]:
    """The float32 weights that this rank's optimizer steps."""
    if engine.zero_optimization_stage() == 3:
        return engine.optimizer.fp32_partitioned_groups_flat
    return [tensor for group in engine.basic_optimizer.param_groups for tensor in group["params"]]


def _kept(engine) -> Part:
    """What this rank keeps; moments that the optimizer has not made yet are made."""
    stage, flats = engine.zero_optimization_stage(), _flats(engine)
    rank, world_size, gaps = 0, 1, None
    if stage == 0:
        shapes = [{name: flat.shape} for name, flat in zip(_names(engine), flats, strict=True)]
    else:
        shapes, group = engine._get_zero_param_shapes(), engine.optimizer.dp_process_group
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        gaps = getattr(engine.optimizer, "round_robin_bit16_padding", None)
    tensors = []
    for flat in flats:
        state = engine.basic_optimizer.state[flat]
        for key in MOMENTS:
            if key not in state:
                state[key] = torch.zeros_like(flat, requires_grad=False)
        tensors.append({WEIGHTS: flat.data.view(-1)} | {key: state[key].view(-1) for key in MOMENTS})
    sizes = [flat.numel() for flat in flats]
    return Part(find_shares(stage, shapes, rank, world_size, sizes=sizes, gaps=gaps), tensors)


def _set_steps(engine, step: Any) -> None:
    counts_there = engine.basic_optimizer.defaults.get("fused")  # PyTorch's fused Adam: on the weights' device
    for flat in _flats(engine):
        state = engine.basic_optimizer.state[flat]
        if step is None:  # the run had no update with finite gradients yet: the optimizer begins with an empty state
            state.clear()
        else:  # a tensor of its own for each, in which the optimizer counts
            state["step"] = step
            if torch.is_tensor(step):
                state["step"] = step.to(flat.device if counts_there else "cpu", copy=True)


def _copy(saved: Sequence[Part], kept: Part, tag: Path) -> None:
    for name, to in kept.shares.items():
        filled = 0
        for part in saved:
            source = part.shares.get(name, to._replace(count=0))
            first = max(to.first, source.first)
            count = min(to.first + to.count, source.first + source.count) - first
            if count <= 0:
                continue
            filled += count
            for key, flat in kept.flats[to.group].items():
                target = flat.narrow(0, to.at + first - to.first, count)
                if key in part.flats[source.group]:
                    target.copy_(part.flats[source.group][key].narrow(0, source.at + first - source.first, count))
                else:
                    target.zero_()  # a parameter that never had a gradient has no moments
        if filled != to.count:
            raise InputError(
                f"{tag}: the checkpoint has {filled} of {to.count} elements of {name}: go on with the number of ranks "
                "and the ZeRO stage that wrote it"
            )
