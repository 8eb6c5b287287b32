"""Loads a checkpoint, whatever number of ranks and ZeRO stage wrote it.

Every rank keeps float32 weights and Adam's moments in flat tensors. `flats.places` says which elements of a parameter
it keeps, in the files and in the engine; what overlaps is copied. The files are mapped into memory: a rank reads only
what it keeps. DeepSpeed's universal checkpoints would write the whole state to disk a second time.
"""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swep_ds.common.errors import InputError
from swep_ds.training.zero.files import read_state
from swep_ds.training.zero.flats import Place, flats, parameter_shapes, places

WEIGHTS = "weights"
MOMENTS = ("exp_avg", "exp_avg_sq")  # every optimizer that runs at ZeRO 1 to 3 is an Adam


class Piece(NamedTuple):
    """The elements of a parameter from number `first` on, as a rank keeps them."""

    first: int
    values: dict[str, Tensor]  # WEIGHTS and, if there are any, MOMENTS: views of shape [elements]


Pieces = dict[str, Piece]  # by parameter


def cut(where: Iterable[Place], flat: dict[str, Tensor]) -> Pieces:
    """The pieces in a rank's flat tensor, which has `flat`, its values by kind, of shape [elements]."""
    pieces = {}
    for name, first, start, count in where:
        pieces[name] = Piece(first, {kind: values.narrow(0, start, count) for kind, values in flat.items()})
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
    everyone = []
    steps = {}  # without the parameters that have not been updated yet
    for rank, flat_tensors in enumerate(weights):
        pieces: Pieces = {}
        for number, flat in enumerate(flat_tensors):
            state = states[rank].get(number, {})
            values = {WEIGHTS: flat.reshape(-1)}
            values |= {kind: state[kind].reshape(-1) for kind in MOMENTS if kind in state}
            size = weights[0][number].numel()  # the last ranks save theirs without padding
            pieces |= cut(places(stage, shapes[number], size, rank, len(weights)), values)
            if "step" in state:
                steps |= dict.fromkeys(shapes[number], state["step"])
        everyone.append(pieces)
    return everyone, steps


def load(engine, tag: Path, stage: int, names: Sequence[str]) -> None:
    """Loads a checkpoint of a ZeRO `stage` into DeepSpeed's engine around its model. `names` are those of the files in
    its folder `tag`, in the order of the ranks that wrote them; `refresh_weights` follows when all ranks are done.
    Raises InputError: elements of a parameter are missing."""
    model = read_state(tag / next(name for name in names if name.endswith("model_states.pt")))
    optimizers = [read_state(tag / name)["optimizer_state_dict"] for name in names if name.endswith("optim_states.pt")]
    saved, steps = _saved_pieces(stage, model, optimizers, list(parameter_shapes(engine.module)))
    if stage == engine.zero_optimization_stage() == 0:  # where the optimizer may be another than Adam
        copy_pieces(saved, engine_pieces(engine), tag)
        engine.basic_optimizer.load_state_dict(copy.deepcopy(model["optimizer"]))  # not mapped: a file may be deleted
    else:
        copy_pieces(saved, engine_pieces(engine, moments=True), tag)
        set_steps(engine, steps)
    for name, buffer in engine.module.named_buffers():
        if name in model["module"]:
            buffer.copy_(model["module"][name])
    if engine.zero_optimization_stage() and optimizers:
        for name in ("loss_scaler", "dynamic_loss_scale"):
            if name in optimizers[0]:
                setattr(engine.optimizer, name, optimizers[0][name])
    engine.lr_scheduler.load_state_dict(model["lr_scheduler"])
    for group, rate in zip(engine.basic_optimizer.param_groups, engine.lr_scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    for name in ("global_steps", "global_samples", "skipped_steps"):
        setattr(engine, name, model[name])


def engine_pieces(engine, *, moments: bool = False) -> Pieces:
    """What this rank's optimizer updates, as views; with `moments` also Adam's, zero where it has none yet."""
    pieces: Pieces = {}
    kinds = ()
    if moments:
        kinds = MOMENTS
    for flat in flats(engine):
        values = {WEIGHTS: flat.weights.data.view(-1)}
        for kind in kinds:
            state = engine.basic_optimizer.state[flat.weights]
            if kind not in state:
                state[kind] = torch.zeros_like(flat.weights, requires_grad=False)
            values[kind] = state[kind].view(-1)
        pieces |= cut(flat.places, values)
    return pieces


def set_steps(engine, steps: dict[str, Tensor]) -> None:
    """Sets Adam's step counts, by parameter. A flat tensor without one, as before its first finite gradient, has no
    state of Adam's."""
    fused = engine.basic_optimizer.defaults.get("fused")  # fused Adam counts on the weights' device
    for flat in flats(engine):
        state = engine.basic_optimizer.state[flat.weights]
        step = steps.get(next(iter(flat.parameters)))
        if step is None:
            state.clear()
        else:  # a copy for each flat tensor, as Adam counts in place
            state["step"] = step.to(flat.weights.device if fused else "cpu", copy=True)
