"""Extractive QA: any Hugging Face encoder, or decoder, with a question-answering head."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForQuestionAnswering

from swep_ds.common.errors import InputError, reason
from swep_ds.data.batches import Batch
from swep_ds.models.backends import given_masks, without_cudnn_attention
from swep_ds.models.loading import load_trainable
from swep_ds.models.outputs import QAModel, QAOutput, answer_nll, counted_positions
from swep_ds.models.trials import without_flash_attention

# Most graphs that PyTorch keeps of a compiled forward. A SWEP run takes 8: with and without gradient, dropout and h,
# and for a batch of a single window. That is PyTorch's own limit, and all models of a process share it.
MAX_GRAPHS = 64


class ExtractiveQA(QAModel):
    """Any `AutoModelForQuestionAnswering` whose backbone takes `inputs_embeds`."""

    @classmethod
    def load(cls, name: str, *, compiled: bool = False, **load_kwargs: Any) -> "ExtractiveQA":
        """Loads a hub id or a local folder; `load_kwargs` as `load_trainable`, which says what is refused. A `compiled`
        model is compiled by torch.compile in the first calls, once for all lengths."""
        model = load_trainable(AutoModelForQuestionAnswering, name, **load_kwargs)
        if not compiled:
            return cls(model)
        if getattr(model.config, "use_cache", False):  # it caches nothing, but is logged with activation checkpointing
            model.config.use_cache = False
        with torch.no_grad(), without_flash_attention(model):
            # the first call that asks for hidden states installs transformers' hooks, under a lock that cannot be
            # compiled; Funnel halves lengths and cannot take 2 tokens
            model(input_ids=torch.zeros(1, 9, dtype=torch.int64), output_hidden_states=True)
        # in place, so that parameter names stay; one graph: what cannot be compiled, or exceeds the limit, is an error
        torch._dynamo.config.recompile_limit = MAX_GRAPHS
        model.compile(dynamic=True, fullgraph=True)
        return cls(model)

    @cached_property
    def position_of_padding(self) -> int | None:
        """The position of padding, for a model with `counted_positions`; it is also the id of its padding token."""
        table = counted_positions(self.base)
        return table.padding_idx if table else None

    def forward(self, embeddings: Tensor, batch: Batch, *, hidden: bool = False, layers: bool = False) -> QAOutput:
        """-log p(y | embeddings) per window: the mean of the start's and the end's cross-entropy over all positions, as
        in Hugging Face's heads; columns behind `batch.width` have probability 0. With h if `hidden`, with the states
        after every layer if `layers`."""
        output = self._run(batch, inputs_embeds=embeddings, output_hidden_states=hidden or layers)
        logits_NKT = torch.stack([output.start_logits, output.end_logits], 1)
        if batch.width is not None:
            added_T = torch.arange(logits_NKT.shape[-1], device=logits_NKT.device) >= batch.width
            # a finite number: divergences multiply its log-probability by 0
            logits_NKT = logits_NKT.masked_fill(added_T, torch.finfo(logits_NKT.dtype).min)
        nll_NK = answer_nll(logits_NKT, torch.stack([batch.start_position, batch.end_position], 1))
        read = QAOutput(nll_NK.mean(1), logits_NKT, torch.full_like(nll_NK, 0.5))
        if hidden:
            read = read._replace(hidden=output.hidden_states[-1])
        if layers:
            read = read._replace(layers=output.hidden_states[1:])  # without the input of the first layer
        return read

    @without_cudnn_attention()
    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Start and end logits [N, T] of the plain model, as it will be exported."""
        output = self._run(batch, input_ids=batch.input_ids)
        return output.start_logits, output.end_logits

    def _run(self, batch: Batch, **inputs: Any):
        inputs["attention_mask"] = batch.padding_mask
        if self.base._compiled_call_impl is not None:  # with and without a mask it would be compiled twice
            inputs["attention_mask"] = batch.attention_mask
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        if "inputs_embeds" in inputs and self.position_of_padding is not None:
            # as from ids; from embeddings RoBERTa counts padding, too
            real_NT = (batch.input_ids != self.position_of_padding).long()
            inputs["position_ids"] = real_NT.cumsum(1) * real_NT + self.position_of_padding
        try:
            with given_masks():
                return self.base(return_dict=True, **inputs)
        except (torch._dynamo.exc.FailOnRecompileLimitHit, torch._dynamo.exc.TorchDynamoException) as error:
            fault = f"PyTorch cannot compile {self.base.config.model_type} ({reason(error)})"
            raise InputError(f"train.compile: {fault}: set it to false") from error
