"""What every QA model offers the methods: word embeddings in; loss, logits and encoder states out."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from swep_ds.data.batches import IGNORED, Batch


class QAOutput(NamedTuple):
    """The output for N windows, each with K predictions among V choices: start and end among V = T positions, or K
    target tokens among V words."""

    nll: Tensor  # [N], -log p(y | e): the mean of a window's K cross-entropies
    logits: Tensor  # [N, K, V]
    shares: Tensor  # [N, K], the weights of a window's predictions; they sum to 1
    hidden: Tensor | None = None  # h [N, T, hidden], the encoder's last hidden state, if it was requested
    layers: tuple[Tensor, ...] = ()  # if requested, the encoder's states after each of its layers, [N, T, hidden] each


class QAModel(nn.Module):
    """A Hugging Face model behind the interface that the methods use: `embed`, `forward`, and `predict` unperturbed."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model  # transformers' model, or PEFT's around it

    @property
    def base(self) -> PreTrainedModel:
        return without_peft(self.model)

    @property
    def hidden_size(self) -> int:
        """Width of h, the encoder's last hidden state."""
        model = self.base
        if model.config.is_encoder_decoder:
            model = model.get_encoder()
        return model.config.get_text_config().hidden_size

    @property
    def words(self) -> nn.Module:
        """Gives word embeddings [..., d] for ids [...], scaled where the model scales them (BART)."""
        model = self.base.get_encoder() if self.base.config.is_encoder_decoder else self.model
        return model.get_input_embeddings()

    def embed(self, batch: Batch) -> Tensor:
        """Word embeddings e [N, T, d]; the model adds position and type embeddings later."""
        return self.words(batch.input_ids)  # the module, not its weight: ZeRO-3 shards it

    @property
    def embedding_size(self) -> int:
        """d, the width of the word-embedding table (ELECTRA-small: 128, with a hidden width of 256)."""
        parts = self.model.get_input_embeddings().modules()  # the table, or PEFT's adapter and the table in it
        return next(part.embedding_dim for part in parts if hasattr(part, "embedding_dim"))


def without_peft(model: nn.Module) -> PreTrainedModel:
    """The model that holds the adapters' modules. It is what runs: `PeftModelForQuestionAnswering` of peft 0.21 takes
    token types and does not hand them on, and the merged model would be asked with them."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def counted_positions(model: nn.Module) -> nn.Embedding | None:
    """The table of a model that counts positions over the tokens alone, from its padding index on, as RoBERTa does."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module
    return None


def answer_nll(logits_NKV: Tensor, target_NK: Tensor) -> Tensor:
    """The cross-entropies of a window's predictions, [N, K], never in half precision; 0 where a target is IGNORED."""
    precision = torch.promote_types(logits_NKV.dtype, torch.float32)
    logits_NVK = logits_NKV.to(precision).transpose(1, 2)
    return cross_entropy(logits_NVK, target_NK, ignore_index=IGNORED, reduction="none")


def uniform_nll(output: QAOutput, counted_NV: Tensor | None) -> Tensor:
    """The cross-entropy of the predictions with a uniform target, the mean over each window's predictions, [N]: over
    all V choices, or over those where `counted_NV` is not 0."""
    logits_NKV = output.logits.to(torch.promote_types(output.logits.dtype, torch.float32))
    if counted_NV is None:
        mean_NK = logits_NKV.mean(-1)
    else:
        counted_N1V = counted_NV[:, None] != 0
        mean_NK = logits_NKV.masked_fill(~counted_N1V, 0).sum(-1) / counted_N1V.sum(-1)
    return ((logits_NKV.logsumexp(-1) - mean_NK) * output.shares).sum(-1)


def symmetric_divergence(first: QAOutput, second: QAOutput) -> Tensor:
    """(KL(p || q) + KL(q || p)) / 2 in nats, [N]: the mean over each window's predictions, weighted by their shares."""
    precision = torch.promote_types(first.logits.dtype, torch.float32)
    log_p, log_q = (output.logits.to(precision).log_softmax(-1) for output in (first, second))
    # both sums at once: sum_v (p - q) (log p - log q)
    divergence_NK = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2
    return (divergence_NK * first.shares).sum(-1)


def hidden_distance(first: QAOutput, second: QAOutput, mask_NT: Tensor) -> Tensor:
    """Squared Euclidean distance between the hidden states of two passes, [N]: the mean over a window's tokens (where
    `mask_NT` is 1) and over the encoder's layers. Both passes were asked for their `layers`."""
    precision = torch.promote_types(first.layers[0].dtype, torch.float32)
    pairs = zip(first.layers, second.layers, strict=True)
    distance_NT = sum((a.to(precision) - b.to(precision)).square().sum(-1) for a, b in pairs) / len(first.layers)
    return (distance_NT * mask_NT).sum(1) / mask_NT.sum(1)
