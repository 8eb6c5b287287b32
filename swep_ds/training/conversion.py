"""Loads a checkpoint that another number of ranks or another ZeRO stage wrote.

`find_shares` says which elements of each parameter are where, in the files and in the engine; what overlaps is copied.
That covers all four stages and any number of ranks. Half-precision weights are then made from the float32 ones, as
after any update. The files are mapped into memory: a rank reads only what it keeps.

DeepSpeed's universal checkpoints would write the whole state to disk a second time, and fail with a bare assertion
between ZeRO-2 and ZeRO-3.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swep_ds.common.errors import InputError, reason
from swep_ds.common.settings import differences
from swep_ds.training.checkpoint_files import Manifest, damaged
from swep_ds.training.saved_state import (
    MOMENTS,
    WEIGHTS,
    Part,
    Share,
    find_shares,
    name_files,
    read_state,
    saved_part,
    saved_parts,
    saved_shapes,
)

COUNTS = ("global_steps", "global_samples", "skipped_steps")


def find_mismatch(engine, tag: Path, manifest: Manifest, *, same_layout: bool) -> str | None:
    """An error message if an intact checkpoint does not belong to the engine's model, else None. Nothing is loaded.

    Each rank opens the files that it will load: its own in the `same_layout` as the engine's, otherwise all.

    Raises:
        InputError: a file contains code.
    """
    try:
        _check(engine, tag, manifest, same_layout)
    except InputError:
        raise
    except Exception as error:  # wrong content may raise anything
        return str(damaged(tag, reason(error)))
    return None


def _check(engine, tag: Path, manifest: Manifest, same_layout: bool) -> None:
    stage, rank = manifest.layout.zero_stage, dist.get_rank()
    models, files = name_files(manifest.files, stage, manifest.layout.world_size)
    model = read_state(tag / models[rank if stage == 3 and same_layout else 0])
    shapes = parameter_shapes(engine.module)
    _check_equal(saved_shapes(model, stage, shapes), shapes)
    whole = 3 not in (stage, engine.zero_optimization_stage())  # at ZeRO-3 the module's own tensors are empty
    _check_equal(*(dict.fromkeys(state, True) for state in (manifest.done.method, engine.module.method.state())))
    modules = (model["module"], engine.module.state_dict())
    _check_equal(*({name: whole and tuple(tensor.shape) for name, tensor in state.items()} for state in modules))
    _check_progress(engine, model, manifest)
    if stage == 0 and engine.bfloat16_enabled():
        return  # the optimizer's state has another form, which DeepSpeed alone reads
    if stage and same_layout:
        parts = [_check_part_of_rank(engine, stage, read_state(tag / files[rank])["optimizer_state_dict"])]
    else:
        parts = _read_parts(engine, tag, stage, model, files)[0][rank :: dist.get_world_size()]
    if not all(flat[WEIGHTS].isfinite().all() for part in parts for flat in part.flats):
        raise ValueError("its weights are not all finite")


def _check_equal(saved: dict[str, Any], current: dict[str, Any]) -> None:
    if differing := differences(saved, current, most=1):
        raise ValueError(differing)


def _check_progress(engine, model: dict[str, Any], manifest: Manifest) -> None:
    counts = {name: model[name] for name in COUNTS}
    if counts["global_steps"] != manifest.done.updates or not all(type(n) is int and n >= 0 for n in counts.values()):
        raise ValueError(f"counts {counts} do not fit update {manifest.done.updates}")
    saved, current = model["lr_scheduler"], engine.lr_scheduler.state_dict()
    shared = saved.keys() & current.keys()  # other versions of PyTorch keep other fields
    if "last_epoch" not in saved or any(type(saved[name]) is not type(current[name]) for name in shared):
        raise ValueError("another version of PyTorch wrote its schedule")


def _check_part_of_rank(engine, stage: int, optimizer: dict[str, Any]) -> Part:
    """What this rank saved in the engine's own layout."""
    flats = engine_flats(engine)
    part = saved_part(stage, engine_shares(engine, flats), optimizer)
    for flat, saved in zip(flats, part.flats, strict=True):
        if saved[WEIGHTS].dtype != flat.dtype or len(saved[WEIGHTS]) > flat.numel():
            raise ValueError(f"{len(saved[WEIGHTS])} weights of {saved[WEIGHTS].dtype} for {flat.numel()}")
    scaler, current = optimizer.get("loss_scaler"), getattr(engine.optimizer, "loss_scaler", None)
    if type(scaler) is not type(current) or (scaler and not scaler.cur_scale > 0):
        raise ValueError("it holds no loss scale")
    return part


def _read_parts(
    engine, tag: Path, stage: int, model: dict[str, Any], files: Sequence[str]
) -> tuple[list[Part], dict[str, Any]]:
    """What all ranks saved, and the content of rank 0's optimizer file; empty at ZeRO-0."""
    optimizers = [read_state(tag / file)["optimizer_state_dict"] for file in files]
    return saved_parts(stage, model, optimizers, list(parameter_shapes(engine.module))), next(iter(optimizers), {})


def parameter_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of the trained parameters in the optimizer's order, whole even if partitioned; a tied weight once."""
    return {
        name: tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def convert(engine, tag: Path, manifest: Manifest) -> None:
    """Loads a checkpoint in which `find_mismatch` finds nothing into an engine of any other layout.

    Weights, moments, step counts, schedule and loss scale are then as if the engine had made the updates itself. Not
    collective; `refresh_weights` follows when all ranks are done.

    Raises:
        InputError: in bf16 from or to ZeRO-0, or elements of a parameter are missing.
    """
    stage, engine_stage = manifest.layout.zero_stage, engine.zero_optimization_stage()
    if 0 in (stage, engine_stage) and engine.bfloat16_enabled():
        raise InputError(
            f"{tag}: in bf16 the state of ZeRO-0 has another form than that of the other stages, and "
            f"ZeRO-{stage} wrote this checkpoint: use a ds_config of stage {'1, 2 or 3' if stage else '0'}"
        )
    models, files = name_files(manifest.files, stage, manifest.layout.world_size)
    model = read_state(tag / models[0])
    saved, scaler = _read_parts(engine, tag, stage, model, files)
    copy_parts(saved, _kept(engine), tag)
    _set_steps(engine, next((part.step for part in saved if part.step is not None), None))
    for name, buffer in engine.module.named_buffers():
        if name in model["module"]:
            buffer.copy_(model["module"][name])
    for name in ("loss_scaler", "dynamic_loss_scale"):
        if engine_stage and name in scaler:
            setattr(engine.optimizer, name, scaler[name])
    engine.lr_scheduler.load_state_dict(model["lr_scheduler"])
    for group, rate in zip(engine.basic_optimizer.param_groups, engine.lr_scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    for name in COUNTS:
        setattr(engine, name, model[name])


def refresh_weights(engine) -> None:
    """Makes the module's weights from the optimizer's float32 ones. Collective.

    At ZeRO-0 in float32 they are the same tensors.
    """
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
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


def engine_flats(engine) -> list[Tensor]:
    """The float32 weights that this rank's optimizer updates."""
    if engine.zero_optimization_stage() == 3:
        return engine.optimizer.fp32_partitioned_groups_flat
    return [tensor for group in engine.basic_optimizer.param_groups for tensor in group["params"]]


def engine_shares(engine, flats: Sequence[Tensor]) -> dict[str, Share]:
    """What this rank keeps of each parameter in `flats`, which are from `engine_flats`."""
    stage, rank, world_size, gaps = engine.zero_optimization_stage(), 0, 1, None
    if stage == 0:
        shapes = [{name: flat.shape} for name, flat in zip(parameter_shapes(engine.module), flats, strict=True)]
    else:
        shapes, group = engine._get_zero_param_shapes(), engine.optimizer.dp_process_group
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        gaps = getattr(engine.optimizer, "round_robin_bit16_padding", None)
    return find_shares(stage, shapes, rank, world_size, sizes=[flat.numel() for flat in flats], gaps=gaps)


def _kept(engine) -> Part:
    """What this rank keeps, with zero moments where the optimizer has none yet."""
    flats, tensors = engine_flats(engine), []
    for flat in flats:
        state = engine.basic_optimizer.state[flat]
        for key in MOMENTS:
            if key not in state:
                state[key] = torch.zeros_like(flat, requires_grad=False)
        tensors.append({WEIGHTS: flat.data.view(-1)} | {key: state[key].view(-1) for key in MOMENTS})
    return Part(engine_shares(engine, flats), tensors)


def _set_steps(engine, step: Any) -> None:
    """Sets Adam's step counts; if `step` is None, as before the first finite gradient, empties Adam's state."""
    fused = engine.basic_optimizer.defaults.get("fused")  # fused Adam counts on the weights' device
    for flat in engine_flats(engine):
        state = engine.basic_optimizer.state[flat]
        if step is None:
            state.clear()
        elif torch.is_tensor(step):  # a copy for each flat tensor, as Adam counts in place
            state["step"] = step.to(flat.device if fused else "cpu", copy=True)
        else:
            state["step"] = step


def copy_parts(saved: Sequence[Part], kept: Part, tag: Path) -> None:
    """Copies into `kept` what it holds of each parameter, from the parts of all ranks that wrote the checkpoint `tag`.

    Raises:
        InputError: elements of a parameter are in none of the parts.
    """
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
