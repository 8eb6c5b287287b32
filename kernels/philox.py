"""Counter-based noise: Philox4x32 and Box-Muller.

Philox: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

Every number is a pure function of (seed, draw, sample id, position, dimension), so it does not depend on the batch
a sample sits in, the padding, the world size, the order of work or the device:

    key     = (seed mod 2^32, seed div 2^32)
    counter = (block c, position, sample id, draw)         with 0 <= c < d/4, each word taken mod 2^32
    word w of counter c belongs to dimension w * d/4 + c   (no interleaving: a GPU thread keeps its own words)

A pair of words (a, b) becomes a pair of independent standard normals:

    u = a * 2^-32 + 2^-33 in (0, 1];   theta = pi * signed(b) * 2^-31 in [-pi, pi);   r = sqrt(-2 ln u)
    words (0, 1) -> (r cos theta, r sin theta), words (2, 3) likewise

so |eps| <= sqrt(66 ln 2) = 6.764, reached with probability 2^-32. Words are exact on every device; the normals agree
to a few units in the last place of 1.0.
"""

import math

import torch
from torch import Tensor

ROUNDS = 10  # 7 already pass BigCrush; 10 is the margin its authors recommend
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[int | Tensor, int | Tensor], rounds: int = ROUNDS) -> Words:
    """Philox4x32 of a counter of four words under a key of two, all in [0, 2^32): four words as int64 tensors.

    Words 0 and 2 come out in [0, 2^32); of words 1 and 3 only the low 32 bits count. The words of a counter may have
    broadcastable shapes, which makes the first two rounds cheap.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # 64-bit products: high word | low word
        c0, c1 = ((p1 >> 32) ^ c1 ^ k0) & MASK, p1
        c2, c3 = ((p0 >> 32) ^ c3 ^ k1) & MASK, p0
        k0, k1 = (k0 + KEY_INCREMENTS[0]) & MASK, (k1 + KEY_INCREMENTS[1]) & MASK
    return c0, c1, c2, c3


def noise_words(seed: int | Tensor, draw: int | Tensor, sample_ids: Tensor, positions: Tensor, d: int) -> Words:
    """The four words of every counter of a row of `d` dimensions: each [..., d/4], broadcastable, as of `philox`."""
    if d % 4:
        raise ValueError(f"the width d must be divisible by 4, because a Philox counter yields four words; got d = {d}")
    sample_ids, positions = torch.broadcast_tensors(sample_ids, positions)
    block = torch.arange(d // 4, device=positions.device)
    # an int stays an int: as a tensor it would be copied to the GPU, which waits for the stream
    if isinstance(draw, Tensor):
        draw = draw.to(positions.device)
    counter = (block, positions[..., None] & MASK, sample_ids[..., None] & MASK, draw & MASK)
    return philox(counter, (seed & MASK, (seed >> 32) & MASK))


def box_muller(radius_word: Tensor, angle_word: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two independent standard normals from two 32-bit words held in int64 (module docstring), in `dtype`."""
    u = radius_word.to(dtype).mul_(2.0**-32).add_(2.0**-33)
    r = u.log_().mul_(-2.0).sqrt_()
    theta = angle_word.to(torch.int32).to(dtype).mul_(math.pi * 2.0**-31)
    return torch.cos(theta).mul_(r), theta.sin_().mul_(r)


def standard_normal(
    seed: int | Tensor,
    draw: int | Tensor,
    sample_ids: Tensor,
    positions: Tensor,
    d: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Standard normal noise keyed by (seed, draw, sample id, position, dimension): [..., d] in `dtype`, float32 or
    float64, which start from the same words. `seed` and `draw` are as in `perturb`; `sample_ids` and `positions` are
    int64 tensors that broadcast to [...], such as [N, 1] and [T]. Raises ValueError: d is not divisible by 4."""
    w0, w1, w2, w3 = noise_words(seed, draw, sample_ids, positions, d)
    return torch.cat([*box_muller(w0, w1, dtype), *box_muller(w2, w3, dtype)], dim=-1)
