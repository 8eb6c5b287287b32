"""Bytes that a rank's parameters, gradients, optimizer and buffers take, as DeepSpeed 0.19 allocates them.

Notable (n parameters, b bytes each in computation, w ranks; each formula names its source in deepspeed/runtime/):
- ZeRO 1 to 3 keep a second, flat float32 copy of this rank's part, in fp32 too: 12 n / w bytes with Adam's moments.
- A part of the flat buffer begins and ends inside parameters; ZeRO 1 and 2 keep the gradients of these whole.
- At ZeRO 1 all gradients exist until the update's last micro-step is over; in `split` execution ZeRO 2 holds its
  part twice, what is accumulated and what arrives.
- `train.coalesce_grad_reduction` leaves whole gradients on every rank until the last micro-step: ZeRO 2 holds what
  ZeRO 1 does.
- The gradient of a parameter larger than `reduce_bucket_size` does not go through the bucket: it comes on top.
- The method's parameters are flat by themselves. Here they are counted in one buffer with the model's, which differs by
  a few elements of padding, and in the step, which takes one after the other.
- The step needs room: the gradients as one flat float32 piece, and Adafactor's temporaries.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

ALLREDUCE_BUCKET = 500_000_000  # engine.py: buffered_allreduce_fallback, in elements


@dataclass(frozen=True)
class States:
    """Bytes on one rank's device; `host`, `host_step` and `loading` are in its CPU memory.

    parameters, optimizer: always there; optimizer is the float32 copy, the moments and the mean of the weights.
    buffers: always there: ZeRO-3's bucket, the small weights that it never partitions, the staging buffer of offload.
    gradients: this rank's, when the backward of an update is over.
    transient: gradients on their way, buckets and gathered weights, while the activations are held.
    step: gradients and working room of the optimizer's step, when the activations are gone.
    host, host_step: what is offloaded, and what its step takes on top.
    evaluating: the share of gradients and transient that is there during evaluation.
    loading: weights before they are on the device; at ZeRO-3 they stay in their files.
    partitioned: whether a weight is whole on a device only while it is used (ZeRO-3).
    """

    parameters: int
    optimizer: int
    buffers: int
    gradients: int
    transient: int
    step: int
    host: int = 0
    host_step: int = 0
    evaluating: int = 0
    loading: int = 0
    partitioned: bool = False

    def total(self) -> int:
        """All model states of one rank, on device and host, between an update's last backward and the step."""
        return self.parameters + self.optimizer + self.buffers + self.gradients + self.host

    def peak(self, activations: int, evaluation: int = 0) -> int:
        """The device's peak over an update that holds `activations`, and an evaluation that holds `evaluation`."""
        always = self.parameters + self.optimizer + self.buffers
        return always + max(self.gradients + self.transient + activations, self.step, self.evaluating + evaluation)


def model_states(
    shapes: Sequence[Sequence[int]],
    config: dict[str, Any],
    *,
    precision: str,
    optimizer: str,
    world_size: int,
    averaged: int = 0,
    coalesces: bool = False,
) -> States:
    """What a model takes whose `parameters()` have these shapes, in their order.

    Args:
        config: from `resolve_ds_config`; the optimizer is PyTorch's AdamW or transformers' Adafactor.
        precision, optimizer: of the recipe's section `train`.
        coalesces: `train.coalesce_grad_reduction`.
        averaged: elements of the model's parameters if `train.average` keeps their mean, else 0.

    Raises:
        NotImplementedError: the config offloads to disk, or takes an optimizer of DeepSpeed's.
    """
    zero = DeepSpeedZeroConfig(**config["zero_optimization"])
    if any(block is not None and block.device == "nvme" for block in (zero.offload_optimizer, zero.offload_param)):
        raise NotImplementedError("offload to disk")
    if "optimizer" in config:
        raise NotImplementedError("DeepSpeed's own optimizers")
    sizes = [math.prod(shape) for shape in shapes]
    width = 2 if precision in ("bf16", "fp16") else 4
    if zero.stage == 0:
        states = _stage_0(shapes, sum(sizes), max(sizes), width, optimizer)
        return replace(states, optimizer=states.optimizer + 4 * averaged, loading=4 * sum(sizes))
    # one bucket for each dtype of gradients; autocast's have two
    bucket = zero.reduce_bucket_size * (width + (2 if precision == "autocast" else 0))
    # temporaries of a step, for each element: fused AdamW has none, Adafactor two pieces of the size it works on
    working = 8 if optimizer == "adafactor" else 0
    if zero.stage == 3:
        return _stage_3(sizes, zero, width, bucket, working, world_size, averaged, coalesces)
    accumulates = config["gradient_accumulation_steps"] > 1
    return _stages_1_and_2(sizes, zero, width, bucket, working, world_size, averaged, coalesces, accumulates)


def _stage_3(
    sizes: Sequence[int],
    zero: DeepSpeedZeroConfig,
    width: int,
    bucket: int,
    working: int,
    world_size: int,
    averaged: int,
    coalesces: bool,
) -> States:
    numel, largest = sum(sizes), max(sizes)
    # partition_parameters.py: every parameter is padded to w equal pieces
    part = sum(math.ceil(size / world_size) for size in sizes)
    # stage3.py: _create_fp16_sub_groups; the step goes through them one by one
    kept = 12 * part + 4 * min(part, averaged)  # training/average.py: the mean has the float32 copy's pieces
    group = min(part, zero.sub_group_size + math.ceil(largest / world_size))
    step = 4 * group + working * group
    gathered = prefetched = persistent = 0
    if world_size > 1:  # a single rank gathers nothing
        # partitioned_param_coordinator.py: weights stay gathered up to max_live_parameters, and the prefetched ones
        # are copied out of one buffer
        gathered = width * min(numel, zero.max_live_parameters)
        prefetched = width * min(numel, zero.prefetch_bucket_size)
        persistent = width * sum(size for size in sizes if size <= zero.param_persistence_threshold)
    transient = gathered + max(prefetched, 2 * width * largest)
    if coalesces:
        transient += width * numel
    # stage3.py: the bucket exists from the start, grad_partitions_flat_buffer with the float32 copy
    buffers = persistent + bucket
    forward = {"evaluating": gathered + prefetched, "partitioned": True}
    if zero.offload_optimizer is None:
        forward["evaluating"] += width * part
        return States(width * part, kept, buffers, width * part, transient, width * part + step, **forward)
    # _setup_for_real_optimizer: a float32 gradient is kept with the float32 copy
    host = kept + (4 + width) * part
    if zero.offload_param is None:
        return States(width * part, 0, buffers, 0, transient, 0, host, working * group, **forward)
    return States(0, 0, buffers, 0, transient, 0, host + width * part, working * group, **forward)


def _stages_1_and_2(
    sizes: Sequence[int],
    zero: DeepSpeedZeroConfig,
    width: int,
    bucket: int,
    working: int,
    world_size: int,
    averaged: int,
    coalesces: bool,
    accumulates: bool,
) -> States:
    numel, largest = sum(sizes), max(sizes)
    oversized = width * largest if largest > zero.reduce_bucket_size else 0
    # stage_1_and_2.py: the flat buffer is padded to 2 w elements
    part = 2 * math.ceil(numel / (2 * world_size))
    kept = 12 * part + 4 * min(part, averaged)
    whole = _parameters_in_a_part(sizes, part, world_size)
    accumulated = width * whole if accumulates else 0
    if zero.offload_optimizer is not None:  # always through the hooks of stage 2
        # param_buffer_of_bit16_for_cpu_offload_groups, temp_grad_buffer_for_cpu_offload, accumulated_grads_in_cpu
        host = kept + (4 + width) * part + width * largest + accumulated
        transient = bucket + 2 * oversized + 4 * largest
        if coalesces:
            transient += width * numel
        return States(width * numel, 0, width * largest, 0, transient, 0, host, working * part, loading=4 * numel)
    # step(): averaged gradients, flat, then float32; then Adam
    step = max(width * (whole + part) + (4 * part if width < 4 else 0), 4 * part + working * part)
    transient = bucket + oversized + accumulated
    if zero.stage == 1 or coalesces:  # grads_in_partition is filled while all gradients still exist
        transient = width * numel + bucket
    return States(width * numel, kept, 0, width * whole, transient, step, loading=4 * numel)


def _stage_0(shapes: Sequence[Sequence[int]], numel: int, largest: int, width: int, optimizer: str) -> States:
    """Plain data parallelism: PyTorch's optimizer in fp32, fp16/unfused_optimizer.py around it in bf16 and fp16."""
    copy = 4 * numel if width < 4 else 0
    moments, working = 8 * numel, 0  # AdamW is fused
    if optimizer == "adafactor":  # transformers: two vectors for a matrix, and no first moment
        matrices = [shape for shape in shapes if len(shape) > 1]
        moments = 4 * sum(math.prod(s[:-1]) + math.prod(s[:-2]) * s[-1] for s in matrices)
        moments += 4 * sum(math.prod(shape) for shape in shapes if len(shape) < 2)
        working = 8 * largest
    # engine.py: allreduce_bucket flattens gradients when the backward is over
    flattened = width * min(numel, ALLREDUCE_BUCKET + largest)
    gradients = width * numel
    return States(width * numel, moments + copy, 0, gradients, 0, gradients + max(flattened, copy + working))


def _parameters_in_a_part(sizes: Sequence[int], part: int, world_size: int) -> int:
    """Elements of the parameters that a rank's part of the flat buffer touches, on the rank with most of them."""
    touched = [0] * world_size
    for size, end in zip(sizes, itertools.accumulate(sizes), strict=True):
        for rank in range((end - size) // part, (end - 1) // part + 1):
            touched[rank] += size
    return max(touched)
