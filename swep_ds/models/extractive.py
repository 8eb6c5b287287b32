"""Extractive QA: any Hugging Face encoder, or decoder, with a question-answering head."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering, PreTrainedModel

from swep_ds.common.errors import InputError, reason
from swep_ds.data.batches import Batch
from swep_ds.models import packing
from swep_ds.models.backends import without_cudnn_attention
from swep_ds.models.loading import load_trainable
from swep_ds.models.masks import given_masks
from swep_ds.models.outputs import QAModel, QAOutput
from swep_ds.models.trial import without_flash_attention

# Most graphs that PyTorch keeps of a compiled forward. A SWEP run takes 8: with and without gradient, dropout and h,
# and for a batch of a single window. That is PyTorch's own limit, and all models of a process share it.
MAX_GRAPHS = 64


class ExtractiveQA(QAModel):
    """Any `AutoModelForQuestionAnswering` whose backbone takes `inputs_embeds`.

    Args:
        first_position: from `packing.prepare`: `forward` then runs the backbone on one row without padding. None:
            `forward` takes the batch as it is.
    """

    def __init__(self, model: PreTrainedModel, first_position: int | None = None):
        super().__init__(model)
        self.first_position = first_position

    @classmethod
    def load(
        cls, name: str, *, packed: bool = False, compiled: bool = False, attention: str = "auto", **load_kwargs: Any
    ) -> "ExtractiveQA":
        """Loads a hub id or a local folder.

        Args:
            packed: `forward` leaves padding out (`packing`).
            compiled: torch.compile compiles the model, once for all lengths, in the first calls.
            attention, load_kwargs: as `load_trainable`.

        Raises:
            InputError: as `load_trainable`, or the model's windows cannot be packed.
        """
        model = load_trainable(AutoModelForQuestionAnswering, name, attention=attention, **load_kwargs)
        first_position = packing.prepare(model, attention) if packed else None
        if compiled:
            _compile(model)
        return cls(model, first_position)

    def embed(self, batch: Batch) -> Tensor:
        """Word embeddings e [N, T, d]; the model adds position and type embeddings later."""
        return self.model.get_input_embeddings()(batch.input_ids)  # the module, not its weight: ZeRO-3 shards it

    def forward(self, embeddings: Tensor, batch: Batch, *, hidden: bool = False, layers: bool = False) -> QAOutput:
        """-log p(y | embeddings) per window, never computed in half precision; with h if `hidden`, with the states
        after every layer if `layers`.

        It is the mean of the start's and the end's cross-entropy over all positions, as in Hugging Face's heads; if
        packed, over the window's positions (`packing`).
        """
        run = self._padded if self.first_position is None else self._packed
        # hidden_states begin with the input of the first layer
        kept = slice(1, None) if layers else slice(-1, None) if hidden else None
        start, end, states = run(embeddings, batch, kept)
        logits_NKT = torch.stack([start, end], 1)
        precision = torch.promote_types(logits_NKT.dtype, torch.float32)
        target_NK = torch.stack([batch.start_position, batch.end_position], 1)
        nll_NK = cross_entropy(logits_NKT.to(precision).transpose(1, 2), target_NK, reduction="none")
        h = states[-1] if hidden else None
        return QAOutput(nll_NK.mean(1), logits_NKT, torch.full_like(nll_NK, 0.5), h, states if layers else ())

    @without_cudnn_attention()
    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Start and end logits [N, T] of the plain model, as it will be exported."""
        output = self._run(batch, input_ids=batch.input_ids)
        return output.start_logits, output.end_logits

    def _padded(self, embeddings: Tensor, batch: Batch, kept: slice | None) -> tuple[Tensor, Tensor, tuple]:
        output = self._run(batch, inputs_embeds=embeddings, output_hidden_states=kept is not None)
        return output.start_logits, output.end_logits, output.hidden_states[kept] if kept else ()

    def _run(self, batch: Batch, **inputs: Any):
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        # a compiled model always gets a mask: with and without one it would be compiled twice
        compiled = self.model._compiled_call_impl is not None
        mask = batch.attention_mask if compiled else batch.padding_mask
        with given_masks(), _refusals(self.model) if compiled else nullcontext():
            return self.model(attention_mask=mask, return_dict=True, **inputs)

    def _packed(self, embeddings: Tensor, batch: Batch, kept: slice | None) -> tuple[Tensor, Tensor, tuple]:
        windows = packing.Windows.of(batch)
        types = {} if batch.token_type_ids is None else {"token_type_ids": windows.pack(batch.token_type_ids)}
        output = self.model(
            inputs_embeds=windows.pack(embeddings),
            position_ids=windows.columns[None] + self.first_position,
            windows=windows,
            output_hidden_states=kept is not None,
            return_dict=True,
            **types,
        )
        like, lowest = batch.input_ids, torch.finfo(output.start_logits.dtype).min
        start, end = (windows.unpack(logits, like, lowest) for logits in (output.start_logits, output.end_logits))
        return start, end, tuple(windows.unpack(h, like, 0.0) for h in output.hidden_states[kept]) if kept else ()


def _compile(model: PreTrainedModel) -> None:
    """Compiles the model in place, so that parameter names stay, and as one graph: PyTorch then raises where it would
    fall back to eager execution, at what it cannot compile and beyond MAX_GRAPHS."""
    torch._dynamo.config.recompile_limit = MAX_GRAPHS
    if getattr(model.config, "use_cache", False):  # it caches nothing, but beside activation checkpointing it is logged
        model.config.use_cache = False
    with torch.no_grad(), without_flash_attention(model):
        # the first call that asks for hidden states installs transformers' hooks, under a lock that cannot be compiled
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), output_hidden_states=True)
    model.compile(dynamic=True, fullgraph=True)


@contextmanager
def _refusals(model: PreTrainedModel) -> Iterator[None]:
    """Turns PyTorch's refusal to compile the model into an `InputError`."""
    kind, faults = model.config.model_type, torch._dynamo.exc
    try:
        yield
    except faults.FailOnRecompileLimitHit as error:
        raise InputError(f"train.compile: {kind} takes more than {MAX_GRAPHS} graphs: set it to false") from error
    except faults.TorchDynamoException as error:
        raise InputError(f"train.compile: PyTorch cannot compile {kind} ({reason(error)}): set it to false") from error
