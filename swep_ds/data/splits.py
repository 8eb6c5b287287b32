"""Which examples a run trains on and tests on: seeded subsets, and articles held out of the training data."""

import numpy as np

from swep_ds.data.readers import Example
from swep_ds.errors import InputError


def subset(examples: list[Example], fraction: float, limit: int | None, seed: int) -> list[Example]:
    """A seeded choice of `fraction` of the examples, at most `limit`, in their order.

    Nested: for one seed, the 10 % are among the 30 %.
    """
    size = max(1, round(len(examples) * fraction))
    chosen = np.random.default_rng([seed, len(examples)]).permutation(len(examples))[: min(size, limit or size)]
    return [examples[i] for i in np.sort(chosen)]


def hold_out_articles(examples: list[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """(kept, held out): whole articles, chosen at random until they hold `fraction` of the questions.

    By article and never by question: paragraphs of one article share their answers. The choice is the same for
    every seed of a run, so that scores over seeds are of one test set.

    Raises:
        InputError: fewer than two articles.
    """
    articles = sorted({example.article for example in examples})
    if len(articles) < 2:
        raise InputError("data.holdout_fraction: the training data has a single article: give data.eval a test set")
    counts = dict.fromkeys(articles, 0)
    for example in examples:
        counts[example.article] += 1
    held: set[str] = set()
    for index in np.random.default_rng(0).permutation(len(articles))[:-1]:
        if sum(counts[a] for a in held) >= fraction * len(examples):
            break
        held.add(articles[index])
    kept = [example for example in examples if example.article not in held]
    return kept, [example for example in examples if example.article in held]
