"""The scorer on cases worked out by hand from the rules, and against a second implementation without regex."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.data.answers import normalize_answer
from swep_ds.evaluation.scores import SQUAD

ASCII_PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
texts = st.text(alphabet=st.sampled_from("aAnthe THE catdog.,-_' \t\u2013\u201cé\u0130ß7\u00a0"), max_size=25)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The Cat", "cat"),
        ("  an   apple\tand\nthe pear ", "apple and pear"),
        ("theatre banana another A-level", "theatre banana another alevel"),  # articles only as whole words
        ("the-cat", "thecat"),  # punctuation goes first, so no article is left
        ("a.", ""),
        ("U.S.A.", "usa"),
        ("1990\u20131995", "1990\u20131995"),  # an en dash is not ASCII punctuation
        ("the\u2013cat", "\u2013cat"),  # but it does end the word "the"
        ("cat\u2013the\u2013dog", "cat\u2013 \u2013dog"),  # an article leaves a space behind
        ("\u201cCat\u201d \u00bf", "\u201ccat\u201d \u00bf"),
        ("STRASSE stra\u00dfe", "strasse stra\u00dfe"),  # lower(), not casefold()
        ("th\u00e9 the\u0301", "th\u00e9 \u0301"),  # \b sees a boundary before a combining accent
        ("10\u00a0km\u2003away", "10 km away"),
    ],
)
def test_normalize_answer(text, normalized):
    assert normalize_answer(text) == normalized


@pytest.mark.parametrize(
    ("prediction", "answers", "em", "best_f1"),
    [
        ("the cat", ["Cat!"], 1, 1),
        ("cats", ["cat"], 0, 0),
        ("the the cat cat", ["cat cat dog"], 0, 4 / 5),  # bags {cat 2} and {cat 2, dog 1}: 2/2 and 2/3
        ("red big dog", ["dog red"], 0, 4 / 5),  # order does not count for F1
        ("big dog", ["dog", "big", "big dog house"], 0, 4 / 5),  # the best of 2/3, 2/3, 4/5
        ("dog", ["cat", "the dog"], 1, 1),
        ("", [""], 1, 0),  # equal, but without a common token
        ("\u201ccat\u201d", ["cat"], 0, 0),
        ("1990 - 1995", ["1990-1995"], 0, 0),  # "1990 1995" against "19901995"
    ],
)
def test_exact_match_and_f1(prediction, answers, em, best_f1):
    assert SQUAD.exact_match(prediction, answers) == em
    assert SQUAD.f1(prediction, answers) == pytest.approx(best_f1, abs=1e-15)


def test_score_is_in_percent_of_all_questions_and_a_missing_prediction_scores_nothing():
    golds = {"1": ["the cat"], "2": ["dog"], "3": ["big red bus", "bus"], "4": ["tea"]}
    predictions = {"1": "Cat", "3": "red bus", "4": "coffee", "unknown": "tea"}
    # EM 1 + 0 + 0 + 0; F1 1 + 0 + 4/5 (2/2 and 2/3) + 0
    assert SQUAD.score(predictions, golds) == {"exact_match": 25.0, "f1": pytest.approx(45.0), "total": 4}
    # an empty prediction is right where the answer normalises to nothing, and a missing one is not
    golds = {"1": ["the"], "2": ["dog"]}
    assert SQUAD.score({"1": ""}, golds)["exact_match"] == 50.0
    assert SQUAD.score({}, golds) == {"exact_match": 0.0, "f1": 0.0, "total": 2}


def normalize_by_hand(text: str) -> str:
    """The rule again, over runs of word characters instead of a regular expression."""
    kept = [c for c in text.lower() if c not in ASCII_PUNCTUATION]
    runs = ("".join(run) for _, run in groupby(kept, key=str.isalnum))
    return " ".join("".join(" " if run in ("a", "an", "the") else run for run in runs).split())


def f1_by_hand(prediction: str, answer: str) -> float:
    predicted, left = normalize_by_hand(prediction).split(), normalize_by_hand(answer).split()
    total, same = len(predicted) + len(left), 0
    for token in predicted:
        if token in left:
            left.remove(token)
            same += 1
    return 2 * same / total if same else 0.0


@given(texts, st.lists(texts, min_size=1, max_size=3))
def test_normalisation_f1_and_exact_match_equal_the_rule(prediction, answers):
    assert normalize_answer(prediction) == normalize_by_hand(prediction)
    assert SQUAD.f1(prediction, answers) == pytest.approx(max(f1_by_hand(prediction, answer) for answer in answers))
    assert SQUAD.exact_match(prediction, answers) == float(
        normalize_by_hand(prediction) in {normalize_by_hand(answer) for answer in answers}
    )
