"""What learned noise does to the answer: the model's nll under it, under the same noise shuffled, under its prior's.

The three share eps, so they differ only by mu and sigma. What an ablation fixes (sigma 1, no eps) is so in all three.
Shuffled noise keeps a window's mu and sigma, but gives them to other tokens of it. The nll is that of the gold answer,
and that of the model's own guess on the clean input: its most likely start and its most likely end; for a generated
answer its most likely token at each position, after the gold tokens before. The noise generator sees h, and h knows the
guess: noise that lowers the nll of the guess more than that of the gold answer tells the encoder what it believes
already.

All of it is computed without gradient and dropout, and draws no number from any generator's state.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from swep_ds.data.batches import Batch
from swep_ds.kernels import MODES
from swep_ds.kernels.philox import noise_words
from swep_ds.methods.base import Inputs, NoiseKey, draw_noise, without_dropout


def shuffle(values_NTK: Tensor, batch: Batch, key: NoiseKey) -> Tensor:
    """Permutes each window's values [N, T, K] among its tokens; padding stays.

    The permutation is keyed by (seed, draw, window), whatever the batch and its padding on the right.
    """
    positions = torch.arange(values_NTK.shape[1], device=values_NTK.device)
    # ~seed: the noise is made of the words of the seed itself. `words_changed` uses word 0
    random_NT = noise_words(~key.seed, key.draw, batch.sample_id[:, None], positions, 4)[2][..., 0]
    padding_NT = batch.attention_mask == 0
    order_NT = random_NT.masked_fill(padding_NT, 2**32).argsort(dim=1, stable=True)
    places_NT = padding_NT.long().argsort(dim=1, stable=True)  # the tokens' columns, then the padding's
    order_NT = torch.empty_like(order_NT).scatter_(1, places_NT, order_NT)
    return values_NTK.gather(1, order_NT[..., None].expand_as(values_NTK))


@torch.no_grad()
def noise_effect(inputs: Inputs, generator: nn.Module, prior_variance: float, mode: str) -> dict[str, Tensor]:
    """The nll of the gold answer and of the model's guess, [N] each: `gold_nll_<noise>`, `guess_nll_<noise>`.

    Args:
        generator: gives for h [N, T, hidden] what `swep_ds.kernels.perturb` takes, [N, T, 2d].
        mode: of `swep_ds.kernels.MODES`; that of the learned noise.
    """
    clean = inputs.forward(inputs.embeddings)
    with without_dropout(generator):
        learned = generator(clean.hidden)
    noises = {
        "learned": learned,
        "shuffled": shuffle(learned, inputs.batch, inputs.key),
        "prior": torch.zeros_like(learned),
    }
    guess_NK = clean.logits.argmax(-1)
    statistics = {}
    for name, parameters in noises.items():
        output = inputs.forward(draw_noise(inputs, parameters, prior_variance, mode)[0])
        precision = torch.promote_types(output.logits.dtype, torch.float32)
        nll_NK = cross_entropy(output.logits.to(precision).transpose(1, 2), guess_NK, reduction="none")
        statistics[f"gold_nll_{name}"] = output.nll
        statistics[f"guess_nll_{name}"] = (nll_NK * output.shares).sum(1)
    return statistics


def noise_statistics(parameters: Tensor, prior_variance: float, mode: str) -> dict[str, Tensor]:
    """Means over d of what is learned, [N, T]: mu, |mu - the prior's mean|, sigma.

    Args:
        parameters: mu - m and log(sigma^2 / alpha), [N, T, 2d].
        prior_variance: alpha.
        mode: of `swep_ds.kernels.MODES`.
    """
    delta, log_ratio = parameters.float().chunk(2, -1)
    statistics = {}
    if MODES[mode].learned_mu:
        statistics["mu"] = delta.mean(-1) + MODES[mode].prior_mean
        statistics["mu_distance"] = delta.abs().mean(-1)
    if MODES[mode].learned_sigma:
        statistics["sigma"] = (log_ratio / 2).exp().mean(-1) * math.sqrt(prior_variance)
    return statistics
