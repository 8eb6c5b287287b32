"""The perturbation in NumPy float64, from the two papers' formulas; it shares no code with the package."""

import numpy as np
import torch


def assert_accurate(results, exact, rough=None, atol=2.0**-20):
    """An error is at most twice that of low precision, plus `atol` (16 float32 roundings) times the largest value or 1.

    The error of low precision is the larger one of `rough`, the same computation in PyTorch, if given, and of the exact
    result rounded once. Entries may be None in all three arguments.
    """
    for i, (got, want) in enumerate(zip(results, exact, strict=True)):
        if want is None or not want.numel():
            assert (got is None) == (want is None), i
            continue
        assert got.shape == want.shape, i
        low = (want.to(got.dtype).double() - want).abs().max()
        if rough is not None:
            assert got.dtype == rough[i].dtype, i
            low = torch.maximum(low, (rough[i].double() - want).abs().max())
        error = (got.double() - want).abs().max()
        assert error <= 2 * low + atol * max(1.0, want.abs().max()), (i, error.item(), low.item())


def philox(counter, key, rounds=10):
    """Philox4x32 as in Salmon et al. 2011: words as uint64 arrays of one shape, key as two Python integers."""
    words = [np.asarray(word, dtype=np.uint64) for word in counter]
    low = np.uint64(0xFFFFFFFF)
    for i in range(rounds):
        keys = [np.uint64((k + i * w) % 2**32) for k, w in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ keys[0],
            second & low,
            (first >> np.uint64(32)) ^ words[3] ^ keys[1],
            first & low,
        ]
    return words


def words_of(seed, draw, sample_ids, n_positions, d, rounds=10):
    """Four words [N, T, d / 4] for N sample ids and positions 0 .. T - 1."""
    ids = np.asarray(sample_ids) % 2**32
    sample, position, block = np.meshgrid(ids, np.arange(n_positions), np.arange(d // 4), indexing="ij")
    return philox((block, position, sample, np.full_like(block, draw)), (seed % 2**32, seed >> 32), rounds)


def normal(*place):
    """Noise of a batch: [N, T, d] float64."""
    rows, words = [], words_of(*place)
    for a, b in ((words[0], words[1]), (words[2], words[3])):
        radius = np.sqrt(-2 * np.log(a.astype(np.float64) * 2.0**-32 + 2.0**-33))
        angle = np.pi * b.astype(np.uint32).view(np.int32).astype(np.float64) * 2.0**-31
        rows += [radius * np.cos(angle), radius * np.sin(angle)]
    return np.concatenate(rows, axis=-1)


def uniform(*place):
    """U[0, 1) in steps of 2^-24, [N, T, d], from the words that the Gaussian noise is made of."""
    return np.concatenate([(word >> np.uint64(8)).astype(np.float64) for word in words_of(*place)], -1) / 2**24


def perturb(embeddings, mu, logvar, mask, eps, alpha, mode):
    """(perturbed, kl) in float64 from eps: the paper's formulas with the ablations' substitutions."""
    mean = 0.0 if mode == "additive" else 1.0
    if mode in ("prior", "fixed_mu"):
        mu = np.full_like(embeddings, mean)
    if mode in ("prior", "no_eps"):
        logvar = np.full_like(embeddings, np.log(alpha))
    if mode == "fixed_sigma":
        logvar = np.zeros_like(embeddings)
    z = mu if mode == "no_eps" else mu + np.exp(logvar / 2) * eps
    perturbed = embeddings + z if mode == "additive" else embeddings * z
    kl = 0.5 * ((np.exp(logvar) + (mu - mean) ** 2) / alpha - 1 - np.log(np.exp(logvar) / alpha)).sum(-1)
    return np.where(mask[..., None], perturbed, 0), np.where(mask, kl, 0)
