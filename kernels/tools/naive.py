"""The perturbation as one would first write it: the baseline of the benchmarks."""

import math

import torch
from torch import Tensor


def perturb(embeddings: Tensor, params: Tensor, mask: Tensor, prior_variance: float) -> tuple[Tensor, Tensor]:
    """Learned multiplicative noise and KL, like `swep_ds.kernels.perturb`, with noise from PyTorch's own generator."""
    delta, v = params.chunk(2, dim=-1)
    z = 1 + delta + math.sqrt(prior_variance) * torch.exp(0.5 * v) * torch.randn_like(delta)
    terms = delta**2 / prior_variance + v.exp() - 1 - v
    kl = 0.5 * terms.float().sum(-1)
    return torch.where(mask[..., None], embeddings * z, 0), torch.where(mask, kl, 0)
