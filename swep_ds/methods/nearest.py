"""Which word a perturbed embedding is nearest to, in the paper's sense: by largest inner product with the table."""

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK = 2**15  # words whose embeddings are looked at together


def is_another(vectors: Tensor, own: Tensor, look_up: Callable[[Tensor], Tensor], vocabulary: int) -> Tensor:
    """Whether another word's embedding has a larger inner product with a vector than its own word's, [..., K] bool.

    Equal ones, as all are with a vector of zeros, do not count. At least float32 whatever the vectors are in; at most
    [K, CHUNK] products are in memory at a time.

    Args:
        vectors: [..., K, d].
        own: ids of the words that they come from, [K].
        look_up: embeddings [M, d] of ids [M]. A call, not a weight: ZeRO-3 gathers that for the module's call alone.
        vocabulary: words in the table.
    """
    precision = torch.promote_types(vectors.dtype, torch.float32)
    vectors, rows = vectors.to(precision), own.expand(vectors.shape[:-1])
    best = torch.full_like(vectors[..., 0], -torch.inf)
    mine = best.clone()
    with torch.no_grad(), torch.autocast(vectors.device.type, enabled=False):
        for begin in range(0, vocabulary, CHUNK):
            ids = torch.arange(begin, min(begin + CHUNK, vocabulary), device=own.device)
            products = vectors @ look_up(ids).to(precision).T
            best = torch.maximum(best, products.amax(-1))
            place = rows - begin
            here = (place >= 0) & (place < len(ids))
            product = products.gather(-1, place.clamp(0, len(ids) - 1)[..., None])[..., 0]
            mine = torch.where(here, product, mine)
    return best > mine
