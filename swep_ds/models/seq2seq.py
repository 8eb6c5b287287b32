"""Generative QA: any Hugging Face sequence-to-sequence model (T5, T5 v1.1 and Flan, mT5, BART)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel

from swep_ds.common.errors import as_input_error
from swep_ds.data.answers import listed
from swep_ds.data.batches import IGNORED, Batch
from swep_ds.models.backends import given_masks, without_cudnn_attention
from swep_ds.models.loading import load_trainable
from swep_ds.models.outputs import QAModel, QAOutput, answer_nll


class Seq2SeqQA(QAModel):
    """Any sequence-to-sequence model whose encoder takes `inputs_embeds`, in training.

    Only the encoder's word embeddings are perturbed, also where the decoder shares their table.
    """

    def forward(self, embeddings: Tensor, batch: Batch, *, hidden: bool = False, layers: bool = False) -> QAOutput:
        """-log p(y | embeddings) per window: the mean over its K target tokens, end of sequence included. With h if
        `hidden`, with the encoder's states after every layer if `layers`."""
        return self._score(batch, hidden, layers, inputs_embeds=embeddings)

    def _score(
        self, batch: Batch, hidden: bool = False, layers: bool = False, read: Tensor | None = None, **encoder: Any
    ) -> QAOutput:
        """`forward`, with `encoder` for the model: what its encoder reads, or that one's output. The decoder reads the
        ids `read` [N, K], by default the shifted targets."""
        if read is None:
            read = self.base.prepare_decoder_input_ids_from_labels(labels=batch.target_ids)
        with given_masks():
            output = self.base(
                **encoder,
                attention_mask=batch.attention_mask,
                decoder_input_ids=read,
                use_cache=False,
                output_hidden_states=layers,
                return_dict=True,
            )
        nll_NK = answer_nll(output.logits, batch.target_ids)
        real_NK = (batch.target_ids != IGNORED).to(nll_NK.dtype)
        shares_NK = real_NK / real_NK.sum(1, keepdim=True).clamp(min=1)  # a window without labels counts as 0
        nll_N = (nll_NK * shares_NK).sum(1)
        scored = QAOutput(nll_N, output.logits, shares_NK)
        if hidden:
            scored = scored._replace(hidden=output.encoder_last_hidden_state)
        if layers:
            scored = scored._replace(layers=output.encoder_hidden_states[1:])  # without the input of the first layer
        return scored


class GenerativeQA(Seq2SeqQA):
    """Any `AutoModelForSeq2SeqLM` whose encoder takes `inputs_embeds`, with a beam search for answers of at most
    `max_answer_tokens`, end of sequence included. Raises InputError: the config lacks a token that answers begin or end
    with, or the model's class cannot shift targets (M2M100, Blenderbot)."""

    def __init__(self, model: PreTrainedModel, beams: int = 4, max_answer_tokens: int = 30):
        super().__init__(model)
        self.empty_answer: list[int] | None = None  # the token ids of "", special ones included; see `predict`
        ends = model.config.eos_token_id
        self.ends = listed(ends)
        fault = f"model {model.config.name_or_path}: {type(model).__name__} cannot shift targets for its decoder"
        fix = "name a model such as T5, or add decoder_start_token_id, eos_token_id and pad_token_id to config.json"
        with as_input_error(fault, fix):
            start = self._first_token(self.ends[:1])
        self.generation = GenerationConfig(
            num_beams=beams,
            max_new_tokens=max_answer_tokens,
            decoder_start_token_id=start,
            eos_token_id=ends,
            pad_token_id=model.config.pad_token_id,
        )
        # In place of the model's own settings, also in its export: published summarisers forbid short answers and
        # repeated words, and force a first token, which training teaches where targets begin with it.
        model.generation_config = self.generation

    @classmethod
    def load(cls, name: str, *, beams: int = 4, max_answer_tokens: int = 30, **load_kwargs: Any) -> "GenerativeQA":
        """Loads a hub id or a local folder; `load_kwargs` as `load_trainable`, which says what is refused."""
        return cls(load_trainable(AutoModelForSeq2SeqLM, name, **load_kwargs), beams, max_answer_tokens)

    def answer_like(self, empty_answer: Sequence[int], declines: bool) -> None:
        """Generates answers from the token that targets of training begin with: `empty_answer` is the ids of the target
        "". The target of an mBART-cc25 ends, and so begins, with a language's token. Whether the model `declines`."""
        self.empty_answer = None
        if declines:
            self.empty_answer = empty_answer
        self.generation.decoder_start_token_id = self._first_token(empty_answer or self.ends[:1])

    def _first_token(self, target: Sequence[int]) -> int:
        """The token that a target begins with once it is shifted for the decoder."""
        return int(self.model.prepare_decoder_input_ids_from_labels(labels=torch.tensor([[*target]]))[0, 0])

    @without_cudnn_attention()
    def predict(self, batch: Batch) -> tuple[Tensor, ...]:
        """Answers by beam search: token ids [N, K], IGNORED after the end of sequence, and their mean log probabilities
        [N]. With `empty_answer` no answer is empty, and a third tensor [N] holds the log probability of the empty one.
        Collective: a rank that has finished keeps generating until all have."""
        given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        options = {}
        if self.empty_answer:  # the end of sequence is forbidden for as many tokens
            options["min_new_tokens"] = len(self.empty_answer)
        with given_masks():
            written_NK = self.model.generate(
                **given,
                generation_config=self.generation,
                synced_gpus=dist.is_initialized() and dist.get_world_size() > 1,
                **options,
            )
            # from the ids, as the answers: some models scale only the embeddings of ids
            encoded = self.model.get_encoder()(**given, return_dict=True)
        ids_NK = written_NK[:, 1:]  # without the decoder's start token
        ends_NK = torch.isin(ids_NK, torch.tensor(self.ends, device=ids_NK.device))
        after_NK = ends_NK.cumsum(1) - ends_NK.long() > 0
        ids_NK = ids_NK.masked_fill(after_NK, IGNORED)
        # mBART and PLBART would shift an answer's last token to its front
        read_NK = written_NK[:, :-1]
        log_p_N = -self._score(batch._replace(target_ids=ids_NK), read=read_NK, encoder_outputs=encoded).nll
        if not self.empty_answer:
            return ids_NK, log_p_N
        empty_NK = torch.tensor(self.empty_answer, device=ids_NK.device).expand(len(ids_NK), -1)
        null_N = -self._score(batch._replace(target_ids=empty_NK), encoder_outputs=encoded).nll * empty_NK.shape[1]
        return ids_NK, log_p_N, null_N
