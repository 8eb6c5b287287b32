"""Loads a checkpoint that another number of ranks or another ZeRO stage wrote.

Every rank keeps float32 weights and Adam's moments in flat tensors: at ZeRO-0 whole parameters, at ZeRO-1 and 2 a
piece of all parameters laid end to end, at ZeRO-3 a piece of each parameter. `cut_pieces` says which elements of each
parameter a rank keeps, in the files and in the engine; what overlaps is copied. The files are mapped into memory: a
rank reads only what it keeps. DeepSpeed's universal checkpoints would write the whole state to disk a second time.
"""

import math
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor, nn

from swep_ds.common.errors import InputError
from swep_ds.training.checkpoint_files import Manifest

WEIGHTS = "weights"
MOMENTS = ("exp_avg", "exp_avg_sq")  # every optimizer that runs at ZeRO 1 to 3 is an Adam


class Piece(NamedTuple):
    """The elements of a parameter from number `first` on, as a rank keeps them."""

    first: int
    values: dict[str, Tensor]  # WEIGHTS and, if there are any, MOMENTS: views of shape [elements]


Pieces = dict[str, Piece]  # by parameter


def cut_pieces(
    stage: int,
    shapes: Sequence[dict[str, Sequence[int]]],
    flats: Sequence[dict[str, Tensor]],
    rank: int,
    world_size: int,
    sizes: Sequence[int],
) -> Pieces:
    """A rank's piece of each parameter of which it keeps any. Each flat tensor has `shapes`, those of its parameters by
    name, in order; `flats`, the rank's values by kind, of shape [elements]; and a rank's number of elements in `sizes`,
    where ZeRO 0 to 2 cut the parameters."""
    pieces = {}
    for group, named in enumerate(shapes):
        # where the previous parameter ends: in the rank's flat tensor at ZeRO-3, else in all ranks' laid end to end
        end = 0
        for name, shape in named.items():
            total = math.prod(shape)
            if stage == 3:
                share = -(-total // world_size)
                first = share * rank
                last = min(total, first + share)
                start = end
                end += share
            else:
                begin = sizes[group] * rank - end  # where the rank's part begins, relative to this parameter
                first = max(0, begin)
                last = min(total, begin + sizes[group])
                start = first - begin
                end += total
            if first < last:
                values = {kind: flat.narrow(0, start, last - first) for kind, flat in flats[group].items()}
                pieces[name] = Piece(first, values)
    return pieces


def copy_pieces(saved: Sequence[Pieces], kept: Pieces, tag: Path) -> None:
    """Fills `kept` from the pieces of all ranks that wrote checkpoint `tag`. Raises InputError: some are missing."""
    for name, target in kept.items():
        wanted = len(target.values[WEIGHTS])
        filled = 0
        for source in (pieces[name] for pieces in saved if name in pieces):
            begin = max(target.first, source.first)
            count = min(target.first + wanted, source.first + len(source.values[WEIGHTS])) - begin
            if count <= 0:
                continue
            filled += count
            for kind, values in target.values.items():
                place = values.narrow(0, begin - target.first, count)
                if kind in source.values:
                    place.copy_(source.values[kind].narrow(0, begin - source.first, count))
                else:
                    place.zero_()  # a parameter that never had a gradient has no moments
        if filled != wanted:
            fix = "resume on the number of ranks and the ZeRO stage that wrote it"
            raise InputError(f"{tag}: the checkpoint has {filled} of {wanted} elements of {name}: {fix}")


def _enumeration_member(kind: type[Enum], name: str) -> Enum:
    """Replaces `getattr`, which Python 3.11.0 to 3.11.3 pickles for every member of an enumeration."""
    if kind is not ZeroStageEnum:
        raise UnpicklingError(f"getattr of {kind}, which no checkpoint of DeepSpeed calls")
    return kind[name]


def read_state(file: Path, *, mapped: bool = True) -> dict[str, Any]:
    """What DeepSpeed saved in a file, in CPU memory or, if `mapped`, read from the file when it is used. Raises
    UnpicklingError: there is more than tensors, plain values and a few classes of DeepSpeed. No code is run."""
    known = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address, (_enumeration_member, "builtins.getattr")]
    with torch.serialization.safe_globals(known):
        return torch.load(file, map_location="cpu", mmap=mapped, weights_only=True)


def files_by_rank(names: Iterable[str], end: str) -> list[str]:
    """The names of a checkpoint's files that end with `end`, in the order of the ranks that wrote them."""
    chosen = [name for name in names if name.endswith(end)]
    return sorted(chosen, key=lambda name: int(re.search(r"rank_(\d+)", name)[1]))


def _saved_pieces(
    stage: int, model: dict[str, Any], optimizers: Sequence[dict[str, Any]], names: Sequence[str]
) -> tuple[list[Pieces], dict[str, Tensor]]:
    """What every rank saved, and by parameter Adam's step count; at ZeRO-0 one file, the model's, holds it all."""
    if stage == 0:
        shapes = [{name: model["module"][name].shape} for name in names]
        weights = [[model["module"][name] for name in names]]
        states = [model["optimizer"]["state"]]
    elif stage == 3:
        shapes = model["param_shapes"]
        weights = [optimizer["fp32_flat_groups"] for optimizer in optimizers]
        states = [optimizer["optimizer_state_dict"]["state"] for optimizer in optimizers]
    else:
        shapes = model["param_shapes"]
        weights = [optimizer["single_partition_of_fp32_groups"] for optimizer in optimizers]
        states = [optimizer["base_optimizer_state"]["state"] for optimizer in optimizers]
    sizes = [flat.numel() for flat in weights[0]]  # the last ranks save theirs without padding
    everyone = []
    for rank, flats in enumerate(weights):
        values = []
        for number, flat in enumerate(flats):
            state = states[rank].get(number, {})
            moments = {kind: state[kind].reshape(-1) for kind in MOMENTS if kind in state}
            values.append({WEIGHTS: flat.reshape(-1)} | moments)
        everyone.append(cut_pieces(stage, shapes, values, rank, len(weights), sizes))
    steps = {}  # without the parameters that have not been updated yet
    for of_rank in states:
        for number, state in of_rank.items():
            if "step" in state:
                steps |= dict.fromkeys(shapes[number], state["step"])
    return everyone, steps


def convert(engine, tag: Path, manifest: Manifest) -> None:
    """Loads a checkpoint of another layout into DeepSpeed's engine around its model. `refresh_weights` follows when
    all ranks are done. Raises InputError: in bf16 from or to ZeRO-0, or elements of a parameter are missing."""
    stage = manifest.layout["zero_stage"]
    engine_stage = engine.zero_optimization_stage()
    if 0 in (stage, engine_stage) and engine.bfloat16_enabled():
        fitting = "1, 2 or 3" if stage else "0"
        raise InputError(f"{tag}: in bf16 the state of ZeRO-0 has another form: use a ds_config of stage {fitting}")
    model = read_state(tag / files_by_rank(manifest.files, "model_states.pt")[0])
    files = files_by_rank(manifest.files, "optim_states.pt")
    optimizers = [read_state(tag / file)["optimizer_state_dict"] for file in files]
    saved, steps = _saved_pieces(stage, model, optimizers, list(parameter_shapes(engine.module)))
    copy_pieces(saved, engine_pieces(engine, moments=True), tag)
    set_steps(engine, steps)
    for name, buffer in engine.module.named_buffers():
        if name in model["module"]:
            buffer.copy_(model["module"][name])
    if engine_stage and optimizers:
        for name in ("loss_scaler", "dynamic_loss_scale"):
            if name in optimizers[0]:
                setattr(engine.optimizer, name, optimizers[0][name])
    engine.lr_scheduler.load_state_dict(model["lr_scheduler"])
    for group, rate in zip(engine.basic_optimizer.param_groups, engine.lr_scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    for name in ("global_steps", "global_samples", "skipped_steps"):
        setattr(engine, name, model[name])


def parameter_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of the trained parameters in the optimizer's order, whole even if partitioned; a tied weight once."""
    return {
        name: tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def _engine_flats(engine) -> list[Tensor]:
    if engine.zero_optimization_stage() == 3:
        return engine.optimizer.fp32_partitioned_groups_flat
    return [tensor for group in engine.basic_optimizer.param_groups for tensor in group["params"]]


def _engine_shapes(engine) -> list[dict[str, Sequence[int]]]:
    """The parameters in each flat tensor."""
    if engine.zero_optimization_stage() == 0:
        return [{name: shape} for name, shape in parameter_shapes(engine.module).items()]
    return engine._get_zero_param_shapes()


def engine_pieces(engine, *, moments: bool = False) -> Pieces:
    """What this rank's optimizer updates, as views; with `moments` also Adam's, zero where it has none yet."""
    flats = _engine_flats(engine)
    values = []
    for flat in flats:
        kinds = {WEIGHTS: flat.data.view(-1)}
        for kind in MOMENTS if moments else ():
            state = engine.basic_optimizer.state[flat]
            if kind not in state:
                state[kind] = torch.zeros_like(flat, requires_grad=False)
            kinds[kind] = state[kind].view(-1)
        values.append(kinds)
    sizes = [flat.numel() for flat in flats]
    stage = engine.zero_optimization_stage()
    shapes = _engine_shapes(engine)
    if stage == 0:
        return cut_pieces(0, shapes, values, 0, 1, sizes)
    ranks = engine.optimizer.dp_process_group
    return cut_pieces(stage, shapes, values, dist.get_rank(ranks), dist.get_world_size(ranks), sizes)


def set_steps(engine, steps: dict[str, Tensor]) -> None:
    """Sets Adam's step counts, by parameter. A flat tensor without one, as before its first finite gradient or while it
    is frozen, has no state of Adam's."""
    fused = engine.basic_optimizer.defaults.get("fused")  # fused Adam counts on the weights' device
    for flat, shapes in zip(_engine_flats(engine), _engine_shapes(engine), strict=True):
        state = engine.basic_optimizer.state[flat]
        step = steps.get(next(iter(shapes)))
        if step is None:
            state.clear()
        else:  # a copy for each flat tensor, as Adam counts in place
            state["step"] = step.to(flat.device if fused else "cpu", copy=True)


def refresh_weights(engine) -> None:
    """Makes the module's weights from the optimizer's; at ZeRO-0 in float32 they are the same. Collective."""
    optimizer = engine.optimizer
    stage = engine.zero_optimization_stage()
    if stage == 0 and hasattr(optimizer, "fp32_groups"):
        for rounded, exact in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
            torch._foreach_copy_([parameter.data for parameter in rounded], exact)
    elif stage in (1, 2):
        optimizer.update_lp_params()
    elif stage == 3:
        optimizer.checkpoint_event_prologue()
        for number in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)
        optimizer.checkpoint_event_epilogue()
