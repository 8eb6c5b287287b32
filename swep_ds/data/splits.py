"""Which examples a run trains on and tests on: seeded subsets, held-out articles, halves for choosing and reporting."""

from collections import Counter

import numpy as np

from swep_ds.data.readers import Example
from swep_ds.errors import InputError

SAMPLE = "-ssmba"


def subset(examples: list[Example], fraction: float, limit: int | None, seed: int) -> list[Example]:
    """A seeded choice of `fraction` of the examples, at most `limit`, in their order.

    Nested: for one seed, the 10 % are among the 30 %.
    """
    size = max(1, round(len(examples) * fraction))
    chosen = np.random.default_rng([seed, len(examples)]).permutation(len(examples))[: min(size, limit or size)]
    return [examples[i] for i in np.sort(chosen)]


def sample_id(original: str, number: int) -> str:
    """The id of an augmented sample of the question `original`; `samples_of` reads it."""
    return f"{original}{SAMPLE}{number}"


def samples_of(originals: list[Example], augmented: list[Example]) -> list[Example]:
    """The augmented samples of these questions and of no others, so that nothing from outside a subset comes in.

    Raises:
        InputError: there is none.
    """
    ids = {example.id for example in originals}
    found = [sample for sample in augmented if sample.id.rpartition(SAMPLE)[0] in ids]
    if not found:
        raise InputError(
            f"data.augmented: none of its {len(augmented)} questions is a sample of a training question "
            f"({augmented[0].id!r} is not): make it from data.train with scripts/augment.py"
        )
    return found


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


def halves(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """(to choose a checkpoint by, to report): about as many questions each, in their order.

    By article, or by context where all are of one article: what shares its answers stays on one side. Articles come
    in random order, each to the half that has fewer questions by then. The same for every seed of a run.

    Raises:
        InputError: all questions are about one context.
    """
    shared = (lambda e: e.article) if len({e.article for e in examples}) > 1 else (lambda e: e.context)
    counts = Counter(map(shared, examples))
    if len(counts) < 2:
        raise InputError("eval.select_on: all questions are about one text: name a data set that can be split in half")
    names, sizes, chosen = sorted(counts), [0, 0], {}
    for index in np.random.default_rng(0).permutation(len(names)):
        chosen[names[index]] = side = int(sizes[0] > sizes[1])
        sizes[side] += counts[names[index]]
    return tuple([e for e in examples if chosen[shared(e)] == side] for side in (0, 1))
