"""The gradient at ZeRO-1 as one flat tensor for each parameter group, in place of DeepSpeed's hooks.

DeepSpeed hooks every parameter, which costs the host much of an update. At ZeRO-1 nothing needs to happen during a
backward: a rank keeps whole gradients until the last one of an update. So the hooks go, and DeepSpeed takes part in the
step alone. Its step reads the flat tensor where DeepCompile would put it (`GradPartitionBufferGroup`).
"""

from dataclasses import dataclass

import torch
from deepspeed import comm
from deepspeed.runtime.zero.stage_1_and_2 import GradPartitionBufferGroup
from torch import Tensor, nn

from swep_ds.training.zero.flats import Flat, flats


@dataclass
class Group:
    """The gradient of a parameter group, laid out like its weights."""

    parameters: list[nn.Parameter]
    whole: Tensor  # all ranks' parts, padded
    padding: Tensor  # the end of `whole`
    places: list[Tensor]  # each parameter's part of `whole`, in its shape
    part: Tensor  # this rank's part of `whole`
    pieces: list[Tensor]  # what `part` has of each parameter; DeepSpeed takes the norm over them


class FlatGradient:
    """Collects the gradients of an update, and gives them to DeepSpeed's step.

    Equal to DeepSpeed's own gradient to the last bit on one rank, but where bf16 has several backwards in an update:
    DeepSpeed adds them up in bf16, in which 512 equal gradients have a mean of half their size. Here the sum is in
    float32. Several ranks send it in one reduce-scatter in bf16: half the volume of DeepSpeed's all-reduce. Memory is
    held from an update's first backward to its step; if it `stays`, as CUDA graphs need it, from the first update on.
    `begun` says whether an update has collected a gradient yet.
    """

    def __init__(self, engine):
        self._optimizer = engine.optimizer
        self._ranks = comm.get_world_size(self._optimizer.dp_process_group)
        self._rounds = engine.torch_autocast_enabled()
        self._dtype = None  # the parameters'
        if engine.bfloat16_enabled() and engine.gradient_accumulation_steps() > 1:
            self._dtype = torch.float32
        for hook in self._optimizer._grad_acc_hooks:
            hook.remove()
        self._optimizer._grad_acc_hooks.clear()
        self.groups = [self._group(flat) for flat in flats(engine)]
        self.stays = False
        self.release()

    def _group(self, flat: Flat) -> Group:
        parameters = list(flat.parameters.values())
        size = flat.weights.numel()
        whole = parameters[0].new_zeros(size * self._ranks, dtype=self._dtype)
        part = whole.view(self._ranks, size)[comm.get_rank(self._optimizer.dp_process_group)]
        *places, padding = whole.split([*map(torch.numel, parameters), len(whole) - sum(map(torch.numel, parameters))])
        for parameter in parameters:
            # as a view with a history it would keep the parameter's node of autograd, and with it the stream on which
            # that adds up gradients: a CUDA graph is captured on another one
            if parameter._hp_mapping is not None:
                parameter._hp_mapping.lp_fragment = parameter._hp_mapping.lp_fragment.detach()
        pieces = []
        for place in flat.places:
            piece = part[place.start : place.start + place.count]
            parameter = flat.parameters[place.name]
            pieces.append(piece.view_as(parameter) if place.count == parameter.numel() else piece)
        shaped = [place.view_as(parameter) for place, parameter in zip(places, parameters, strict=True)]
        return Group(parameters, whole, padding, shaped, part, GradPartitionBufferGroup(pieces, part))

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
        for number, group in enumerate(self.groups):
            sent = group.whole
            part = group.part
            if self._rounds:
                self._round(group)
            elif optimizer.communication_data_type != sent.dtype and (self._ranks > 1 or self._dtype is None):
                sent = sent.to(optimizer.communication_data_type)
                part = sent[part.storage_offset() :][: part.numel()]
            if self._ranks > 1:
                comm.reduce_scatter_tensor(part, sent, group=optimizer.dp_process_group)
                part.mul_(1.0 / self._ranks)  # R of `LossNormalisation`
            if part is not group.part:
                group.part.copy_(part)
            optimizer.averaged_gradients[number] = group.pieces

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
