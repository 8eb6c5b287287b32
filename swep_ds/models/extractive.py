"""What a method needs of any Hugging Face extractive QA model: word embeddings in, loss and encoder states out."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering, PreTrainedModel

from swep_ds.data.batches import Batch
from swep_ds.models.loading import load_trainable
from swep_ds.models.reading import Reading


class ExtractiveQA(nn.Module):
    """Any `AutoModelForQuestionAnswering` whose backbone takes `inputs_embeds`."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    @classmethod
    def load(cls, name: str, **how: Any) -> "ExtractiveQA":
        """Loads a hub id or a local folder in float32 (the engine decides the training precision), or `mapped`.

        Args:
            activation_checkpointing, attention, mapped: as `load_trainable`.

        Raises:
            InputError: nothing to load there, no question-answering head for it, or no `inputs_embeds`.
        """
        model = load_trainable(
            AutoModelForQuestionAnswering,
            name,
            **how,
            task="question-answering",
            advice="take an encoder such as bert, electra, roberta or deberta-v2",
        )
        return cls(model)

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

    def forward(self, embeddings: Tensor, batch: Batch, *, hidden: bool = False) -> Reading:
        """-log p(y | embeddings) per window, the logits behind it and, if asked for, h.

        The mean of the start's and the end's cross-entropy over all positions, as Hugging Face's heads compute
        it, but never in half precision.
        """
        types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        output = self.model(
            inputs_embeds=embeddings,
            attention_mask=batch.attention_mask,
            output_hidden_states=hidden,
            return_dict=True,
            **types,
        )
        logits_NKT = torch.stack([output.start_logits, output.end_logits], 1)
        precision = torch.promote_types(logits_NKT.dtype, torch.float32)
        target_NK = torch.stack([batch.start_position, batch.end_position], 1)
        nll_NK = cross_entropy(logits_NKT.to(precision).transpose(1, 2), target_NK, reduction="none")
        shares = torch.full_like(nll_NK, 0.5)
        return Reading(nll_NK.mean(1), logits_NKT, shares, output.hidden_states[-1] if hidden else None)

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Start and end logits [N, T] of the plain model, as it will be exported."""
        types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        output = self.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, return_dict=True, **types)
        return output.start_logits, output.end_logits
