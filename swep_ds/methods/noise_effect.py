"""What noise does: the words that it changes, and the model's nll under it, under the same shuffled, under its prior's.

All of it is computed without gradient and dropout, and draws no number from any generator's state.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor, nn

from swep_ds.kernels import MODES
from swep_ds.kernels.philox import noise_words
from swep_ds.methods.base import Inputs, draw_noise, without_dropout
from swep_ds.models.backends import float32_products
from swep_ds.models.outputs import answer_nll

CHUNK = 2**15  # words whose embeddings are compared at once
# `words_changed` samples as many tokens of a micro-batch as make this many products with the vocabulary, within bounds
MEASURED_PRODUCTS = 2**22
MEASURED_TOKENS = (128, 512)


def random_words(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Words of 32 random bits for each token, each [N, T, 1], keyed by (seed, draw, window, position). ~seed: the noise
    is made of the words of the seed itself."""
    ids_NT = inputs.batch.input_ids
    positions = torch.arange(ids_NT.shape[1], device=ids_NT.device)
    return noise_words(~inputs.seed, inputs.draw, inputs.batch.sample_id[:, None], positions, 4)


@torch.no_grad()
def nearest(vectors: Tensor, look_up: Callable[[Tensor], Tensor], vocabulary: int) -> Tensor:
    """The ids [...] of the words with the largest inner products with vectors [..., d], the paper's sense of near; the
    first of equals. `look_up` gives the embeddings [M, d] of ids [M]. Computes in float32 or better."""
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    best = torch.full_like(vectors[..., 0], -torch.inf)
    words = torch.zeros_like(best, dtype=torch.int64)
    with torch.autocast(vectors.device.type, enabled=False), float32_products():
        for begin in range(0, vocabulary, CHUNK):
            ids = torch.arange(begin, min(begin + CHUNK, vocabulary), device=vectors.device)
            product, column = (vectors @ look_up(ids).to(vectors.dtype).T).max(-1)
            words = torch.where(product > best, begin + column, words)
            best = torch.maximum(best, product)
    return words


@torch.no_grad()
def words_changed(qa: nn.Module, inputs: Inputs, perturbed: Tensor) -> dict[str, Tensor]:
    """The share of tokens whose perturbed embedding is nearer to another word, any row of the table, and the same share
    before (`_clean`). That is not zero, because a longer row can have the larger product. Measured on a few hundred
    tokens that the key draws. The sum over the micro-batches of an update is the share of its tokens."""
    batch = inputs.batch
    vocabulary = qa.words.num_embeddings
    fewest, most = MEASURED_TOKENS
    count = min(max(MEASURED_PRODUCTS // vocabulary, fewest), most, batch.input_ids.numel())
    random_NT = random_words(inputs)[0][..., 0]
    random_values, sample = random_NT.masked_fill(batch.attention_mask == 0, -1).flatten().topk(count)
    real = (random_values >= 0).to(batch.token_weight.dtype)
    vectors = torch.stack([embeddings.detach().flatten(0, 1)[sample] for embeddings in (perturbed, inputs.embeddings)])
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))

    def compare(table: nn.Module, arguments: tuple[Tensor], words: Tensor) -> Tensor:
        """A hook, which looks words up within a call: ZeRO-3 gathers the table for each. Later hooks expect floats."""
        nearest_words = table.forward(nearest(vectors, table.forward, vocabulary))
        return ((vectors * nearest_words).sum(-1) > (vectors * words).sum(-1)).to(real.dtype)

    with qa.words.register_forward_hook(compare, prepend=True):  # before ZeRO-3's own, which drops the table
        another = qa.words(batch.input_ids.flatten()[sample])
    weight = (batch.attention_mask.sum(1) * batch.token_weight).sum()  # this micro-batch's share of the tokens
    after, before = weight * (another * real).sum(-1) / real.sum()
    return {"words_changed": after, "words_changed_clean": before}


def shuffle(values_NTK: Tensor, inputs: Inputs) -> Tensor:
    """Permutes each window's values [N, T, K] among its tokens; padding stays. The permutation depends on (seed, draw,
    window), but not on the batch and its padding on the right."""
    random_NT = random_words(inputs)[2][..., 0]  # `words_changed` uses word 0
    padding_NT = inputs.batch.attention_mask == 0
    order_NT = random_NT.masked_fill(padding_NT, 2**32).argsort(dim=1, stable=True)
    places_NT = padding_NT.long().argsort(dim=1, stable=True)  # the tokens' columns, then the padding's
    order_NT = torch.empty_like(order_NT).scatter_(1, places_NT, order_NT)
    return values_NTK.gather(1, order_NT[..., None].expand_as(values_NTK))


@torch.no_grad()
def noise_effect(inputs: Inputs, generator: nn.Module, prior_variance: float, mode: str) -> dict[str, Tensor]:
    """The nll of the gold answer and of the model's guess, [N] each: `gold_nll_<noise>`, `guess_nll_<noise>`.

    The guess is the model's on the clean input: its most likely start and end, or its most likely token at each
    position after the gold tokens before. The noise generator sees h, and h knows the guess: noise that lowers the nll
    of the guess more than that of the gold answer tells the encoder what it believes already. The three noises share
    eps, so they differ only by mu and sigma, and what an ablation fixes is fixed in all of them.
    """
    clean = inputs.forward(inputs.embeddings)
    with without_dropout(generator):
        learned = generator(clean.hidden)
    noises = {
        "learned": learned,
        "shuffled": shuffle(learned, inputs),
        "prior": torch.zeros_like(learned),
    }
    guess_NK = clean.logits.argmax(-1)
    statistics = {}
    for name, parameters in noises.items():
        same_draw = replace(inputs, streams=count())
        output = inputs.forward(draw_noise(same_draw, parameters, prior_variance, mode)[0])
        nll_NK = answer_nll(output.logits, guess_NK)
        statistics[f"gold_nll_{name}"] = output.nll
        statistics[f"guess_nll_{name}"] = (nll_NK * output.shares).sum(1)
    return statistics


def noise_statistics(parameters: Tensor, prior_variance: float, mode: str) -> dict[str, Tensor]:
    """Means over d of what is learned, [N, T]: mu, |mu - m|, sigma; m is the prior's mean. And mean squares, of which
    the log has the roots, the dose in a unit that d and T leave alone (`dose`): `mu_spread` of (mu - m) / sqrt(alpha),
    `sigma_spread` of sigma / sqrt(alpha) - 1. Arguments as `draw_noise`'s."""
    delta, log_ratio = parameters.float().chunk(2, -1)
    statistics = {}
    if MODES[mode].learned_mu:
        statistics["mu"] = delta.mean(-1) + MODES[mode].prior_mean
        statistics["mu_distance"] = delta.abs().mean(-1)
        statistics["mu_spread"] = delta.square().mean(-1) / prior_variance
    if MODES[mode].learned_sigma:
        ratio = (log_ratio / 2).exp()
        statistics["sigma"] = ratio.mean(-1) * math.sqrt(prior_variance)
        statistics["sigma_spread"] = (ratio - 1).square().mean(-1)
    return statistics
