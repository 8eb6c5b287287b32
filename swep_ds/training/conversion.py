"""Going on from a checkpoint that another number of ranks or another ZeRO stage wrote.

A rank of DeepSpeed keeps float32 weights and the optimizer's moments in flat tensors (`training.saved_state`).
`find_shares` says which elements of which parameter lie where in them, of the files as of the engine, and what overlaps
is copied, once the files are known to be of this model, name by name and shape by shape. All four stages and any
numbers of ranks are that one case; weights in half precision are then made from the float32 ones, as after any update.
The files are mapped into memory: a rank reads what it keeps, and none holds a parameter more.

DeepSpeed's own way (universal checkpoints) writes the whole state to disk a second time and ends in a bare assertion
between ZeRO-2 and ZeRO-3.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swep_ds.errors import InputError, reason
from swep_ds.training.checkpoint_files import Manifest, damaged
from swep_ds.training.saved_state import (
    MOMENTS,
    WEIGHTS,
    Part,
    Share,
    find_shares,
    name_files,
    read_state,
    saved_piece,
    saved_pieces,
    saved_shapes,
    saved_whole,
)

COUNTS = ("global_steps", "global_samples", "skipped_steps")


def find_fault(engine, tag: Path, manifest: Manifest, *, same_layout: bool) -> str | None:
    """Why the state in a checkpoint is none of this engine's model, None if it is one; nothing is loaded yet.

    Every rank calls it for itself, and looks at the files that it will read: all of the optimizer's, or in the
    `same_layout` as the engine's its own.
    """
    try:
        _check(engine, tag, manifest, same_layout)
    except InputError:  # code
        raise
    except Exception as error:  # content of any kind fails in any way
        return str(damaged(tag, reason(error)))
    return None


def _check(engine, tag: Path, manifest: Manifest, same_layout: bool) -> None:
    """Raises ValueError, or anything else that wrong content leads to."""
    stage, world_size = manifest.layout.zero_stage, manifest.layout.world_size
    models, optimizers = name_files(manifest.files, stage, world_size)
    rank = dist.get_rank()
    model = read_state(tag / models[rank if stage == 3 and same_layout else 0])
    here = parameter_shapes(engine.module)
    _compare(saved_shapes(model, stage, here), here)
    partitioned = 3 in (stage, engine.zero_optimization_stage())  # then there is nothing of them in it but the names
    modules = (model["module"], engine.module.state_dict())
    _compare(*({name: not partitioned and tuple(tensor.shape) for name, tensor in state.items()} for state in modules))
    _check_progress(engine, model, manifest)
    for part in _parts_to_read(engine, tag, stage, model, optimizers, same_layout):
        if not all(flat[WEIGHTS].isfinite().all() for flat in part.flats):
            raise ValueError("its weights are no finite numbers")


def _parts_to_read(engine, tag: Path, stage: int, model: dict[str, Any], files: list[str], same_layout: bool):
    """What ranks kept, of the files that this rank reads; of a conversion its share of them."""
    rank, half = dist.get_rank(), engine.bfloat16_enabled() or engine.fp16_enabled()
    if stage == 0:  # in half precision the optimizer's state has another form there
        return [] if half else [saved_whole(model, _names(engine))]
    if not same_layout:
        optimizers = [read_state(tag / file)["optimizer_state_dict"] for file in files]
        return saved_pieces(stage, model["param_shapes"], optimizers)[rank :: dist.get_world_size()]
    optimizer, flats = read_state(tag / files[rank])["optimizer_state_dict"], _flats(engine)
    part = saved_piece(stage, _shares(engine, flats), optimizer)
    for flat, saved in zip(flats, part.flats, strict=True):
        if saved[WEIGHTS].dtype != flat.dtype or len(saved[WEIGHTS]) > flat.numel():
            raise ValueError(f"{len(saved[WEIGHTS])} weights of {saved[WEIGHTS].dtype}, for {flat.numel()}")
    scaler, here = optimizer.get("loss_scaler"), getattr(engine.optimizer, "loss_scaler", None)
    if type(scaler) is not type(here) or (scaler and not scaler.cur_scale > 0):
        raise ValueError("its loss scale is none")
    return [part]


def _compare(there: dict[str, Any], here: dict[str, Any]) -> None:
    for name in {**here, **there}:
        if there.get(name) != here.get(name):
            raise ValueError(f"{name} is {there.get(name)} there, {here.get(name)} here")


def _check_progress(engine, model: dict[str, Any], manifest: Manifest) -> None:
    counts = {name: model[name] for name in COUNTS}
    if counts["global_steps"] != manifest.done.updates or not all(
        type(count) is int and count >= 0 for count in counts.values()
    ):
        raise ValueError(f"counts {counts}, of update {manifest.done.updates}")
    here, there = engine.lr_scheduler.state_dict(), model["lr_scheduler"]  # other versions of PyTorch keep other things
    if "last_epoch" not in there or any(type(here[name]) is not type(there[name]) for name in here.keys() & there):
        raise ValueError("its schedule is none of this PyTorch's")


def parameter_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters that are trained, whole where DeepSpeed has spread them; a tied weight has one name."""
    return {
        name: tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def convert(engine, tag: Path, manifest: Manifest) -> None:
    """Puts a checkpoint without fault (`find_fault`) into an engine of any other layout.

    Afterwards the engine stands where it would stand, had it made the updates itself: weights, moments, step counts,
    schedule, loss scale. Every rank calls it for itself, and once all are done, `refresh_weights`.

    Raises:
        InputError: a half-precision state of ZeRO-0, or not all elements of a parameter are there.
    """
    here, stage, world_size = engine.zero_optimization_stage(), manifest.layout.zero_stage, manifest.layout.world_size
    if 0 in (stage, here) and (engine.bfloat16_enabled() or engine.fp16_enabled()):
        raise InputError(
            f"{tag}: in half precision the state of ZeRO-0 has another form than that of the other stages, and "
            f"ZeRO-{stage} wrote this checkpoint: take a ds_config of stage {'1, 2 or 3' if stage else '0'}"
        )
    models, files = name_files(manifest.files, stage, world_size)
    model = read_state(tag / models[0])
    if stage == 0:
        scaler, saved = {}, [saved_whole(model, _names(engine))]
    else:
        optimizers = [read_state(tag / file)["optimizer_state_dict"] for file in files]
        scaler = optimizers[0]
        saved = saved_pieces(stage, model["param_shapes"], optimizers)
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
    for name in COUNTS:
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


# The engine


def _names(engine) -> list[str]:
    """Of the optimizer's parameters, in its order; a tied weight has one."""
    return [name for name, parameter in engine.module.named_parameters() if parameter.requires_grad]


def _flats(engine) -> list[Tensor]:
    """The float32 weights that this rank's optimizer steps."""
    if engine.zero_optimization_stage() == 3:
        return engine.optimizer.fp32_partitioned_groups_flat
    return [tensor for group in engine.basic_optimizer.param_groups for tensor in group["params"]]


def _shares(engine, flats: Sequence[Tensor]) -> dict[str, Share]:
    stage, rank, world_size, gaps = engine.zero_optimization_stage(), 0, 1, None
    if stage == 0:
        shapes = [{name: flat.shape} for name, flat in zip(_names(engine), flats, strict=True)]
    else:
        shapes, group = engine._get_zero_param_shapes(), engine.optimizer.dp_process_group
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        gaps = getattr(engine.optimizer, "round_robin_bit16_padding", None)
    return find_shares(stage, shapes, rank, world_size, sizes=[flat.numel() for flat in flats], gaps=gaps)


def _kept(engine) -> Part:
    """What this rank keeps; moments that the optimizer has not made yet are made."""
    flats, tensors = _flats(engine), []
    for flat in flats:
        state = engine.basic_optimizer.state[flat]
        for key in MOMENTS:
            if key not in state:
                state[key] = torch.zeros_like(flat, requires_grad=False)
        tensors.append({WEIGHTS: flat.data.view(-1)} | {key: state[key].view(-1) for key in MOMENTS})
    return Part(_shares(engine, flats), tensors)


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
                f"{tag}: the checkpoint has {filled} of {to.count} elements of {name}: resume on the number of ranks "
                "and the ZeRO stage that wrote it"
            )
