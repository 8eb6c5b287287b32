"""Windows of a batch as one row of tokens without padding, and an attention in which each sees itself alone.

Notable:
- Only the backbone works on the row. Embeddings come and logits and hidden states go back as [N, T, ...], so that
  noise, kernels, methods and batches know nothing of it.
- The loss differs from the padded one on purpose: Hugging Face's softmax over start and end positions runs over
  padding, too, whose logits depend on how long the batch's longest window is. Here padding does not exist: its logits
  are the lowest finite number, and the softmax runs over a window's own tokens.
- On CUDA in half precision and without dropout of attention weights, attention is PyTorch's `varlen_attn`, one kernel
  for all windows. That kernel has no dropout: with it, and elsewhere, windows attend one after the other, which wastes
  nothing but launches.
- Evaluation stays padded: a call of the model that names no windows is an ordinary one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swep_ds.data.batches import Batch
from swep_ds.errors import InputError

PACKED = "swep_packed"  # this attention's name among transformers'
# encoders with learned absolute positions; RoBERTa's begin behind the id of padding
FROM_ZERO = ("bert", "electra")
BEHIND_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")


@dataclass(frozen=True)
class Windows:
    """Where the tokens of N windows are, in a batch of T columns and in the row of L tokens."""

    lengths: tuple[int, ...]  # N numbers, their sum is L; on the host, so that nothing waits for the device
    ends: Tensor  # [N + 1] int32, cumulative lengths from 0
    flat: Tensor  # [L] int64, row * T + column
    columns: Tensor  # [L] int64

    @classmethod
    def of(cls, batch: Batch) -> "Windows":
        mask_NT = batch.attention_mask
        lengths_N = mask_NT.sum(1)
        lengths = tuple(lengths_N.tolist()) if batch.lengths is None else batch.lengths
        ends = torch.nn.functional.pad(lengths_N.cumsum(0), (1, 0)).int()
        flat = mask_NT.flatten().nonzero_static(size=sum(lengths)).squeeze(1)
        return cls(lengths, ends, flat, flat % mask_NT.shape[1])

    def pack(self, values_NT: Tensor) -> Tensor:
        """[N, T, ...] as [1, L, ...]."""
        return values_NT.flatten(0, 1).index_select(0, self.flat)[None]

    def unpack(self, values_1L: Tensor, like_NT: Tensor, fill: float) -> Tensor:
        """[1, L, ...] as [N, T, ...] with the N and T of `like_NT`, `fill` at padding."""
        rest = values_1L.shape[2:]
        filled = values_1L.new_full((like_NT.numel(), *rest), fill)
        return filled.index_copy(0, self.flat, values_1L[0]).view(*like_NT.shape, *rest)


def prepare(model: PreTrainedModel, attention: str) -> int:
    """Gives the model the attention of this module; returns the position id of a window's first token.

    Args:
        attention: the recipe's `model.attention`.

    Raises:
        InputError: naming train.packing or model.attention; the model's positions or attention are not of this kind.
    """
    first = first_position(model.config)
    if attention not in ("auto", "sdpa"):
        raise InputError(
            f"model.attention {attention}: train.packing brings an attention of its own: set model.attention to auto, "
            "or train.packing to false"
        )
    model.set_attn_implementation(PACKED)
    return first


def first_position(config: PreTrainedConfig) -> int:
    if config.model_type in FROM_ZERO:
        return 0
    if config.model_type in BEHIND_PADDING:
        return config.pad_token_id + 1
    raise InputError(
        f"train.packing: {config.model_type} is not of the kinds whose windows can share a row "
        f"({', '.join(FROM_ZERO + BEHIND_PADDING)}): set it to false"
    )


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    windows: Windows | None = None,
    **others,
) -> tuple[Tensor, None]:
    """As transformers calls it: query, key and value are [1, heads, L, width], the result [1, L, heads, width]."""
    if windows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) and not dropout:
        from torch.nn.attention.varlen import varlen_attn

        tokens_first = (one[0].transpose(0, 1) for one in (query, key, value))
        longest = max(windows.lengths)
        return varlen_attn(*tokens_first, windows.ends, windows.ends, longest, longest, scale=scaling)[None], None
    parts = zip(*(one.split(windows.lengths, dim=2) for one in (query, key, value)), strict=True)
    own = [scaled_dot_product_attention(*part, dropout_p=dropout, scale=scaling) for part in parts]
    return torch.cat(own, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED, attend)
AttentionMaskInterface.register(PACKED, sdpa_mask)
