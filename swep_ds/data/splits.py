"""Splits of the examples: seeded subsets, held-out articles, halves to choose by and to report, clusters."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from swep_ds.data.readers import Example
from swep_ds.errors import InputError

SAMPLE = "-ssmba"
ARTICLES = 20  # the fewest clusters to group questions by something coarser than their paragraphs
ALONE = 0.9  # the least share of texts in questions at which hardly any two share a text


def subset(examples: list[Example], fraction: float, limit: int | None, seed: int) -> list[Example]:
    """A seeded choice of `fraction` of the examples, at most `limit`, in their order.

    Choices of one seed are nested: the 10 % are among the 30 %.
    """
    size = max(1, round(len(examples) * fraction))
    chosen = np.random.default_rng([seed, len(examples)]).permutation(len(examples))[: min(size, limit or size)]
    return [examples[i] for i in np.sort(chosen)]


def sample_id(original: str, number: int) -> str:
    """The id of an augmented sample of the question `original`; `samples_of` reads it."""
    return f"{original}{SAMPLE}{number}"


def samples_of(originals: list[Example], augmented: list[Example]) -> list[Example]:
    """The augmented samples of these questions only, so that a subset gets no sample of other questions.
    Raises InputError: there is none."""
    ids = {example.id for example in originals}
    samples = [sample for sample in augmented if sample.id.rpartition(SAMPLE)[0] in ids]
    if not samples:
        raise InputError(
            f"data.augmented: none of its {len(augmented)} questions is a sample of a training question "
            f"({augmented[0].id!r} is not): make it from data.train with `swep-ds augment`"
        )
    return samples


def hold_out_articles(examples: list[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """Splits into (kept, held out): whole articles, chosen at random until they hold `fraction` of the questions.

    The split is by article, as paragraphs of one article share their answers. The choice does not depend on the seed
    of a run, so scores over seeds share one test set.

    Raises InputError: the examples have fewer than two articles.
    """
    counts = Counter(example.article for example in examples)
    articles = sorted(counts)
    if len(articles) < 2:
        raise InputError("data.holdout_fraction: the training data has a single article: give data.eval a test set")
    held: set[str] = set()
    for index in np.random.default_rng(0).permutation(len(articles))[:-1]:
        if sum(counts[article] for article in held) >= fraction * len(examples):
            break
        held.add(articles[index])
    kept = [example for example in examples if example.article not in held]
    return kept, [example for example in examples if example.article in held]


def clusters(examples: Sequence[Example]) -> np.ndarray:
    """The number from 0 of each question's cluster [N]. Questions of one cluster share answers, so that intervals and
    cross-validation keep them together.

    It is the article if there are at least `ARTICLES`, else the paragraph. If hardly any two questions share a
    paragraph, but the same questions are asked of many, it is the text of the question, if there are at least
    `ARTICLES` different ones: BioASQ's 1,504 are 224 questions about 1,490 texts.
    """
    articles, texts = [example.article for example in examples], [example.context for example in examples]
    names, questions = articles if len(set(articles)) >= ARTICLES else texts, [example.question for example in examples]
    if len(set(texts)) > ALONE * len(examples) and ARTICLES <= len(set(questions)) < len(set(names)):
        names = questions
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def halves(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Splits into (to select a checkpoint by, to report): about as many questions each, in their order.

    The split is by article, or by context if there is one article, as their questions share answers. Articles come in
    random order, each to the half that has fewer questions so far. The split does not depend on the seed of a run.

    Raises InputError: all questions are about one context.
    """
    shared = (lambda e: e.article) if len({e.article for e in examples}) > 1 else (lambda e: e.context)
    counts = Counter(map(shared, examples))
    if len(counts) < 2:
        raise InputError(
            "eval.select_on: all questions are about one text: name a data set that can be split in half (without one, "
            "the held-out articles choose when to decline a question: raise data.holdout_fraction)"
        )
    names, sizes, chosen = sorted(counts), [0, 0], {}
    for index in np.random.default_rng(0).permutation(len(names)):
        chosen[names[index]] = side = int(sizes[0] > sizes[1])
        sizes[side] += counts[names[index]]
    return tuple([e for e in examples if chosen[shared(e)] == side] for side in (0, 1))
