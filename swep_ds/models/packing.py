"""Windows of a batch as one row of tokens without padding, and an attention in which each sees itself alone.

Notable:
- Only the backbone works on the row. Embeddings come and logits and hidden states go back as [N, T, ...], so that
  noise, kernels, methods and batches know nothing of it.
- The loss differs from the padded one on purpose: Hugging Face's softmax over start and end positions runs over
  padding, too, whose logits depend on how long the batch's longest window is. Here padding does not exist: its logits
  are the lowest finite number, and the softmax runs over a window's own tokens.
- On CUDA in half precision and without dropout of attention weights, attention is PyTorch's `varlen_attn`, one kernel
  for all windows. That kernel has no dropout: with it, and elsewhere, windows attend one after the other, which wastes
  nothing but launches; on a GPU these may cost more than padding would, and `slow_because` tells why.
- Evaluation stays padded: a call of the model that names no windows is an ordinary one.
"""

import inspect
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swep_ds.data.batches import Batch
from swep_ds.errors import InputError
from swep_ds.models.masks import unasked

PACKED = "swep_packed"  # this attention's name among transformers'
# encoders with learned absolute positions; RoBERTa's begin behind the id of padding
FROM_ZERO = ("bert", "electra")
BEHIND_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")
HALF = {"autocast": torch.bfloat16, "bf16": torch.bfloat16, "fp16": torch.float16}  # by the recipe's `train.precision`


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


def slow_because(config: PreTrainedConfig, precision: str, device: torch.device) -> str | None:
    """Why windows will attend one after the other in training, and what mends it; None = they need not, or no GPU.

    Args:
        config: of a model that `prepare` took.
        precision: the recipe's `train.precision`.
    """
    if device.type != "cuda":
        return None  # there a launch costs next to nothing
    width = config.hidden_size // config.num_attention_heads
    return _obstacle(device, HALF.get(precision, torch.float32), width, config.attention_probs_dropout_prob)


def _obstacle(device: torch.device, dtype: torch.dtype, width: int, dropout: float) -> str | None:
    """To one kernel for all windows; `width` is a head's."""
    if device.type != "cuda":
        return "no GPU"
    if dtype not in HALF.values():
        return "one kernel for all takes half precision alone: set train.precision to bf16"
    if dropout:
        return (
            f"one kernel for all has no dropout of attention weights, and the model asks for {dropout}: set "
            "attention_probs_dropout_prob to 0 in the config.json of a local copy"
        )
    if width % 8 or width > 256:
        return f"one kernel for all takes heads of a multiple of 8 up to 256, and the model's are {width} wide"
    return _missing(device)


@cache
def _missing(device: torch.device) -> str | None:
    """What this machine lacks for `varlen_attn`. PyTorch 2.9 does not have it, and 2.10 not with `scale`."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        varlen_attn = None
    if varlen_attn is None or "scale" not in inspect.signature(varlen_attn).parameters:
        return f"PyTorch {torch.__version__} has no kernel for all (varlen_attn with a scale): install a later one"
    if not torch.backends.cuda.is_flash_attention_available() or torch.cuda.get_device_capability(device) < (8, 0):
        return "one kernel for all needs FlashAttention in PyTorch and an Ampere GPU or a later one"
    return None


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
    if _obstacle(query.device, query.dtype, query.shape[-1], dropout) is None:
        from torch.nn.attention.varlen import varlen_attn

        tokens_first = (one[0].transpose(0, 1) for one in (query, key, value))
        longest = max(windows.lengths)
        return varlen_attn(*tokens_first, windows.ends, windows.ends, longest, longest, scale=scaling)[None], None
    parts = zip(*(one.split(windows.lengths, dim=2) for one in (query, key, value)), strict=True)
    own = [scaled_dot_product_attention(*part, dropout_p=dropout, scale=scaling) for part in parts]
    return torch.cat(own, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED, attend)
AttentionMaskInterface.register(PACKED, unasked(sdpa_mask))
