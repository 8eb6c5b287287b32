"""What one micro-batch holds for the backward: a forward on fake tensors (shapes and dtypes, no data), through the same
`Objective` as in training, that counts what autograd saves. Parameters and the temporaries of operations and of the
backward are not counted: measured peaks lie above.

With activation checkpointing a layer keeps only its inputs and runs again in the backward, one layer at a time:
    held = saved outside of layers + inputs of all layers + the most that a layer saves inside

Autocast keeps a copy in bf16 of every weight of a matrix product until the forward ends, whether autograd saves it or
not. These copies are counted separately: at ZeRO-3 there are none (DeepSpeed gathers such weights in bf16).
"""

import weakref
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_layers import GradientCheckpointingLayer

from swep_ds.data.batches import Batch
from swep_ds.methods.base import MicroStep, PassState
from swep_ds.methods.objective import Objective
from swep_ds.models.backends import HALVES
from swep_ds.training.settings import TrainSection

KEPT = -1  # in place of a layer's number
ALL = -2


@dataclass(frozen=True)
class Activations:
    """Bytes that are held at the widest moment of an update, without and with activation checkpointing."""

    plain: int
    checkpointed: int
    casts: int  # autocast's copies of the weights, on top of either
    answer: int  # keys and values of all decoder layers that one beam of one generated answer caches


def count_activations(
    objective: Objective, batch: Batch, train: TrainSection, *, on_gpu: bool, answer: tuple[int, int] | None = None
) -> Activations:
    """Counts one batch's forward passes, one micro-step after the other (`split`) or all together (`joint`).

    Args:
        objective: on the meta device; it cannot be used afterwards.
        batch: on the CPU; only its shapes count.
        answer: tokens of the window and of the answer that a sequence-to-sequence model generates in evaluation.

    Raises RuntimeError: the model depends on the values of a tensor; fake tensors have none.
    """
    objective = objective.to(HALVES.get(train.precision, torch.float32)).train()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=train.precision == "autocast")
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        if on_gpu:
            stack.enter_context(mock.patch.object(nn.functional, "scaled_dot_product_attention", _fused_attention))
        objective = objective.to_empty(device="cpu")
        ledger = stack.enter_context(_Ledger(objective))
        batch = batch.map(torch.empty_like)
        carried = PassState()
        for part in objective.parts(train.execution):
            hooks = torch.autograd.graph.saved_tensors_hooks(ledger.hold, lambda saved: saved)
            with hooks, autocast:
                loss, carried, _ = objective(batch, MicroStep(0, part=part, carried=carried))
            if carried.delta is not None:  # its gradient makes the next pass's perturbation
                loss.backward()
            del loss  # frees the pass's graph before the next forward
        cached = 0
        if answer is not None:
            window, tokens = (torch.empty(1, length, dtype=torch.int64) for length in answer)
            with torch.no_grad(), autocast:
                output = objective.qa.model(input_ids=window, decoder_input_ids=tokens, use_cache=True)
            cache = output.past_key_values
            for layer in (*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers):
                cached += layer.keys.nbytes + layer.values.nbytes
    inside = max((peak for layer, peak in ledger.peaks.items() if layer not in (KEPT, ALL)), default=0)
    return Activations(ledger.peaks[ALL], ledger.peaks[KEPT] + inside, sum(ledger.casts.values()), cached)


class _Ledger(TorchDispatchMode):
    """Bytes of the storages that autograd holds, now and at their peak; several views of one storage count once.

    They are counted by the layer that would recompute them, as KEPT outside of layers, and as ALL together.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self.casts: dict[int, int] = {}  # a parameter's storage -> bytes of its copies
        self.copies: dict[int, torch.UntypedStorage] = {}  # kept alive: the id of a freed storage is used again
        self.parameters = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
        self.holders: Counter[int] = Counter()
        self.layer_of: dict[int, int] = {}
        self.held: Counter[int] = Counter()
        self.peaks: Counter[int] = Counter()
        self.layer = KEPT
        self.inputs: set[int] = set()
        for number, layer in enumerate(m for m in module.modules() if isinstance(m, GradientCheckpointingLayer)):
            layer.register_forward_pre_hook(partial(self._enter, number), with_kwargs=True)
            layer.register_forward_hook(self._leave)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.nonzero.default:  # which positions are real depends on values: all of them
            return args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            key = args[0].untyped_storage()._cdata
            copy = result.untyped_storage()
            if key in self.parameters:
                self.casts[key] = copy.nbytes()
                self.copies[copy._cdata] = copy
        return result

    def _enter(self, number: int, _, args: tuple, kwargs: dict) -> None:
        self.layer = number
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        self.inputs = {tensor.untyped_storage()._cdata for tensor in tensors}

    def _leave(self, *_) -> None:
        self.layer = KEPT

    def hold(self, tensor: Tensor) -> Tensor:
        """What autograd saves in place of `tensor`, which counts until autograd frees it."""
        saved = tensor.detach()  # an output would hold its operation, which holds it
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.parameters or key in self.copies:
            return saved
        if key not in self.layer_of:
            layer = KEPT if key in self.inputs else self.layer
            self.layer_of[key] = layer
            self._add(layer, storage.nbytes())
        self.holders[key] += 1
        weakref.finalize(saved, self._release, storage)
        return saved

    def _release(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        self.holders[key] -= 1
        if not self.holders[key]:
            self._add(self.layer_of.pop(key), -storage.nbytes())

    def _add(self, layer: int, size: int) -> None:
        for place in (layer, ALL):
            self.held[place] += size
            self.peaks[place] = max(self.peaks[place], self.held[place])


def _fused_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
) -> Tensor:
    """SDPA as a GPU's memory-efficient kernel. A CPU's saves the probabilities where there is dropout."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(groups, -3)
        value = value.repeat_interleave(groups, -3)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.empty_like(attn_mask, dtype=query.dtype)  # SDPA makes one in every call
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    return attend(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]
