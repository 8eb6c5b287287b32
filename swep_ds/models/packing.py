"""Packs the windows of a batch into one row without padding, with an attention that keeps them apart.

Notable:
- Only the backbone sees the row. Embeddings, logits and hidden states are [N, T, ...] outside, so that noise,
  kernels, methods and batches need not know.
- The loss differs from the padded one on purpose: Hugging Face's softmax over start and end positions includes
  padding, so that it depends on the batch's longest window. Here the logits at padding are the lowest finite number:
  the softmax runs over a window's own tokens.
- On CUDA in half precision and without attention dropout, PyTorch's `varlen_attn` serves all windows in one kernel.
  It has no dropout: with dropout, and elsewhere, windows attend one after the other. On a GPU their launches may cost
  more than padding would; `slow_because` says why.
- Evaluation stays padded: a call of the model without `windows` is an ordinary one.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swep_ds.common.errors import InputError
from swep_ds.data.batches import Batch
from swep_ds.models.backends import HALVES
from swep_ds.models.masks import without_sync

PACKED = "swep_packed"  # this attention's name in transformers
# encoders with learned absolute positions; RoBERTa's positions begin after the padding id
FROM_ZERO = ("bert", "electra")
BEHIND_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")
# train.precision -> dtype of the activations
HALF = HALVES | {"autocast": torch.bfloat16}


@dataclass(frozen=True)
class Windows:
    """Where the tokens of N windows are: in a batch of T columns, and in the row of L tokens."""

    lengths: tuple[int, ...]  # N numbers with sum L, on the host: no synchronisation
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
        """[N, T, ...] to [1, L, ...]."""
        return values_NT.flatten(0, 1).index_select(0, self.flat)[None]

    def unpack(self, values_1L: Tensor, like_NT: Tensor, fill: float) -> Tensor:
        """[1, L, ...] to [N, T, ...], with `like_NT`'s N and T and `fill` at padding."""
        rest = values_1L.shape[2:]
        filled = values_1L.new_full((like_NT.numel(), *rest), fill)
        return filled.index_copy(0, self.flat, values_1L[0]).view(*like_NT.shape, *rest)


def prepare(model: PreTrainedModel, attention: str) -> int:
    """Gives the model this module's attention; returns the position id of a window's first token.

    Args:
        attention: the recipe's `model.attention`.

    Raises:
        InputError: names train.packing or model.attention: the model's positions or attention cannot be packed.
    """
    kind = model.config.model_type
    if kind not in FROM_ZERO + BEHIND_PADDING:
        raise InputError(
            f"train.packing: {kind} is not one of the kinds whose windows can share a row "
            f"({', '.join(FROM_ZERO + BEHIND_PADDING)}): set it to false"
        )
    if attention not in ("auto", "sdpa"):
        raise InputError(
            f"model.attention {attention}: train.packing has its own attention: set model.attention to auto, or "
            "train.packing to false"
        )
    model.set_attn_implementation(PACKED)
    return 0 if kind in FROM_ZERO else model.config.pad_token_id + 1


def slow_because(config: PreTrainedConfig, precision: str, device: torch.device) -> str | None:
    """What keeps the windows from sharing one kernel in training, on a GPU; None if they share it.

    Args:
        config: that of a model that `prepare` accepts.
        precision: the recipe's `train.precision`.
    """
    width = config.hidden_size // config.num_attention_heads
    dtype, dropout = HALF.get(precision, torch.float32), config.attention_probs_dropout_prob
    if device.type != "cuda" or _one_kernel(device, dtype, width, dropout):
        return None  # on CPU a launch costs next to nothing
    return (
        f"the single kernel needs half precision (train.precision is {precision}), model.attention_dropout 0 "
        f"(it is {dropout}), heads of a multiple of 8 up to 256 (they are {width} wide), an Ampere "
        "GPU or a later one, and a PyTorch with FlashAttention"
    )


def _one_kernel(device: torch.device, dtype: torch.dtype, head_width: int, dropout: float) -> bool:
    fits = dtype in HALF.values() and not dropout and head_width % 8 == 0 and head_width <= 256
    return device.type == "cuda" and fits and _has_flash_attention(device)


@cache
def _has_flash_attention(device: torch.device) -> bool:
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    windows: Windows | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: query, key, value [1, heads, L, width] to [1, L, heads, width]."""
    if windows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    if _one_kernel(query.device, query.dtype, query.shape[-1], dropout):
        from torch.nn.attention.varlen import varlen_attn

        tokens_first = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        longest = max(windows.lengths)
        return varlen_attn(*tokens_first, windows.ends, windows.ends, longest, longest, scale=scaling)[None], None
    parts = zip(*(tensor.split(windows.lengths, dim=2) for tensor in (query, key, value)), strict=True)
    outputs = [scaled_dot_product_attention(*part, dropout_p=dropout, scale=scaling) for part in parts]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED, attend)
AttentionMaskInterface.register(PACKED, without_sync(sdpa_mask))
