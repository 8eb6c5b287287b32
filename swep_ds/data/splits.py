"""Splits of the examples: seeded subsets, held-out articles, halves to choose by and to report, clusters."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import scipy  # whose parts are imported when they are used: 0.5 s that a check of settings need not wait for

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example

SAMPLE_SUFFIX = "-ssmba"  # in the id of an augmented sample, between the id of its question and its number
MIN_ARTICLES = 20  # the fewest articles at which questions are grouped by article
MIN_RECURRING = 20  # the fewest different questions at which questions are grouped by their wording
MIN_TEXTS_PER_QUESTION = 0.9  # above this many texts per question hardly any two questions share a text


def subset(examples: list[Example], fraction: float, limit: int | None, seed: int) -> list[Example]:
    """A seeded choice of `fraction` of the examples, at most `limit`, in their order. Choices of one seed are nested:
    the 10 % are among the 30 %."""
    size = max(1, round(len(examples) * fraction))
    chosen = np.random.default_rng([seed, len(examples)]).permutation(len(examples))[: min(size, limit or size)]
    return [examples[i] for i in np.sort(chosen)]


def texts(examples: list[Example]) -> set[str]:
    """Their contexts, and the names of their articles."""
    return {example.context for example in examples} | {example.article for example in examples}


def samples_of(originals: list[Example], augmented: list[Example]) -> list[Example]:
    """The augmented samples of these questions only. Raises InputError: there is none, or one has another answer than
    its question: it was made from other data, and may hold the text of held-out articles."""
    fix = "make it from this data.train with `swep-ds augment`"
    by_id = {example.id: example for example in originals}
    samples = []
    for sample in augmented:
        original = by_id.get(sample.id.rpartition(SAMPLE_SUFFIX)[0])
        if original is None:
            continue
        wanted = original.span and original.context[slice(*original.span)]
        given = sample.span and sample.context[slice(*sample.span)]
        if wanted != given:
            raise InputError(
                f"data.augmented: {sample.id!r} has the answer {given!r:.80}, and {original.id!r} of the training data "
                f"{wanted!r:.80}: {fix}"
            )
        samples.append(sample)
    if not samples:
        raise InputError(f"data.augmented: none of its {len(augmented)} questions is a sample of data.train's: {fix}")
    return samples


def hold_out_articles(examples: list[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """Splits into (kept, held out): whole articles (`_inseparable`), chosen at random until they hold `fraction` of the
    questions, whatever the seed of a run. An article that would bring the share above twice the fraction is kept,
    unless all would. Raises InputError: the examples have fewer than two articles."""
    groups, sizes = _inseparable(examples, least_articles=1)
    if len(sizes) < 2:
        raise InputError("data.holdout_fraction: the training data has a single article: give data.eval a test set")
    held: set[str] = set()
    questions = 0
    aim = fraction * len(examples)
    for name, size in sizes.items():
        if questions < aim and len(held) < len(sizes) - 1 and questions + size <= 2 * aim:
            held.add(name)
            questions += size
    if not held:
        held.add(min(sizes, key=lambda name: (sizes[name], name)))
    return _divided(examples, groups, held)


def hold_out_again(examples: list[Example], was_held_out_Q: np.ndarray) -> tuple[list[Example], list[Example]]:
    """The examples of no group (`_inseparable`) with a question that was held out before, and those questions. New ones
    of such a group are in neither: they would change the test set, and their text was kept from training."""
    groups, _ = _inseparable(examples, least_articles=1)
    held_out = np.flatnonzero(was_held_out_Q)
    kept, _ = _divided(examples, groups, {groups[number] for number in held_out})
    return kept, [examples[number] for number in held_out]


def halves(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Splits into two halves of about equal size: one to select a checkpoint by, one to report. Each group of
    `_inseparable` goes to the half that has fewer questions so far, whatever the seed of a run. Raises InputError: all
    questions are about one context."""
    groups, sizes = _inseparable(examples, least_articles=2)
    if len(sizes) < 2:
        raise InputError(
            "all questions are about one text, which one half of them should not share with the other: raise "
            "data.holdout_fraction, or name another data set in eval.select_on"
        )
    second: set[str] = set()
    excess = 0  # questions that the first half has more than the second
    for name, size in sizes.items():
        if excess > 0:
            second.add(name)
            excess -= size
        else:
            excess += size
    return _divided(examples, groups, second)


def _divided(examples: list[Example], groups: list[str], second: set[str]) -> tuple[list[Example], list[Example]]:
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example, group in zip(examples, groups, strict=True):
        sides[group in second].append(example)
    return sides


def _sources(examples: Sequence[Example], least_articles: int) -> list[str]:
    """The article of each question if there are at least so many, else its paragraph."""
    articles = [example.article for example in examples]
    if len(set(articles)) >= least_articles:
        return articles
    return [example.context for example in examples]


def _recur(examples: Sequence[Example], sources: Sequence[str]) -> bool:
    """Whether hardly any two questions share a paragraph, but many paragraphs share a question: BioASQ's 1,504 are 224
    questions about 1,490 texts."""
    texts = {example.context for example in examples}
    questions = {example.question for example in examples}
    return len(texts) > MIN_TEXTS_PER_QUESTION * len(examples) and MIN_RECURRING <= len(questions) < len(set(sources))


def _inseparable(examples: Sequence[Example], least_articles: int) -> tuple[list[str], dict[str, int]]:
    """A name for each question's group, whose questions a split must keep on one side; and the number of questions of
    each group, in an order that is random and always the same.

    They have the article or, with fewer articles than `least_articles`, the paragraph in common; a paragraph that is
    in two articles ties both. Where questions recur (`_recur`), those with the same text belong together as well,
    unless that ties most of the examples to each other."""
    sources = _sources(examples, least_articles)
    columns = [sources, [example.context for example in examples]]
    group_N = _tied(*columns)
    if _recur(examples, sources):
        with_questions_N = _tied(*columns, [example.question for example in examples])
        if 2 * np.bincount(with_questions_N).max() <= len(examples):
            group_N = with_questions_N
    # a group's least name does not depend on the order of the examples
    least = dict(sorted(zip(group_N.tolist(), sources, strict=True), reverse=True))  # by group: the last is the least
    groups = [least[group] for group in group_N.tolist()]
    counts = Counter(groups)
    names = sorted(counts)
    return groups, {names[number]: counts[names[number]] for number in np.random.default_rng(0).permutation(len(names))}


def _tied(*columns: Sequence[str]) -> np.ndarray:
    """The number of each row's group [N]: rows with the same name in a column share one."""
    nodes = _numbers([(place, name) for place, column in enumerate(columns) for name in column])
    first, *others = nodes.reshape(len(columns), -1)
    size = nodes.max() + 1
    ends = (np.tile(first, len(others)), np.concatenate(others))
    ties = scipy.sparse.coo_array((np.ones(len(ends[0])), ends), (size, size))
    return scipy.sparse.csgraph.connected_components(ties, directed=False)[1][first]


def _numbers(names: Sequence[Hashable]) -> np.ndarray:
    """The number of each name [N], from 0 on in the order in which names first occur."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names])


def clusters(examples: Sequence[Example]) -> np.ndarray:
    """The number from 0 of each question's cluster [N]. Questions of one cluster share answers, so that intervals and
    cross-validation keep them together: those of an article if there are at least `MIN_ARTICLES`, else of a paragraph,
    or where questions recur (`_recur`) those with the same text."""
    names = _sources(examples, MIN_ARTICLES)
    if _recur(examples, names):
        names = [example.question for example in examples]
    return _numbers(names)


def effective_clusters(clusters_N: np.ndarray) -> float:
    """Q^2 / sum of squared cluster sizes, for Q questions: the number of clusters if all have one size."""
    return len(clusters_N) ** 2 / np.square(np.bincount(clusters_N)).sum()
