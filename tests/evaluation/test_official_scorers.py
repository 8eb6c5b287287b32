"""SQuAD v2.0's and MLQA's scorers against their rules written down a second time, over adversarial texts."""

import re
import string
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.evaluation.mlqa import LANGUAGES, normalize_mlqa
from swep_ds.evaluation.scores import SQUAD, Scorer
from tests.evaluation.test_scores import f1_by_hand, normalize_by_hand

texts = st.text(alphabet=st.sampled_from("aAnthe THE cat.,-'\t–“é7"), max_size=12)
golds = st.dictionaries(st.sampled_from("abcdefgh"), st.lists(texts, max_size=3), min_size=1)


def v2_by_hand(prediction: str, answers: list[str]) -> tuple[float, float]:
    """The v2.0 scorer for one question, over the two normalised texts."""
    left, best = normalize_by_hand(prediction), [0.0, 0.0]
    for answer in [a for a in answers if normalize_by_hand(a)] or [""]:
        right = normalize_by_hand(answer)
        both = bool(left) and bool(right)
        best[0] = max(best[0], float(left == right))
        best[1] = max(best[1], f1_by_hand(prediction, answer) if both else float(left == right))
    return best[0], best[1]


def declined_by_hand(threshold, scores, accepted, odds) -> float:
    """The sum of scores where every question whose odds are above the threshold is declined."""
    return sum(float(not accepted[id_]) if odds[id_] > threshold else value for id_, value in scores.items())


@given(golds, st.data())
def test_squad_v2(accepted, data):
    accepted = {**accepted, "none": []}
    predictions = {id_: data.draw(texts) for id_ in accepted}
    odds = dict(
        zip(accepted, data.draw(st.permutations([-3.0, -1.5, 0.0, 0.25, 1.0, 2.0, 5.0, 7.0, 9.0])), strict=False)
    )
    by_hand = {id_: v2_by_hand(predictions[id_], answers) for id_, answers in accepted.items()}
    scorer = Scorer()
    assert scorer.by_question(predictions, accepted) == {id_: pytest.approx(pair) for id_, pair in by_hand.items()}
    scores = scorer.score(predictions, accepted)
    for part, ids in (("", accepted), ("has_answer_", [i for i in accepted if accepted[i]]), ("no_answer_", None)):
        ids = [i for i in accepted if not accepted[i]] if ids is None else list(ids)
        if not ids:
            assert f"{part}f1" not in scores
            continue
        assert scores[f"{part}total"] == len(ids)
        for number, name in enumerate(("exact_match", "f1")):
            expected = 100 * sum(by_hand[i][number] for i in ids) / len(ids)
            assert scores[part + name] == pytest.approx(expected)
    tied = {id_: data.draw(st.sampled_from([-1.0, 2.0])) for id_ in accepted}
    for number, name in enumerate(("exact_match", "f1")):
        values = {i: pair[number] if accepted[i] else float(not predictions[i]) for i, pair in by_hand.items()}
        sums = {t: declined_by_hand(t, values, accepted, tied) for t in (-99.0, -1.0, 2.0)}
        best = scorer.best_thresholds(predictions, accepted, tied, -99.0, reachable=True)
        assert best[f"best_{name}"] == pytest.approx(100 * max(sums.values()) / len(accepted))
        assert sums[best[f"best_{name}_threshold"]] == pytest.approx(max(sums.values()))
    best = scorer.best_thresholds(predictions, accepted, odds)
    for number, name in enumerate(("exact_match", "f1")):
        values = {i: pair[number] for i, pair in by_hand.items()}
        # the scorer takes an unanswerable question for lost if its prediction is not "", even if it normalises to that
        values |= {i: float(not predictions[i]) for i in accepted if not accepted[i]}
        sums = {t: declined_by_hand(t, values, accepted, odds) for t in (-99.0, *odds.values())}
        highest = max(sums.values())
        assert best[f"best_{name}"] == pytest.approx(100 * highest / len(accepted))
        threshold = best[f"best_{name}_threshold"]
        if highest > sums[-99.0] + 1e-9:
            assert sums[threshold] == pytest.approx(highest)
        elif highest == sums[-99.0]:
            assert threshold == 0.0 or sums[threshold] == pytest.approx(highest)


def test_where_every_question_has_an_answer_the_rules_of_v1_hold():
    assert SQUAD.score({"1": ""}, {"1": ["the"]}) == {"exact_match": 100.0, "f1": 0.0, "total": 1}
    assert SQUAD.score({"1": "", "2": "x"}, {"1": ["the"], "2": []})["f1"] == 50.0
    assert (Scorer().name({"1": ["a"]}), Scorer().name({"1": []})) == ("SQuAD v1.1", "SQuAD v2.0")
    assert (Scorer("de").name({"1": ["a"]}), Scorer("de").name({"1": []})) == ("MLQA (de)", "MLQA (de), v2.0")


# MLQA

PUNCTUATION = {chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)).startswith("P")}
PUNCTUATION |= set(string.punctuation)
ARTICLES = {
    "en": ["a", "an", "the"],
    "es": ["un", "una", "unos", "unas", "el", "la", "los", "las"],
    "vi": ["của", "là", "cái", "chiếc", "những"],
    "de": ["ein", "eine", "einen", "einem", "eines", "einer", "der", "die", "das", "den", "dem", "des"],
}


def mlqa_by_hand(text: str, language: str) -> list[str]:
    """The rule over characters: punctuation, articles among runs of word characters, then tokens."""
    text = "".join(c for c in text.lower() if c not in PUNCTUATION)
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
    return [*tokens, *token.split()]


multilingual = st.text(
    alphabet=st.sampled_from("aThe lEinDasdie launo. ,«»¿–。，、上海市7 الكتابالهिन्दी।của làcái\u3000\u00a0'ß"),
    max_size=14,
)


@given(multilingual, st.sampled_from(LANGUAGES))
def test_mlqa_normalisation(text, language):
    assert normalize_mlqa(text, language) == " ".join(mlqa_by_hand(text, language))


@pytest.mark.parametrize(
    ("language", "text", "normalized"),
    [
        ("zh", "上海。", "上 海"),
        ("zh", "在2008年、the", "在 2008 年 the"),
        ("de", "Die Straße, des  Königs", "straße königs"),
        ("es", "¿La «casa»?", "casa"),
        ("en", "The “cat”", "cat"),  # SQuAD's rules keep these marks
        ("hi", "हिन्दी।", "हिन्दी"),
        ("ar", "كتالب", "كت ب"),  # the article's letters inside a word go, too
    ],
)
def test_mlqa_worked_out(language, text, normalized):
    assert normalize_mlqa(text, language) == normalized


def test_f1_counts_chinese_characters():
    chinese, squad = Scorer("zh"), Scorer()
    assert (chinese.exact_match("上海。", ["上海"]), chinese.f1("上海市", ["上海"])) == (1.0, pytest.approx(4 / 5))
    assert (squad.exact_match("上海。", ["上海"]), squad.f1("上海市", ["上海"])) == (0.0, 0.0)
