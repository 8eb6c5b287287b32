"""What a method needs of any Hugging Face extractive QA model: word embeddings in, loss and encoder states out."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering, PreTrainedModel

from swep_ds.data.batches import Batch
from swep_ds.models import packing
from swep_ds.models.loading import load_trainable
from swep_ds.models.outputs import QAOutput


class Outputs(NamedTuple):
    """Of the backbone and its head, at padding too."""

    start: Tensor  # logits [N, T]
    end: Tensor
    hidden: Tensor | None  # [N, T, hidden]


class ExtractiveQA(nn.Module):
    """Any `AutoModelForQuestionAnswering` whose backbone takes `inputs_embeds`.

    Args:
        first_position: position id of a window's first token where `packing` is prepared: `forward` then runs the
            backbone on one row without padding; None = as the batch is.
    """

    def __init__(self, model: PreTrainedModel, first_position: int | None = None):
        super().__init__()
        self.model, self.first_position = model, first_position

    @classmethod
    def load(
        cls, name: str, *, packed: bool = False, compiled: bool = False, attention: str = "auto", **how: Any
    ) -> "ExtractiveQA":
        """Loads a hub id or a local folder in float32 (the engine decides the training precision), or `mapped`.

        Args:
            packed: whether `forward` leaves padding out (`packing`).
            compiled: whether torch.compile is to compile the model, for all lengths at once.
            activation_checkpointing, attention, mapped: as `load_trainable`.

        Raises:
            InputError: nothing to load there, no question-answering head for it, no `inputs_embeds`, or no model whose
                windows can be packed.
        """
        model = load_trainable(
            AutoModelForQuestionAnswering,
            name,
            attention=attention,
            **how,
            task="question-answering",
            advice="take an encoder such as bert, electra, roberta or deberta-v2",
        )
        first_position = packing.prepare(model, attention) if packed else None
        if compiled:
            model.compile(dynamic=True)  # in place: names of parameters stay
        return cls(model, first_position)

    @property
    def hidden_size(self) -> int:
        """Width of h, the encoder's last hidden state."""
        return self.model.config.hidden_size

    @property
    def embedding_size(self) -> int:
        """d, the word-embedding table's own width (ELECTRA-small: 128 beside a hidden width of 256)."""
        return self.model.get_input_embeddings().embedding_dim

    def embed(self, batch: Batch) -> Tensor:
        """Word embeddings e [N, T, d]; position and type embeddings are added later, by the model."""
        return self.model.get_input_embeddings()(batch.input_ids)  # the module, not its weight: ZeRO-3 shards it

    def forward(self, embeddings: Tensor, batch: Batch, *, hidden: bool = False) -> QAOutput:
        """-log p(y | embeddings) per window, the logits behind it and, if asked for, h.

        The mean of the start's and the end's cross-entropy over all positions, as Hugging Face's heads compute
        it, but never in half precision; packed, over the window's own positions (`packing`).
        """
        output = (self._padded if self.first_position is None else self._packed)(embeddings, batch, hidden)
        logits_NKT = torch.stack([output.start, output.end], 1)
        precision = torch.promote_types(logits_NKT.dtype, torch.float32)
        target_NK = torch.stack([batch.start_position, batch.end_position], 1)
        nll_NK = cross_entropy(logits_NKT.to(precision).transpose(1, 2), target_NK, reduction="none")
        shares = torch.full_like(nll_NK, 0.5)
        return QAOutput(nll_NK.mean(1), logits_NKT, shares, output.hidden)

    def _padded(self, embeddings: Tensor, batch: Batch, hidden: bool) -> Outputs:
        types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        output = self.model(
            inputs_embeds=embeddings,
            attention_mask=self._mask(batch),
            output_hidden_states=hidden,
            return_dict=True,
            **types,
        )
        return Outputs(output.start_logits, output.end_logits, output.hidden_states[-1] if hidden else None)

    def _mask(self, batch: Batch) -> Tensor | None:
        """Compiled, it is always there: that it is now and then left out would compile the model once more."""
        return batch.padding_mask if self.model._compiled_call_impl is None else batch.attention_mask

    def _packed(self, embeddings: Tensor, batch: Batch, hidden: bool) -> Outputs:
        windows = packing.Windows.of(batch)
        types = {} if batch.token_type_ids is None else {"token_type_ids": windows.pack(batch.token_type_ids)}
        output = self.model(
            inputs_embeds=windows.pack(embeddings),
            position_ids=windows.columns[None] + self.first_position,
            windows=windows,
            output_hidden_states=hidden,
            return_dict=True,
            **types,
        )
        like, lowest = batch.input_ids, torch.finfo(output.start_logits.dtype).min
        start, end = (windows.unpack(one, like, lowest) for one in (output.start_logits, output.end_logits))
        return Outputs(start, end, windows.unpack(output.hidden_states[-1], like, 0.0) if hidden else None)

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Start and end logits [N, T] of the plain model, as it will be exported."""
        types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        output = self.model(input_ids=batch.input_ids, attention_mask=self._mask(batch), return_dict=True, **types)
        return output.start_logits, output.end_logits
