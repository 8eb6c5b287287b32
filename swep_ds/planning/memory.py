"""Bytes that a rank's parameters, gradients, optimizer and buffers take, as DeepSpeed 0.19 allocates them.

Notable (n parameters, b bytes each in computation, w ranks; each formula names its source in deepspeed/runtime/):
- ZeRO 1 to 3 keep a second, flat float32 copy of this rank's part, in fp32 too: 12 n / w bytes with Adam's moments.
- A part of the flat buffer begins and ends inside of parameters; at ZeRO 1 and 2 the gradients of these are kept whole.
- At ZeRO 1 all gradients are there until the update's last micro-step is over; in `split` execution ZeRO 2 holds its
  part twice, what is accumulated and what comes in.
- A parameter larger than `reduce_bucket_size` goes past the bucket: its gradient is there beside it.
- The step needs room of its own: the gradients as one flat float32 piece, and what Adafactor computes with.
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
    """Bytes on one rank's device; `host` and `host_step` are in CPU memory, where states are offloaded.

    parameters, optimizer: there all the time; optimizer is the float32 copy and the moments.
    buffers: there all the time: ZeRO-3's bucket, the small weights that it never spreads, the passage of offload.
    gradients: of this rank, when the backward of an update is over.
    passing: what else is there with the activations: gradients on their way, buckets, gathered weights.
    step: gradients and room that the optimizer's step takes, when the activations are gone.
    reading: what of gradients and passing is there while the model is evaluated.
    loading: CPU memory of this rank's weights before they are on its device; at ZeRO-3 they stay in their files.
    spread: whether a weight is whole on a device only while it is used (ZeRO-3).
    """

    parameters: int
    optimizer: int
    buffers: int
    gradients: int
    passing: int
    step: int
    host: int = 0
    host_step: int = 0
    reading: int = 0
    loading: int = 0
    spread: bool = False

    def total(self) -> int:
        """All model states of one rank, wherever they are, between an update's last backward and the step."""
        return self.parameters + self.optimizer + self.buffers + self.gradients + self.host

    def peak(self, activations: int, evaluation: int = 0) -> int:
        """Of the device, at the worst moment of an update; or of evaluation, which holds so much beside the states."""
        always = self.parameters + self.optimizer + self.buffers
        return always + max(self.gradients + self.passing + activations, self.step, self.reading + evaluation)


def model_states(
    shapes: Sequence[Sequence[int]],
    config: dict[str, Any],
    *,
    precision: str,
    optimizer: str,
    world_size: int,
) -> States:
    """What a model with parameters of these shapes takes, in the order of its `parameters()`.

    Args:
        config: from `resolve_ds_config`; the optimizer is PyTorch's AdamW or transformers' Adafactor.
        precision, optimizer: of the recipe's section `train`.

    Raises:
        NotImplementedError: offload to disk, an optimizer of DeepSpeed's.
    """
    sizes = [math.prod(shape) for shape in shapes]
    numel, largest = sum(sizes), max(sizes)
    width = 2 if precision in ("bf16", "fp16") else 4
    zero = DeepSpeedZeroConfig(**config["zero_optimization"])
    blocks = [block for block in (zero.offload_optimizer, zero.offload_param) if block is not None]
    if any(block.device == "nvme" for block in blocks):
        raise NotImplementedError("offload to disk")
    if "optimizer" in config:
        raise NotImplementedError("DeepSpeed's own optimizers")
    accumulates = config["gradient_accumulation_steps"] > 1
    if zero.stage == 0:
        return replace(_stage_0(shapes, numel, largest, width, optimizer), loading=4 * numel)

    def working(elements: int) -> int:
        """Room for computing a step: fused AdamW needs none, Adafactor two pieces of what it goes through."""
        return 8 * elements if optimizer == "adafactor" else 0

    offloads = zero.offload_optimizer is not None
    # one for every type of gradient; autocast's are of two
    bucket = zero.reduce_bucket_size * (width + 2 * (precision == "autocast"))
    oversized = width * largest if largest > zero.reduce_bucket_size else 0
    if zero.stage == 3:
        # partition_parameters.py: every parameter is padded to w equal pieces
        part = sum(math.ceil(size / world_size) for size in sizes)
        # stage3.py: _create_fp16_sub_groups; the step goes through them one by one
        group = min(part, zero.sub_group_size + math.ceil(largest / world_size))
        step = 4 * group + working(group)
        # partitioned_param_coordinator.py: weights stay gathered up to max_live_parameters, and those which come next
        # are copied out of one buffer; a single rank's are never gathered
        gathered = width * min(numel, zero.max_live_parameters) if world_size > 1 else 0
        prefetched = width * min(numel, zero.prefetch_bucket_size) if world_size > 1 else 0
        passing = gathered + max(prefetched, 2 * width * largest)
        persistent = width * sum(s for s in sizes if s <= zero.param_persistence_threshold) if world_size > 1 else 0
        # stage3.py: the bucket is there from the start, grad_partitions_flat_buffer beside the float32 copy
        buffers = persistent + bucket
        forward = {"reading": gathered + prefetched, "spread": True}
        if not offloads:
            forward["reading"] += width * part
            return States(width * part, 12 * part, buffers, width * part, passing, width * part + step, **forward)
        # _setup_for_real_optimizer: another float32 gradient is kept beside the float32 copy
        host = (12 + 4 + width) * part
        if zero.offload_param is None:
            return States(width * part, 0, buffers, 0, passing, 0, host, working(group), **forward)
        return States(0, 0, buffers, 0, passing, 0, host + width * part, working(group), **forward)

    # stage_1_and_2.py: the flat buffer is padded to 2 w elements
    part = 2 * math.ceil(numel / (2 * world_size))
    whole = _parameters_in_a_part(sizes, part, world_size)
    if offloads:  # always through the hooks of stage 2
        # param_buffer_of_bit16_for_cpu_offload_groups, temp_grad_buffer_for_cpu_offload, accumulated_grads_in_cpu
        host = (12 + 4 + width) * part + width * largest + (width * whole if accumulates else 0)
        passing = bucket + 2 * oversized + 4 * largest
        return States(width * numel, 0, width * largest, 0, passing, 0, host, working(part), loading=4 * numel)
    # step(): averaged gradients, flat, then float32; then Adam
    step = max(width * (whole + part) + (4 * part if width < 4 else 0), 4 * part + working(part))
    if zero.stage == 1:  # grads_in_partition is filled from gradients which are all still there
        passing = width * numel + bucket
    else:
        passing = bucket + oversized + (width * whole if accumulates else 0)
    return States(width * numel, 12 * part, 0, width * whole, passing, step, loading=4 * numel)


def _stage_0(shapes: Sequence[Sequence[int]], numel: int, largest: int, width: int, optimizer: str) -> States:
    """Plain data parallelism: PyTorch's optimizer in fp32, fp16/unfused_optimizer.py around it in bf16 and fp16."""
    half = width < 4
    if optimizer == "adafactor":  # transformers: two vectors in place of a matrix, and no moment beside them
        moments = sum(
            4 * (math.prod(shape[:-1]) + math.prod(shape[:-2]) * shape[-1]) for shape in shapes if len(shape) > 1
        )
        moments += sum(4 * math.prod(shape) for shape in shapes if len(shape) < 2)
        working = 8 * largest
    else:
        moments = 8 * numel
        working = 0  # fused
    # engine.py: allreduce_bucket flattens gradients when the backward is over
    flattened = width * min(numel, ALLREDUCE_BUCKET + largest)
    gradients = width * numel
    step = gradients + max(flattened, (4 * numel if half else 0) + working)
    return States(width * numel, moments + (4 * numel if half else 0), 0, gradients, 0, step)


def _parameters_in_a_part(sizes: Sequence[int], part: int, world_size: int) -> int:
    """Elements of the parameters that a rank's part of the flat buffer touches, on the rank with most of them."""
    ends = list(itertools.accumulate(sizes))
    touched = [0] * world_size
    for size, end in zip(sizes, ends, strict=True):
        for rank in range((end - size) // part, (end - 1) // part + 1):
            touched[rank] += size
    return max(touched)
