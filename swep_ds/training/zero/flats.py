"""Where parameters lie in the flat tensors that the optimizer updates.

At ZeRO-0 every parameter is a flat tensor of its own. At ZeRO-1 and 2 each of the optimizer's groups is one: its
parameters laid end to end, in equal parts for the ranks, of which the last are padded. At ZeRO-3 a group has several;
each parameter is cut into equal padded parts, and a rank's parts are laid end to end. Imports nothing of DeepSpeed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

Shapes = Mapping[str, Sequence[int]]  # each parameter's in a flat tensor, by name, in the tensor's order


class Place(NamedTuple):
    """The elements of parameter `name` that a rank has: `count` from number `first` on, and from number `start` on in
    the rank's flat tensor."""

    name: str
    first: int
    start: int
    count: int


class Flat(NamedTuple):
    """A flat tensor of an engine's optimizer."""

    group: int  # number of the optimizer's parameter group that it belongs to
    parameters: dict[str, nn.Parameter]  # by their names in the engine's module
    weights: Tensor  # [elements] of float32, this rank's part
    places: list[Place]


def places(stage: int, shapes: Shapes, size: int, rank: int, world_size: int) -> Iterator[Place]:
    """Yields the place of each parameter of which `rank` has any elements, in a flat tensor of parameters of these
    `shapes`. `size` is the number of elements of a rank's part, padding included."""
    end = 0  # where the parameter before ends: in the rank's part at ZeRO-3, else in all parts
    for name, shape in shapes.items():
        total = math.prod(shape)
        if stage == 3:
            share = math.ceil(total / world_size)
            first = share * rank
            last = min(total, first + share)
            start = end
            end += share
        else:
            begin = size * rank - end  # where the rank's part begins, relative to this parameter
            first = max(0, begin)
            last = min(total, begin + size)
            start = first - begin
            end += total
        if first < last:
            yield Place(name, first, start, last - first)


def flats(engine) -> Iterator[Flat]:
    """Yields the flat tensors of DeepSpeed's `engine`, in the order in which its step goes through them."""
    stage = engine.zero_optimization_stage()
    optimizer = engine.optimizer
    groups = engine.basic_optimizer.param_groups
    rank = 0
    world_size = 1
    if stage:
        rank = dist.get_rank(optimizer.dp_process_group)
        world_size = dist.get_world_size(optimizer.dp_process_group)
    if stage == 3:
        content = zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True)
        numbers = optimizer.sub_group_to_group_id.values()
    else:
        tensors = [(number, tensor) for number, group in enumerate(groups) for tensor in group["params"]]
        content = [(optimizer.bit16_groups[number] if stage else [tensor], tensor) for number, tensor in tensors]
        numbers = [number for number, _ in tensors]
    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    for number, (parameters, weights) in zip(numbers, content, strict=True):
        named = {names[parameter]: parameter for parameter in parameters}
        shapes = {name: whole_shape(parameter) for name, parameter in named.items()}
        mine = list(places(stage, shapes, weights.numel(), rank, world_size))
        yield Flat(number, named, weights, mine)


def is_partitioned(tensor: Tensor) -> bool:
    """Whether ZeRO-3 manages the tensor."""
    return hasattr(tensor, "ds_id")


def whole_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """The parameter's shape where it is whole."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def kept_part(parameter: nn.Parameter) -> Tensor:
    """The part that this rank has, all of it below ZeRO-3."""
    return getattr(parameter, "ds_tensor", parameter)


def parameter_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of the trained parameters in the optimizer's order, whole even if partitioned; a tied weight once."""
    return {name: whole_shape(p) for name, p in module.named_parameters() if p.requires_grad}
