"""Floating-point operations that a model needs for an update, and what share of the device's peak that is.

Model FLOPs, as in PaLM's appendix B: for a weight of P elements and a token 2 P forward and 4 P backward; for attention
over T tokens 4 T^2 times its width in each layer forward, twice that backward. Padding and activation checkpointing do
not count: the hardware computes them, the model does not need them. Attention is taken to be an encoder's, where all
layers see all tokens: a decoder's few answer tokens are left out, and layers with a local window count too much.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import nn

from swep_ds.data.batches import Batch

# (name, bf16, tf32, fp32): dense FLOP/s from the vendors' data sheets; the first name that matches counts
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
    """FLOPs of an update, by what they grow with: a window's tokens, and the square of their number."""

    per_token: float
    per_square: float

    def of(self, lengths: Iterable[int]) -> float:
        """FLOPs of an update on windows with these numbers of tokens."""
        return sum(self.per_token * n + self.per_square * n * n for n in lengths)


def count(root: nn.Module, qa: nn.Module, update: Callable[[Batch, int], None], batch: Batch) -> Flops:
    """Counts the linear layers' work and the passes of `qa` in an update.

    Args:
        root: the module whose forward contains all passes; a layer that runs again in the backward is outside of it.
    """
    N, T = batch.input_ids.shape
    # without padding, which a model may leave out
    batch = batch._replace(attention_mask=torch.ones_like(batch.attention_mask), lengths=(T,) * N)
    config = qa.model.config
    width = config.num_attention_heads * getattr(config, "d_kv", config.hidden_size // config.num_attention_heads)
    totals = {"per_token": 0.0, "per_square": 0.0}
    inside: list[bool] = []  # not empty while `root` runs

    def linear(module: nn.Linear, inputs: tuple, _) -> None:
        if inside:
            # forward and backward, in forwards: outside training nothing asks for the weights' gradient
            times = (3 if qa.training else 2) if torch.is_grad_enabled() else 1
            rows = inputs[0].numel() / module.in_features
            totals["per_token"] += times * 2 * module.in_features * module.out_features * rows / (N * T)

    def attention(_, inputs: tuple, __) -> None:
        times = 3 if torch.is_grad_enabled() else 1
        totals["per_square"] += times * 4 * config.num_hidden_layers * width

    hooks = [root.register_forward_pre_hook(lambda *_: inside.append(True))]
    hooks += [root.register_forward_hook(lambda *_: inside.clear()), qa.register_forward_hook(attention)]
    hooks += [module.register_forward_hook(linear) for module in root.modules() if isinstance(module, nn.Linear)]
    with torch.compiler.set_stance("force_eager"):  # compiled code runs no hooks
        update(batch, 0)
    for hook in hooks:
        hook.remove()
    return Flops(**totals)


def peak_flops(device: str, precision: str) -> float | None:
    """Peak FLOP/s of a GPU by its name, at a `train.precision`; None = not in the table."""
    half, tf32, single = next((peaks for name, *peaks in PEAKS if name in device), (None, None, None))
    return {"fp32": single, "tf32": tf32}.get(precision, half)
