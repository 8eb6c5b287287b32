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

from swep_ds.common.errors import InputError
from swep_ds.training.checkpoint_files import Manifest
from swep_ds.training.deepspeed_files import (
    MOMENTS,
    WEIGHTS,
    Part,
    Share,
    find_shares,
    name_files,
    read_state,
    saved_parts,
)

COUNTS = ("global_steps", "global_samples", "skipped_steps")


def parameter_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of the trained parameters in the optimizer's order, whole even if partitioned; a tied weight once."""
    return {
        name: tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def convert(engine, tag: Path, manifest: Manifest) -> None:
    """Loads a checkpoint of another layout into an engine of the same model.

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
    optimizers = [read_state(tag / file)["optimizer_state_dict"] for file in files]
    saved = saved_parts(stage, model, optimizers, list(parameter_shapes(engine.module)))
    copy_parts(saved, _kept(engine), tag)
    _set_steps(engine, next((part.step for part in saved if part.step is not None), None))
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
    stage, sizes = engine.zero_optimization_stage(), [flat.numel() for flat in flats]
    if stage == 0:
        shapes = [{name: flat.shape} for name, flat in zip(parameter_shapes(engine.module), flats, strict=True)]
        return find_shares(0, shapes, 0, 1, sizes=sizes)
    group = engine.optimizer.dp_process_group
    gaps = getattr(engine.optimizer, "round_robin_bit16_padding", None)
    shapes = engine._get_zero_param_shapes()
    return find_shares(stage, shapes, dist.get_rank(group), dist.get_world_size(group), sizes=sizes, gaps=gaps)


def _kept(engine) -> Part:
    """What this rank keeps, with zero moments where the optimizer has none yet."""
    flats, kept = engine_flats(engine), []
    for flat in flats:
        state = engine.basic_optimizer.state[flat]
        for key in MOMENTS:
            if key not in state:
                state[key] = torch.zeros_like(flat, requires_grad=False)
        kept.append({WEIGHTS: flat.data.view(-1)} | {key: state[key].view(-1) for key in MOMENTS})
    return Part(engine_shares(engine, flats), kept)


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
