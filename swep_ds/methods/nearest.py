"""Which word a perturbed embedding is nearest to, in the paper's sense: by largest inner product with the table."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from swep_ds.data.batches import Batch
from swep_ds.kernels.philox import noise_words
from swep_ds.methods.base import NoiseKey
from swep_ds.models.backends import float32_products

CHUNK = 2**15  # words whose embeddings are compared at once
# `words_changed` samples as many tokens of a micro-batch as make this many products with the vocabulary, within bounds
MEASURED_PRODUCTS = 2**22
MEASURED_TOKENS = (128, 512)


@torch.no_grad()
def nearest(vectors: Tensor, look_up: Callable[[Tensor], Tensor], vocabulary: int) -> Tensor:
    """The ids [...] of the words whose embeddings have the largest inner products with vectors [..., d].

    The first of equals. Computes in float32 or better; at most [..., CHUNK] products are in memory at a time.

    Args:
        look_up: embeddings [M, d] of ids [M]. A call, not a weight: ZeRO-3 gathers weights only for a module's call.
        vocabulary: number of words in the table.
    """
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    best = torch.full_like(vectors[..., 0], -torch.inf)
    words = torch.zeros_like(best, dtype=torch.int64)
    with torch.autocast(vectors.device.type, enabled=False), float32_products("fp32"):
        for begin in range(0, vocabulary, CHUNK):
            ids = torch.arange(begin, min(begin + CHUNK, vocabulary), device=vectors.device)
            product, column = (vectors @ look_up(ids).to(vectors.dtype).T).max(-1)
            words = torch.where(product > best, begin + column, words)
            best = torch.maximum(best, product)
    return words


@torch.no_grad()
def words_changed(qa: nn.Module, clean: Tensor, perturbed: Tensor, batch: Batch, key: NoiseKey) -> dict[str, Tensor]:
    """The share of tokens whose perturbed embedding is nearer to another word, and the same share before (`_clean`).

    The clean share is not zero: where the table's rows differ in length, a long one can have the larger product. A tie
    is no change. Measured on a few hundred tokens, which the key draws as it draws the noise: no generator's state
    changes.

    Args:
        qa: the model (`swep_ds.models`).
        clean, perturbed: word embeddings [N, T, d].

    Returns:
        Scalars, weighted so that their sum over the micro-batches of an update is the share of its tokens.
    """
    positions = torch.arange(batch.input_ids.shape[1], device=clean.device)
    vocabulary = qa.model.get_input_embeddings().num_embeddings
    fewest, most = MEASURED_TOKENS
    count = min(max(MEASURED_PRODUCTS // vocabulary, fewest), most, batch.input_ids.numel())
    # ~seed: the noise's own key would give the numbers that Word-Dropout compares with its probability
    random_NT = noise_words(~key.seed, key.draw, batch.sample_id[:, None], positions, 4)[0][..., 0]
    random_values, sample = random_NT.masked_fill(batch.attention_mask == 0, -1).flatten().topk(count)
    real = (random_values >= 0).to(batch.token_weight.dtype)
    vectors = torch.stack([embeddings.detach().flatten(0, 1)[sample] for embeddings in (perturbed, clean)])
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))

    def look_up(ids: Tensor) -> Tensor:
        return qa.embed(batch._replace(input_ids=ids[None]))[0]

    def products(ids: Tensor) -> Tensor:
        return (vectors * look_up(ids.flatten()).to(vectors.dtype).view(*ids.shape, -1)).sum(-1)

    another = products(nearest(vectors, look_up, vocabulary)) > products(batch.input_ids.flatten()[sample])
    weight = (batch.attention_mask.sum(1) * batch.token_weight).sum()  # this micro-batch's share of the tokens
    after, before = weight * (another * real).sum(-1) / real.sum()
    return {"words_changed": after, "words_changed_clean": before}
