from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example as given_example
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.data.example import Example
from swep_ds.data.splits import (
    MIN_ARTICLES,
    MIN_RECURRING,
    clusters,
    effective_clusters,
    halves,
    hold_out_articles,
    samples_of,
    subset,
)
from tests.support import bad_input


def questions(articles: list[str]) -> list[Example]:
    return [Example(f"q{i}", "?", f"c {article}", ("a",), (0, 1), article) for i, article in enumerate(articles)]


def ids(examples: list[Example]) -> list[str]:
    return [example.id for example in examples]


@given(st.integers(1, 200), st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)), st.integers(0, 2**63 - 1))
def test_a_smaller_subset_is_inside_a_larger_one(n, fractions, seed):
    examples = questions(["t"] * n)
    small, large = (subset(examples, fraction, None, seed) for fraction in sorted(fractions))
    assert set(ids(small)) <= set(ids(large))
    assert len(large) == max(1, round(n * max(fractions)))
    assert ids(large) == sorted(ids(large), key=ids(examples).index)  # in their order
    assert subset(examples, max(fractions), 10, seed) == subset(examples, 1.0, min(10, len(large)), seed)


def test_samples_are_those_of_the_subset_only():
    examples = [replace(e, id=f"q{i}-ssmba1") for i, e in enumerate(questions(["t"] * 30))]  # even of samples
    samples = [replace(e, id=f"{e.id}-ssmba{k}", question=f"{k}?") for e in examples for k in range(3)]
    chosen = subset(examples, 0.4, None, 1)
    assert ids(samples_of(chosen, samples)) == [f"{e.id}-ssmba{k}" for e in chosen for k in (0, 1, 2)]
    assert len({tuple(ids(subset(examples, 0.4, None, seed))) for seed in range(5)}) == 5


def test_samples_of_other_data_are_refused():
    """Rows without ids are numbered: in another version of a file their numbers are those of other questions."""
    originals = questions(["t"] * 3)
    others = [replace(e, id=f"x{e.id}-ssmba0") for e in originals]
    for augmented in (others, originals):  # the second: no samples
        said = bad_input.refused(samples_of, originals, augmented)
        assert said.startswith("data.augmented: none of its 3 questions is a sample")
    samples = [replace(e, id=f"{e.id}-ssmba0") for e in originals]
    said = bad_input.refused(samples_of, [replace(e, context="xyz", answers=("x",)) for e in originals], samples)
    assert said.startswith("data.augmented: 'q0-ssmba0' has the answer 'c', and 'q0' of the training")


def split_apart(split, examples: list[Example], *fields: str) -> tuple[list[Example], list[Example]]:
    """The two sides, which share no value of these fields, and are the same whatever the order of the examples."""
    first, second = split(examples)
    assert first
    assert second
    assert sorted(ids(first) + ids(second)) == sorted(ids(examples))
    for side in (first, second):
        assert ids(side) == sorted(ids(side), key=ids(examples).index)
    for field in fields:
        assert not {getattr(e, field) for e in first} & {getattr(e, field) for e in second}
    assert {*ids(split(examples[::-1])[0])} == {*ids(first)}
    return first, second


@given(st.lists(st.sampled_from("abcdef"), min_size=2).filter(lambda names: len(set(names)) > 1), st.floats(0.01, 0.99))
@given_example(["a", *["b"] * 3, *["c"] * 12], 0.125)  # with "b" exactly twice the share
def test_articles_are_held_out_and_halved_whole(articles, fraction):
    examples = questions(articles)
    kept, held = split_apart(partial(hold_out_articles, fraction=fraction), examples, "article")
    # as much as asked for and not one article more, unless what is left is too large or all there is to train on
    counts, aim = Counter(articles), fraction * len(examples)
    if len(held) < aim and len({e.article for e in kept}) > 1:
        assert min(counts[e.article] for e in kept) + len(held) > 2 * aim
    assert len(held) - max(counts[e.article] for e in held) < aim
    first, second = split_apart(halves, examples, "article")
    assert abs(len(first) - len(second)) <= max(counts.values())


def test_articles_are_drawn_in_one_random_order_that_no_release_changes():
    names = [f"{number:02}" for number in range(40)]
    drawn = [names[number] for number in np.random.default_rng(0).permutation(40)]
    assert {e.article for e in hold_out_articles(questions(names), 0.1)[1]} == set(drawn[:4])
    assert {e.article for e in halves(questions(names))[0]} == set(drawn[::2])


def test_an_article_that_is_much_too_large_is_kept():
    sizes = {"a": 10, "b": 10, "c": 1000, "d": 10, "e": 10}
    examples = questions([name for name, size in sizes.items() for _ in range(size)])
    assert len(hold_out_articles(examples, 0.1)[0]) == 1000
    two_articles = questions(["a"] * 60 + ["b"] * 40)
    assert {e.article for e in hold_out_articles(two_articles, 0.1)[1]} == {"b"}


def test_a_single_article_is_halved_by_context_but_not_a_single_text():
    examples = [Example(f"q{i}", "?", f"context {i // 3}", ("a",), None, "t") for i in range(12)]
    first, second = split_apart(halves, examples, "context")
    assert len(first) == len(second) == 6
    assert "holdout_fraction: the training data has a single" in bad_input.refused(hold_out_articles, examples, 0.2)
    assert "all questions are about one text" in bad_input.refused(halves, examples[:3])


BOTH = (halves, partial(hold_out_articles, fraction=0.3))


def test_a_text_that_is_in_two_articles_is_on_one_side():
    """Rows of a table that gives a title only in the first row of each text; and three articles in a row, each of which
    shares a text with the next."""
    pairs = [(name, text) for text in ("aa", "bb", "cc") for name in (f"title {text}", text)]
    pairs += [("x", "x"), ("y", "x"), ("y", "y"), ("z", "y"), ("z", "z")]
    examples = [Example(f"q{i}", f"{i}?", text, ("a",), None, name) for i, (name, text) in enumerate(pairs)]
    for split in BOTH:
        split_apart(split, examples, "context", "article")


def test_a_question_that_is_asked_of_many_texts_is_on_one_side():
    """The texts of BioASQ's and TriviaQA's questions differ, their answers do not. Some share a text."""
    asked = 2 * MIN_RECURRING
    texts = [f"text {i - i % 20 if i % 20 == 1 else i}" for i in range(400)]
    examples = [Example(f"q{i}", f"{i % asked}?", text, ("a",), None, text) for i, text in enumerate(texts)]
    for split in BOTH:
        split_apart(split, examples, "question", "context", "article")


def test_questions_that_tie_most_texts_to_each_other_do_not_decide_the_split():
    asked = [f"{min(i % 60, MIN_RECURRING)}?" for i in range(300)]
    examples = [Example(f"q{i}", text, f"text {i}", ("a",), None, f"text {i}") for i, text in enumerate(asked)]
    first, second = halves(examples)
    assert len(first) == len(second) == 150


@pytest.mark.parametrize(
    ("asked", "texts", "by"),
    [
        (MIN_RECURRING, 5 * MIN_ARTICLES - 1, "question"),  # the same questions of many texts, as in BioASQ
        (MIN_RECURRING - 1, 5 * MIN_ARTICLES - 1, "context"),
        (5 * MIN_ARTICLES, MIN_ARTICLES + 1, "context"),
        (MIN_RECURRING, 2 * MIN_ARTICLES + 1, "context"),  # the same questions of each text, as in CUAD
        (5 * MIN_ARTICLES, 5 * MIN_ARTICLES, "context"),
    ],
)
def test_questions_that_recur_are_the_clusters(asked, texts, by):
    rows = [(f"question {i % asked}", f"text {i % texts}") for i in range(5 * MIN_ARTICLES)]
    examples = [Example(f"q{i}", question, text, ("a",), None, text) for i, (question, text) in enumerate(rows)]
    names = [getattr(example, by) for example in examples]
    expected = [list(dict.fromkeys(names)).index(name) for name in names]
    assert clusters(examples).tolist() == expected
    if by == "question":  # whatever articles the texts are in
        titled = [replace(example, article=f"article {i // 2}") for i, example in enumerate(examples)]
        assert clusters(titled).tolist() == expected


def test_clusters_of_unequal_sizes_count_for_fewer():
    assert effective_clusters(np.repeat([0, 1, 2], 3)) == 3
    assert effective_clusters(np.array([0, 0, 0, 0, 1])) == pytest.approx(25 / 17)
