"""Bytes that a rank's parameters, gradients, optimizer and buffers take, as DeepSpeed 0.19 allocates them.

Each formula names its source in deepspeed/runtime/. The method's parameters are flat by themselves; here they are
counted in one buffer with the model's, which differs by a few elements of padding, and in the step, which takes one
after the other.
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch import nn

from swep_ds.common.errors import InputError
from swep_ds.training.settings import TrainSection

HALF = {"bf16": 2, "fp16": 2}  # bytes of a parameter, by precision; in the others 4
ALLREDUCE_BUCKET = 500_000_000  # engine.py: buffered_allreduce_fallback, in elements


@dataclass(frozen=True)
class States:
    """Bytes on one rank's device; `host` and `loading` are in its CPU memory."""

    parameters: int = 0
    optimizer: int = 0  # the float32 copy, the moments and the mean of the weights
    buffers: int = 0  # ZeRO-3's bucket, the small weights that it never partitions, the staging buffer of offload
    gradients: int = 0  # this rank's, when the backward of an update is over
    transient: int = 0  # gradients on their way, buckets and gathered weights, while the activations are held
    step: int = 0  # gradients and working room of the optimizer's step, when the activations are gone
    host: int = 0  # what is offloaded
    moments: int = 0  # the part of `host` that is not there before the first step
    evaluating: int = 0  # there during evaluation: a share of gradients and transient, the mean with the start
    exporting: int = 0  # there during the export
    loading: int = 0  # weights before they are on the device; at ZeRO-3 they stay in their files
    starting: int = 0  # all that is there while the engine is built
    saved: int = 0  # all ranks', on disk: a checkpoint
    partitioned: bool = False  # whether a weight is whole on a device only while it is used (ZeRO-3)

    def phases(self, activations: int, held: int = 0, written: int = 0) -> dict[str, int]:
        """The device's peaks: until the engine is built, over an update that holds `activations`, an evaluation that
        holds `held` bytes, and an export with `written` bytes in the same memory."""
        always = self.parameters + self.optimizer + self.buffers
        return {
            "start": self.starting,
            "training": always + max(self.gradients + self.transient + activations, self.step),
            "evaluation": always + self.evaluating + held,
            "export": always + self.exporting + written,
        }


class ModelStates:
    """What an `Objective` takes under a config from `complete_ds_config`. Between ranks `on_cpu` gloo gathers through a
    buffer of its own."""

    def __init__(
        self, objective: nn.Module, config: dict[str, Any], train: TrainSection, world_size: int, *, on_cpu: bool
    ):
        zero = DeepSpeedZeroConfig(**config["zero_optimization"])
        self.zero = zero
        self.world_size = world_size
        self.adafactor = train.optimizer == "adafactor"
        self.copies = 2 if on_cpu else 1  # weights that are made flat or gathered, in the device's memory
        self.shapes = [parameter.shape for parameter in objective.parameters() if parameter.requires_grad]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.numel = sum(self.sizes)
        everything = [parameter.numel() for parameter in objective.parameters()]
        self.frozen = sum(everything) - self.numel
        self.widest = max(everything)
        self.largest = max(self.sizes)
        self.averaged = 0  # elements whose mean `train.average` keeps
        self.applied = 0  # the mean with the start, made when it is tested, beside the start and the last weights
        if train.average != "none":
            self.averaged = sum(p.numel() for p in objective.qa.parameters() if p.requires_grad)
        if train.average == "start":
            self.applied = 4 * self.averaged
        self.width = HALF.get(train.precision, 4)
        self.accumulates = config["gradient_accumulation_steps"] > 1
        self.summed = self.width  # bytes of a gradient in their sum
        if train.precision == "bf16" and ("data_types" in config or (self.accumulates and zero.stage == 1)):
            self.summed = 4
        # one bucket for each dtype of gradients; autocast's have two, of 2 and 4 bytes
        self.sends_half = train.precision == "autocast"
        self.bucket = zero.reduce_bucket_size * (self.width + 2 * self.sends_half)
        self.coalesced = self.width * self.numel if train.coalesce_grad_reduction else 0
        # stage_1_and_2.py: the flat buffer is padded to 2 w elements on w ranks
        self.part = 2 * math.ceil(self.numel / (2 * world_size))
        # below ZeRO-3: whole weights, and a part of the optimizer
        self.whole = States(
            parameters=self.width * (self.numel + self.frozen),
            optimizer=self._kept(self.part),
            evaluating=min(4 * self.part, self.applied),
            loading=4 * (self.numel + self.frozen),
            # stage_1_and_2.py: all weights made flat; then the float32 copy with the gradient that Adam is begun with
            starting=self.width * (self.numel + self.frozen)
            + max((self.copies - 1) * self.width * self.numel, 8 * self.part),
            saved=self.width * self.numel + self._saved(self.part),
        )

    def planned(self) -> States:
        """Raises InputError: the config offloads to disk."""
        zero = self.zero
        offload = [block.device for block in (zero.offload_optimizer, zero.offload_param) if block is not None]
        if "nvme" in offload:
            raise InputError("--plan does not know offload to disk: leave --ds_config out")
        if zero.stage == 1 and not offload:
            return self.stage_1()
        return (self.stage_0, self.stage_2, self.stage_2, self.stage_3)[zero.stage]()

    def stage_0(self) -> States:
        """Plain data parallelism under PyTorch's optimizer, in float32."""
        whole = 4 * self.numel
        moments = 8 * self.numel
        working = 0  # the step's temporaries: fused AdamW has none
        if self.adafactor:  # transformers keeps two vectors for a matrix, and no first moment
            working = 8 * self.largest
            moments = 0
            for shape in self.shapes:
                if len(shape) < 2:
                    moments += 4 * math.prod(shape)
                else:
                    moments += 4 * (math.prod(shape[:-1]) + math.prod(shape[:-2]) * shape[-1])
        # engine.py: allreduce_bucket flattens gradients when the backward is over
        flattened = 4 * min(self.numel, ALLREDUCE_BUCKET + self.largest)
        step = whole + max(flattened, working)
        optimizer = moments + 4 * self.averaged
        changes = {"evaluating": self.applied, "starting": self.whole.parameters, "saved": whole + optimizer}
        return replace(self.whole, optimizer=optimizer, gradients=whole, step=step, **changes)

    def stage_1(self) -> States:
        """Each backward leaves gradients beside the flat one (`swep_ds/training/zero/gradient.py`)."""
        gradients = self.summed * self.part * self.world_size
        working = 0
        if self.summed < 4:
            working = 4 * self.part  # the float32 gradient of the step
        elif self.summed > self.width and self.world_size > 1:
            working = self.width * self.part * self.world_size  # what is sent
        if self.sends_half:
            working = 2 * self.numel
        # as measured: while the largest gradient is added, it is there twice
        transient = self.width * (self.numel + self.largest)
        # the flat gradient is made, and its memory given back, when the float32 copy is there
        starting = max(self.whole.starting, self.whole.parameters + 4 * self.part + gradients)
        step = gradients + working
        return replace(self.whole, gradients=gradients, transient=transient, step=step, starting=starting)

    def stage_2(self) -> States:
        """Also ZeRO-1 with offload, whose gradients go through the hooks of stage 2."""
        width = self.width
        part = self.part
        # the parameters that a part of the flat buffer touches, on the rank with most of them
        touched = [0] * self.world_size
        for size, end in zip(self.sizes, itertools.accumulate(self.sizes), strict=True):
            for rank in range((end - size) // part, (end - 1) // part + 1):
                touched[rank] += size
        gradients = width * max(touched)
        accumulated = gradients if self.accumulates else 0
        # step(): averaged gradients, flat, then float32; then Adam
        flattening = gradients + width * part
        if width < 4:
            flattening += 4 * part
        if self.summed > width and self.zero.offload_optimizer is None:
            # _build_compact_grad_partition_buffer: flat and in float32, and each backward adds to it
            gradients = flattening = self.summed * part
            accumulated = 0
        oversized = 0
        if self.largest > self.zero.reduce_bucket_size:  # such a gradient does not go through the bucket
            oversized = width * self.largest
        if self.zero.offload_optimizer is not None:
            # param_buffer_of_bit16_for_cpu_offload_groups, temp_grad_buffer_for_cpu_offload, accumulated_grads_in_cpu
            host = self._kept(part) + min(4 * part, self.applied) + (4 + width) * part
            return replace(
                self.whole,
                optimizer=0,
                buffers=width * self.largest,
                transient=self.bucket + 2 * oversized + 4 * self.largest + self.coalesced,
                host=host + width * self.largest + accumulated,
                evaluating=0,
                starting=width * (self.copies * self.numel + self.frozen),
                moments=8 * part,
            )
        transient = self.bucket + oversized + accumulated
        if self.coalesced:  # grads_in_partition is filled while all gradients still exist
            transient = self.bucket + width * self.numel
        return replace(self.whole, gradients=gradients, transient=transient, step=max(flattening, 4 * part))

    def stage_3(self) -> States:
        width = self.width
        zero = self.zero
        # partition_parameters.py: every parameter is padded to w equal pieces
        part = sum(math.ceil(size / self.world_size) for size in self.sizes)
        kept = width * (part + math.ceil(self.frozen / self.world_size))
        # stage3.py: _create_fp16_sub_groups; the step goes through them one by one
        group = min(part, zero.sub_group_size + math.ceil(self.largest / self.world_size))
        gathered = prefetched = persistent = used = 0
        if self.world_size > 1:  # a single rank gathers nothing
            # partitioned_param_coordinator.py: weights stay gathered up to max_live_parameters, and the prefetched ones
            # are copied out of one buffer
            gathered = width * min(self.numel + self.frozen, zero.max_live_parameters)
            prefetched = width * min(self.numel + self.frozen, zero.prefetch_bucket_size) * self.copies
            persistent = width * sum(size for size in self.sizes if size <= zero.param_persistence_threshold)
            # all weights, or the first and largest while it is gathered
            used = max(gathered + prefetched, self.copies * width * self.widest)
        # stage3.py: the bucket exists from the start, grad_partitions_flat_buffer with the float32 copy
        states = States(
            parameters=kept,
            optimizer=self._kept(part),
            buffers=persistent + self.bucket,
            gradients=self.summed * part,
            transient=gathered + max(prefetched, 2 * width * self.largest) + self.coalesced,
            step=self.summed * part + 4 * group,
            evaluating=used + self.summed * part + min(4 * part, self.applied),
            exporting=self.summed * part + width * self.widest,  # the gradients' buffer, and a gathered weight
            # the gradients' buffer comes after that of initialize_optimizer_states; the rest as measured
            starting=kept + max((4 + self.summed) * part + 2 * width * self.largest, width * self.widest),
            saved=self._saved(part),
            partitioned=True,
        )
        if zero.offload_optimizer is None:
            return states
        # _setup_for_real_optimizer: a float32 gradient is kept with the float32 copy
        host = self._kept(part) + min(4 * part, self.applied) + (4 + self.summed) * part
        left = 4 * group  # initialize_optimizer_states
        states = replace(states, optimizer=0, gradients=0, step=0, evaluating=used, moments=8 * part)
        states = replace(states, exporting=width * self.widest)
        if zero.offload_param is not None:
            return replace(states, parameters=0, starting=left, host=host + kept)
        return replace(states, starting=kept + left, host=host)

    def _kept(self, part: int) -> int:
        """A rank's float32 copy with Adam's moments, and the mean of the weights in pieces like the copy's."""
        return 12 * part + 4 * min(part, self.averaged)

    def _saved(self, part: int) -> int:
        """What all ranks' files of a checkpoint have of `_kept`."""
        return 12 * part * self.world_size + 4 * self.averaged
