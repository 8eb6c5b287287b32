"""The gradient at ZeRO-1 as one flat tensor for each parameter group, in place of DeepSpeed's hooks.

DeepSpeed 0.19 hooks every parameter, which costs the host much of an update. At ZeRO-1 nothing needs to happen during a
backward: a rank keeps whole gradients until the last one of an update. So the hooks go, and DeepSpeed takes part in the
step alone. Its step reads the flat tensor where DeepCompile would put it (`GradPartitionBufferGroup`).
"""

from dataclasses import dataclass

import torch
from deepspeed import comm
from deepspeed.runtime.torch_autocast import is_autocast_initialized
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer, GradPartitionBufferGroup
from torch import Tensor, nn


@dataclass
class Group:
    """The gradient of a parameter group, laid out like its weights."""

    parameters: list[nn.Parameter]
    whole: Tensor  # of all ranks' partitions, padded
    padding: Tensor  # the end of `whole`
    places: list[Tensor]  # each parameter's part of `whole`, in its shape
    partition: Tensor  # this rank's part of `whole`
    pieces: GradPartitionBufferGroup  # what `partition` has of each parameter; DeepSpeed takes the norm over them


class FlatGradient:
    """Collects the gradients of an update, and gives them to DeepSpeed's step.

    Equal to DeepSpeed's own gradient to the last bit on one rank. Several ranks send it in one reduce-scatter, half the
    volume of DeepSpeed's all-reduce (as much as that under torch_autocast, where DeepSpeed sends bf16). Memory is held
    from an update's first backward to its step; if it `stays`, as CUDA graphs need it, from the first update on.
    `begun` says whether an update has collected a gradient yet.
    """

    def __init__(self, optimizer: DeepSpeedZeroOptimizer):
        for hook in optimizer._grad_acc_hooks:
            hook.remove()
        optimizer._grad_acc_hooks.clear()
        self._optimizer = optimizer
        self.groups = [self._group(number) for number in range(len(optimizer.bit16_groups))]
        self.stays = False
        self.release()

    def _group(self, number: int) -> Group:
        optimizer = self._optimizer
        parameters = optimizer.bit16_groups[number]
        weights = optimizer.bit16_groups_flat[number]
        whole = torch.zeros_like(weights)
        size = int(optimizer.partition_size[number])
        begin = comm.get_rank(group=optimizer.real_dp_process_group[number]) * size
        partition = whole[begin : begin + size]
        places = []
        pieces = []
        for parameter in parameters:
            # as a view with a history it would keep the parameter's node of autograd, and with it the stream on which
            # that adds up gradients: a CUDA graph is captured on another one
            if parameter._hp_mapping is not None:
                parameter._hp_mapping.lp_fragment = parameter._hp_mapping.lp_fragment.detach()
            first = parameter.storage_offset() - weights.storage_offset()
            place = whole[first : first + parameter.numel()]
            places.append(place.view_as(parameter))
            piece = whole[max(first, begin) : min(first + parameter.numel(), begin + size)]
            if piece.numel() == parameter.numel():
                piece = piece.view_as(parameter)
            if piece.numel():
                pieces.append(piece)
        padding = whole[sum(parameter.numel() for parameter in parameters) :]
        return Group(parameters, whole, padding, places, partition, GradPartitionBufferGroup(pieces, partition))

    def collect(self) -> None:
        """Adds the gradients of a backward to those of the update's earlier ones, and drops them. A parameter without
        one counts as 0."""
        for group in self.groups:
            storage = group.whole.untyped_storage()
            if storage.size() == 0:
                storage.resize_(group.whole.nbytes)
                group.padding.zero_()
            places = []
            gradients = []
            for parameter, place in zip(group.parameters, group.places, strict=True):
                if parameter.grad is not None:
                    places.append(place)
                    gradients.append(parameter.grad)
                    parameter.grad = None
                elif not self.begun:
                    place.zero_()
            if not places:
                continue
            if self.begun:
                torch._foreach_add_(places, gradients)
            else:
                torch._foreach_copy_(places, gradients)
        self.begun = True

    def hand_over(self) -> None:
        """Makes the mean over all ranks the gradient of DeepSpeed's coming step. Collective."""
        optimizer = self._optimizer
        ranks = comm.get_world_size(group=optimizer.dp_process_group)
        for number, group in enumerate(self.groups):
            sent, part = group.whole, group.partition
            if is_autocast_initialized():
                self._round(group)
            elif optimizer.communication_data_type != sent.dtype:
                sent = sent.to(optimizer.communication_data_type)
                part = sent[part.storage_offset() :][: part.numel()]
            if ranks > 1:
                comm.reduce_scatter_fn(part, sent, group=optimizer.dp_process_group)
                part.mul_(1.0 / ranks)
            if part is not group.partition:
                group.partition.copy_(part)
            optimizer.averaged_gradients[number] = group.pieces
            optimizer.all_grad_tensors[number] = None

    def _round(self, group: Group) -> None:
        """Rounds the gradients that DeepSpeed would send in bf16 under torch_autocast, those of matrix products."""
        rounded: dict[torch.dtype, list[Tensor]] = {}
        for parameter, place in zip(group.parameters, group.places, strict=True):
            dtype = self._optimizer.get_param_comm_dtype(parameter)
            if dtype != place.dtype:
                rounded.setdefault(dtype, []).append(place)
        for dtype, places in rounded.items():
            sizes = [place.numel() for place in places]
            sent = torch.empty(sum(sizes), dtype=dtype, device=group.whole.device).split(sizes)
            sent = [part.view_as(place) for part, place in zip(sent, places, strict=True)]
            torch._foreach_copy_(sent, places)
            torch._foreach_copy_(places, sent)

    def release(self) -> None:
        """Ends an update, whose step has read the gradient."""
        self.begun = False
        if not self.stays:
            for group in self.groups:
                group.whole.untyped_storage().resize_(0)
