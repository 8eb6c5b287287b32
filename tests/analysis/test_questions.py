"""Scores question by question, and which questions belong together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.analysis.questions import Questions, note_on_shared_ids, per_question
from swep_ds.data.answers import normalize_answer
from swep_ds.data.example import Example

ids = st.text("abcdé 0", min_size=1, max_size=3)


@given(st.dictionaries(ids, st.tuples(st.sampled_from("bcd"), st.booleans()), min_size=1), st.randoms())
def test_questions_are_aligned_by_id_whatever_the_order_of_the_predictions(asked, rng):
    golds = dict.fromkeys(asked, ("b",))
    given_answers = [(id_, answer) for id_, (answer, answered) in asked.items() if answered]
    rng.shuffle(given_answers)
    scores = per_question({**dict(given_answers), "of another set": "b"}, golds)
    expected = [100.0 * (answered and answer == "b") for answer, answered in asked.values()]
    assert list(scores.index) == list(golds)
    assert scores.to_numpy().tolist() == [[score, score] for score in expected]


def test_per_question_scores_are_percent_of_em_and_f1():
    scores = per_question({"1": "the red cat", "2": "no"}, {"2": ["yes"], "1": ["red", "red dog"]})
    assert scores.to_numpy() == pytest.approx(np.array([[0, 0], [0, 200 / 3]]))


def test_golds_are_normalised_once_for_all_runs():
    golds = {str(number): ("gold", f"gold {number}") for number in range(20)}
    normalize_answer.cache_clear()
    for answer in ("gold", "other", "third"):
        per_question(dict.fromkeys(golds, answer), golds)
    assert normalize_answer.cache_info().misses == 1 + 20 + 2


def test_questions_belong_to_their_article_if_there_are_20_and_to_their_paragraph_if_not():
    def clusters(articles: int) -> list[int]:
        examples = [
            Example(f"{a}.{p}.{q}", "?", f"paragraph {p} of {a}", ("x",), None, f"article {a}")
            for a in range(articles)
            for p in range(2)
            for q in range(3)
        ]
        return Questions.of(examples).clusters.tolist()

    assert clusters(20) == [number for number in range(20) for _ in range(6)]
    assert clusters(19) == [number for number in range(38) for _ in range(3)]


def test_sets_that_share_most_of_their_questions_are_named():
    ids = {"de": ["a", "b", "c"], "other": ["c", "x", "y", "z"], "es": ["b", "c", "d", "e", "f"], "none": []}
    [note] = note_on_shared_ids(ids)
    assert note.startswith("de, es share question ids. ")
    assert note_on_shared_ids({name: ids[name] for name in ("de", "other", "none")}) == []
