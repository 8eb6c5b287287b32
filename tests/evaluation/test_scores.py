"""The scorers of SQuAD v1.1, v2.0 and MLQA: cases worked out by hand, and the rules written down a second time."""

import math
import re
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swep_ds.data.answers import normalize_answer
from swep_ds.evaluation.scores import METRICS, Scorer
from swep_ds.evaluation.scoring_rules import LANGUAGES, normalize_mlqa

ASCII_PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
texts = st.text(alphabet=st.sampled_from("aAnthe THE catdog.,-_' \t\u2013\u201cé\u0130ß7\u00a0"), max_size=25)


ARTICLES = {
    "en": ["a", "an", "the"],
    "es": ["un", "una", "unos", "unas", "el", "la", "los", "las"],
    "vi": ["của", "là", "cái", "chiếc", "những"],
    "de": ["ein", "eine", "einen", "einem", "eines", "einer", "der", "die", "das", "den", "dem", "des"],
    "ca": ["un", "una", "uns", "unes", "el", "la", "els", "les"],
    "fr": ["le", "la", "les", "un", "une", "des"],
    "it": ["il", "lo", "la", "i", "gli", "le", "un", "uno", "una"],
    "pt": ["o", "a", "os", "as", "um", "uma", "uns", "umas"],
}


def normalize_by_hand(text: str, punctuation: set[str] = ASCII_PUNCTUATION, language: str = "en") -> str:
    """The rule again, over characters: punctuation, articles among runs of word characters, then tokens."""
    text = "".join(c for c in text.lower() if c not in punctuation)
    if language in ARTICLES:
        runs = re.findall(r"\w+|\W+", text)
        text = "".join(" " if run in ARTICLES[language] else run for run in runs)
    if language == "ar":
        text = " ".join(text.split("ال"))
    tokens, token = [], ""
    for c in text:
        if language == "zh" and "\u4e00" <= c <= "\u9fa5":
            tokens, token = [*tokens, *token.split(), c], ""
        else:
            token += c
    return " ".join([*tokens, *token.split()])


def f1_by_hand(prediction: str, answer: str) -> float:
    predicted, left = normalize_by_hand(prediction).split(), normalize_by_hand(answer).split()
    total, same = len(predicted) + len(left), 0
    for token in predicted:
        if token in left:
            left.remove(token)
            same += 1
    return 2 * same / total if same else 0.0


@given(texts, st.lists(texts, min_size=1, max_size=3))
@example("the the cat cat", ["Cat! cat dog"])
@example("big dog", ["dog", "big", "big dog house"])
@example("", [""])  # equal, but without a common token
def test_normalisation_f1_and_exact_match_equal_the_rule(prediction, answers):
    assert normalize_answer(prediction) == normalize_by_hand(prediction)
    assert Scorer().f1(prediction, answers) == pytest.approx(max(f1_by_hand(prediction, answer) for answer in answers))
    equal = normalize_by_hand(prediction) in map(normalize_by_hand, answers)
    assert Scorer().exact_match(prediction, answers) == float(equal)


# v2.0

short_texts = st.text(alphabet=st.sampled_from("aAnthe THE cat.,-'\t–“é7"), max_size=12)
golds = st.dictionaries(st.sampled_from("abcdefgh"), st.lists(short_texts, max_size=3), min_size=1)


def v2_by_hand(prediction: str, answers: list[str]) -> tuple[float, float]:
    """The v2.0 scorer for one question, over the two normalised texts."""
    left, best = normalize_by_hand(prediction), [0.0, 0.0]
    for answer in [a for a in answers if normalize_by_hand(a)] or [""]:
        right = normalize_by_hand(answer)
        both = bool(left) and bool(right)
        best[0] = max(best[0], float(left == right))
        best[1] = max(best[1], f1_by_hand(prediction, answer) if both else float(left == right))
    return best[0], best[1]


def official_threshold(predictions, scores, odds, answered) -> tuple[float, float]:
    """`find_best_thresh` of the official scorer of SQuAD v2.0: the best score in percent, and its threshold."""
    best = current = sum(not answered[id_] for id_ in scores)
    threshold = 0.0
    for id_ in sorted(odds, key=lambda id_: odds[id_]):
        if answered[id_]:
            current += scores[id_]
        elif predictions[id_]:
            current -= 1
        if current > best:
            best, threshold = current, odds[id_]
    return 100.0 * best / len(scores), threshold


def declined_by_hand(threshold, scores, accepted, odds) -> float:
    """The sum of scores where every question whose odds are above the threshold is declined."""
    return sum(float(not accepted[id_]) if odds[id_] > threshold else value for id_, value in scores.items())


@given(golds, st.data())
def test_squad_v2(accepted, data):
    accepted = {**accepted, "none": []}
    predictions = {id_: data.draw(short_texts) for id_ in accepted}
    by_hand = {id_: v2_by_hand(predictions[id_], answers) for id_, answers in accepted.items()}
    scorer = Scorer()
    assert scorer.by_question(predictions, accepted) == {id_: pytest.approx(pair) for id_, pair in by_hand.items()}
    scores = scorer.score(predictions, accepted)
    answered = [id_ for id_ in accepted if accepted[id_]]
    declined = [id_ for id_ in accepted if not accepted[id_]]
    for part, ids in (("", list(accepted)), ("has_answer_", answered), ("no_answer_", declined)):
        assert scores.get(f"{part}total", 0) == len(ids)
        for number, name in enumerate(METRICS if ids else ()):
            expected = 100 * sum(by_hand[i][number] for i in ids) / len(ids)
            assert scores[part + name] == pytest.approx(expected)
    tied = {id_: data.draw(st.sampled_from([-1.0, 0.5, 2.0])) for id_ in accepted}
    reachable = scorer.best_thresholds(predictions, accepted, tied, reachable=True)
    official = scorer.best_thresholds(predictions, accepted, tied)
    for number, name in enumerate(METRICS):
        values = {id_: pair[number] for id_, pair in by_hand.items()}
        # the scorer takes an unanswerable question for lost if its prediction is not "", even if it normalises to that
        values |= {id_: float(not predictions[id_]) for id_ in declined}
        none = math.nextafter(min(tied.values()), -math.inf)
        sums = {t: declined_by_hand(t, values, accepted, tied) for t in (none, *tied.values())}
        assert reachable[f"best_{name}"] == pytest.approx(100 * max(sums.values()) / len(accepted))
        assert sums[reachable[f"best_{name}_threshold"]] == pytest.approx(max(sums.values()))
        scores = {id_: pair[number] for id_, pair in scorer.by_question(predictions, accepted).items()}
        expected = official_threshold(predictions, scores, tied, accepted)  # which may be of a place between equal odds
        assert (official[f"best_{name}"], official[f"best_{name}_threshold"]) == expected


def test_where_every_question_has_an_answer_the_rules_of_v1_hold():
    scorer = Scorer()
    # an empty prediction is right where the answer normalises to nothing; others do not count
    assert scorer.score({"1": "", "3": "x"}, {"1": ["the"], "2": ["x"]}) == {"exact_match": 50.0, "f1": 0.0, "total": 2}
    assert scorer.score({}, {"1": ["the"]}) == {"exact_match": 0.0, "f1": 0.0, "total": 1}
    assert scorer.score({"1": "", "2": "x"}, {"1": ["the"], "2": []})["f1"] == 50.0
    assert (scorer.name({"1": ["a"]}), scorer.name({"1": []})) == ("SQuAD v1.1", "SQuAD v2.0")
    assert (Scorer("mlqa de").name({"1": ["a"]}), Scorer("mlqa de").name({"1": []})) == ("MLQA (de)", "MLQA (de), v2.0")


# MLQA

PUNCTUATION = {chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)).startswith("P")}
PUNCTUATION |= ASCII_PUNCTUATION
multilingual = st.text(
    alphabet=st.sampled_from("aThe lEinDasdie launo. ,«»¿–。，、上海市7 الكتابالهिन्दी।của làcái\u3000\u00a0'ß"),
    max_size=14,
)


@given(multilingual, st.sampled_from(LANGUAGES))
@example("在2008年、the", "zh")
@example("Die Straße, des  Königs", "de")
@example("The “cat”", "en")  # SQuAD's rules keep these marks
@example("5 $ <b> | ~c", "es")  # symbols to Unicode, and ASCII punctuation
@example("L'home i els gats", "ca")
@example("le chat, des amis", "fr")
@example("gli amici e il mare", "it")
@example("as praias e um rio", "pt")
@example("كتالب", "ar")  # the article's letters inside a word go, too
def test_mlqa_normalisation(text, language):
    assert normalize_mlqa(text, language) == normalize_by_hand(text, PUNCTUATION, language)


def test_f1_counts_chinese_characters():
    assert Scorer("mlqa zh").f1("上海市", ["上海"]) == pytest.approx(4 / 5)
    assert Scorer().f1("上海市", ["上海"]) == 0.0
