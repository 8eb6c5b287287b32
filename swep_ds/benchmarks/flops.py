"""Floating-point operations that a model needs for an update, and what share of the device's peak that is.

Model FLOPs, as in PaLM's appendix B: for a weight of P elements and a token 2 P forward and 4 P backward; attention
over T tokens 4 T^2 of its width a layer forward, twice that backward. What padding or activation checkpointing cost on
top is not counted: the hardware does it, the model does not need it. Attention is that of an encoder whose layers see
all tokens: of a decoder's few answer tokens it is left out, and of layers with a local window it is too much.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import nn

from swep_ds.data.batches import Batch

# dense FLOP/s by makers' data sheets; what comes first in a name counts: (name, bf16, tf32, fp32)
PEAKS = (
    ("B200", 2250e12, 1100e12, 75e12),
    ("H100 PCIe", 756e12, 378e12, 51e12),
    ("H100 NVL", 835e12, 417e12, 60e12),
    ("H100", 989e12, 494e12, 67e12),
    ("H200", 989e12, 494e12, 67e12),
    ("A100", 312e12, 156e12, 19.5e12),
    ("L40S", 362e12, 183e12, 91.6e12),
)


class Flops(NamedTuple):
    """Of an update, by what it grows with."""

    per_token: float
    per_square: float  # of a window's number of tokens

    def of(self, lengths: Iterable[int]) -> float:
        """Of an update on windows of so many tokens."""
        return sum(self.per_token * n + self.per_square * n * n for n in lengths)


def count(root: nn.Module, qa: nn.Module, update: Callable[[Batch, int], None], batch: Batch) -> Flops:
    """Counted in the linear layers and the passes of `qa` that an update makes.

    Args:
        root: the module whose forward holds all passes; a layer that runs again in the backward is not inside of it.
    """
    N, T = batch.input_ids.shape
    # as if nothing were padding: a model may leave it out
    batch = batch._replace(attention_mask=torch.ones_like(batch.attention_mask), lengths=(T,) * N)
    found = {"per_token": 0.0, "per_square": 0.0}
    config = qa.model.config
    width = config.num_attention_heads * getattr(config, "d_kv", config.hidden_size // config.num_attention_heads)
    inside = False

    def enter(*_) -> None:
        nonlocal inside
        inside = True

    def leave(*_) -> None:
        nonlocal inside
        inside = False

    def linear(module: nn.Linear, inputs: tuple, _) -> None:
        if inside:
            rows = inputs[0].numel() / module.in_features
            found["per_token"] += _times(qa.training) * 2 * module.in_features * module.out_features * rows / (N * T)

    def whole(*_) -> None:
        found["per_square"] += (3 if torch.is_grad_enabled() else 1) * 4 * config.num_hidden_layers * width

    hooks = [root.register_forward_pre_hook(enter), root.register_forward_hook(leave), qa.register_forward_hook(whole)]
    hooks += [one.register_forward_hook(linear) for one in root.modules() if isinstance(one, nn.Linear)]
    with torch.compiler.set_stance("force_eager"):  # what is compiled runs no hooks
        update(batch, 0)
    for hook in hooks:
        hook.remove()
    return Flops(**found)


def _times(training: bool) -> int:
    """A linear layer's forward and its backward, in forwards: outside training none asks for the weights' gradient."""
    if not torch.is_grad_enabled():
        return 1
    return 3 if training else 2


def peak_flops(device: str, precision: str) -> float | None:
    """Of a GPU by its name, in FLOP/s; None = not in the table."""
    for name, half, tf32, single in PEAKS:
        if name in device:
            if precision != "fp32":
                return half
            return single if torch.get_float32_matmul_precision() == "highest" else tf32
    return None
