"""What a method needs of any Hugging Face sequence-to-sequence model: T5, T5 v1.1 and Flan, mT5, BART ..."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel

from swep_ds.data.batches import IGNORED, Batch
from swep_ds.errors import InputError
from swep_ds.models.loading import load_trainable
from swep_ds.models.outputs import QAOutput


class GenerativeQA(nn.Module):
    """Any `AutoModelForSeq2SeqLM` whose encoder takes `inputs_embeds`.

    Only the encoder's word embeddings are perturbed. Where encoder and decoder share their table, the decoder reads
    it by token ids, untouched.

    Args:
        beams: width of the beam search of `predict`; 1 = greedy.
        max_answer_tokens: at most generated, end of sequence included.

    Raises:
        InputError: the model's config lacks a token that answers begin or end with, or has none of the vocabulary.
    """

    def __init__(self, model: PreTrainedModel, beams: int = 4, max_answer_tokens: int = 30):
        super().__init__()
        self.model, config = model, model.config
        self.ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        if None in (config.pad_token_id, *self.ends):
            raise InputError(
                f"model {config.name_or_path}: its config.json lacks pad_token_id or eos_token_id: add them"
            )
        for field, token in (("pad_token_id", config.pad_token_id), *(("eos_token_id", end) for end in self.ends)):
            self._check_token(field, token)
        try:
            start = model.prepare_decoder_input_ids_from_labels(labels=torch.tensor([self.ends[:1]]))
        except Exception:  # which one, the model's code alone knows
            raise InputError(
                f"model {config.name_or_path}: its config.json has no decoder_start_token_id, which answers begin "
                f"with: add it (that of T5 is its pad_token_id, {config.pad_token_id})"
            ) from None
        self._check_token("decoder_start_token_id", int(start))
        self.generation = GenerationConfig(
            num_beams=beams,
            max_new_tokens=max_answer_tokens,
            decoder_start_token_id=int(start),
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )
        # In place of the model's own, from which transformers would fill in all that is not said here: published
        # summarisers forbid short answers and repeated words, and force a first token, which training teaches where
        # targets begin with it. The exported model answers so, too.
        model.generation_config = self.generation

    def _check_token(self, field: str, token: Any) -> None:
        rows = self.model.get_input_embeddings().num_embeddings
        if type(token) is not int or not 0 <= token < rows:
            raise InputError(
                f"model {self.model.config.name_or_path}: its config.json has {field} {token!r:.80}: give a token's "
                f"number, from 0 to {rows - 1}"
            )

    @classmethod
    def load(cls, name: str, *, beams: int = 4, max_answer_tokens: int = 30, **how: Any) -> "GenerativeQA":
        """Loads a hub id or a local folder in float32 (the engine decides the training precision), or `mapped`.

        Args:
            activation_checkpointing, attention, mapped: as `load_trainable`.

        Raises:
            InputError: nothing to load there, not a sequence-to-sequence model, no `inputs_embeds`, or a token that
                answers begin or end with is missing from its config.
        """
        model = load_trainable(
            AutoModelForSeq2SeqLM,
            name,
            **how,
            task="sequence-to-sequence",
            advice="take a model such as t5, mt5 or bart, or set task to extractive",
        )
        return cls(model, beams, max_answer_tokens)

    @property
    def hidden_size(self) -> int:
        """Width of h, the encoder's last hidden state."""
        return self.model.config.hidden_size

    @property
    def embedding_size(self) -> int:
        """d, the word-embedding table's width."""
        return self.model.get_input_embeddings().embedding_dim

    def embed(self, batch: Batch) -> Tensor:
        """The encoder's word embeddings e [N, T, d], scaled where the model scales them (BART)."""
        # the module, not its weight: ZeRO-3 shards it
        return self.model.get_encoder().get_input_embeddings()(batch.input_ids)

    def forward(self, embeddings: Tensor, batch: Batch, *, hidden: bool = False) -> QAOutput:
        """-log p(y | embeddings) per window: the mean over its K target tokens, end of sequence included."""
        output = self.model(
            inputs_embeds=embeddings,
            attention_mask=batch.attention_mask,
            decoder_input_ids=self.model.prepare_decoder_input_ids_from_labels(labels=batch.target_ids),
            use_cache=False,
            return_dict=True,
        )
        precision = torch.promote_types(output.logits.dtype, torch.float32)
        # at padding the cross-entropy is 0
        nll_NK = cross_entropy(
            output.logits.to(precision).transpose(1, 2), batch.target_ids, ignore_index=IGNORED, reduction="none"
        )
        real_NK = (batch.target_ids != IGNORED).to(precision)
        shares_NK = real_NK / real_NK.sum(1, keepdim=True)
        nll_N = (nll_NK * shares_NK).sum(1)
        return QAOutput(nll_N, output.logits, shares_NK, output.encoder_last_hidden_state if hidden else None)

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Answers found by beam search, and how sure the model is of them.

        All ranks call this together: a rank whose answers are finished goes on with the others until all are.

        Returns:
            Token ids [N, K], IGNORED behind the end of sequence, and their mean log probabilities [N].
        """
        found_NK = self.model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            generation_config=self.generation,
            synced_gpus=dist.is_initialized() and dist.get_world_size() > 1,
        )[:, 1:]  # without the decoder's start token
        ends_NK = torch.isin(found_NK, torch.tensor(self.ends, device=found_NK.device))
        behind_NK = ends_NK.cumsum(1) - ends_NK.long() > 0
        found_NK = found_NK.masked_fill(behind_NK, IGNORED)
        reading = self(self.embed(batch), batch._replace(target_ids=found_NK))
        return found_NK, -reading.nll
