"""The official scorers of data sets in other languages: small cases, with the figures that their scripts give."""

import pytest

from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.scoring_rules import RULES, SCORERS

# Row, prediction, accepted answers, and EM and F1 by the official script.
OFFICIAL = [
    # korquad/korquad.github.io 61d7d668, dataset/evaluate-v1.0.py
    ("korquad", "'한강'의", ["한강의"], 0.0, 1.0),
    ("korquad", "《한강》(소설)", ["한강 소설"], 1.0, 1.0),
    ("korquad", "서울 특별시", ["서울특별시"], 0.0, 1.0),
    ("korquad", "서울특별시에서", ["부산", "서울특별시"], 0.0, 0.8333),
    ("korquad", "Samsung,", ["samsung"], 1.0, 1.0),
    ("korquad", "「한강」", ["한강"], 0.0, 0.6667),
    ("korquad", "", ["서울"], 0.0, 0.0),
    ("korquad", "!", ["?"], 1.0, 0.0),
    # KLUE-benchmark/KLUE-baseline 8a03c944, klue_baseline/metrics/utils.py
    ("klue", "《한강》", ["한강"], 0.0, 0.6667),
    ("klue", "한강에서", ["한강"], 0.0, 0.6667),
    ("klue", "강한", ["한강"], 0.0, 0.5),
    ("klue", "서울 특별시", ["서울특별시"], 0.0, 0.5455),
    ("klue", "‘한강’", ["한강"], 0.0, 0.6667),
    ("klue", "한강(", ["부산", "한강"], 1.0, 1.0),
    ("klue", "", [], 1.0, 1.0),
    ("klue", "한강", [], 0.0, 0.0),
    ("klue", "", ["!"], 1.0, 1.0),
    ("klue", "가나" * 60, ["가나" * 110], 0.0, 0.7059),
    ("klue", "나가" * 60, ["가나" * 110], 0.0, 0.0),
    ("klue", "나가" * 60, ["가나" * 90], 0.0, 0.8),
    # yahoojapan/JGLUE 6f071c09, its patch of transformers 4.9.2, data/metrics/squad_metrics.py
    ("jglue", "東京。", ["東京"], 1.0, 1.0),
    ("jglue", "東京。 ", ["東京"], 0.0, 0.8),
    ("jglue", "東京、", ["東京"], 0.0, 0.8),
    ("jglue", "「東京」", ["東京"], 0.0, 0.6667),
    ("jglue", "京都東", ["東京都"], 0.0, 1.0),
    ("jglue", "New  York", ["new york"], 1.0, 1.0),
    ("jglue", "NewYork", ["New York"], 0.0, 0.9333),
    ("jglue", "。", ["。。"], 1.0, 1.0),
    ("jglue", "", ["。", "東京"], 0.0, 0.0),
    ("jglue", "the", ["東京", "the end"], 0.0, 0.6),
    # ymcui/cmrc2018 c0eb1b6b, baseline/cmrc2018_evaluate.py, with the word tokenizer of NLTK 3.9.1
    ("cmrc", "《上海》", ["上海"], 1.0, 1.0),
    ("cmrc", "上海！", ["上海"], 1.0, 1.0),
    ("cmrc", "…上海", ["上海"], 0.0, 0.8),
    ("cmrc", "‘上海’", ["上海"], 0.0, 0.8),
    ("cmrc", "《 上海》", ["上海"], 0.0, 1.0),
    ("cmrc", "上海和北京", ["北京上海", "上海"], 0.0, 0.5714),
    ("cmrc", "iPhone 6s手机", ["iphone 6s"], 0.0, 0.6667),
    ("cmrc", "共1,000人(5%)", ["1,000"], 0.0, 0.25),
    ("cmrc", "It's 5.", ["it's 5"], 0.0, 0.8571),
    ("cmrc", "", ["上海"], 0.0, 0.0),
    # baidu/DuReader c625076b, DuReader-Robust/evaluate.py
    ("dureader", "《上海》", ["上海"], 1.0, 1.0),
    ("dureader", "(上海)", ["上海"], 1.0, 1.0),
    ("dureader", "上海-北京", ["上海北京"], 0.0, 0.4444),
    ("dureader", "iPhone 6s手机", ["iphone 6s"], 0.0, 0.5),
    ("dureader", "1=1", ["1"], 0.0, 0.5),
    ("dureader", "上海 ", ["上海"], 0.0, 0.8),
    ("dureader", "㐀", ["㐀上"], 0.0, 0.6667),
    # sajjjadayobi/PersianQA ba4806eb, src/evaluation.py, its second method
    ("persianqa", "می\u200cشود", ["می شود"], 1.0, 1.0),
    ("persianqa", "تهران.", ["تهران"], 0.0, 0.9091),
    ("persianqa", "تهران ", ["تهران"], 1.0, 1.0),
    ("persianqa", "SQuAD", ["squad"], 0.0, 0.2),
    ("persianqa", "کتاب ها", ["کتابها"], 0.0, 0.9231),
    ("persianqa", "تهران", ["اصفهان", "تهران"], 1.0, 1.0),
    ("persianqa", "", ["تهران"], 0.0, 0.0),
    # husseinmozannar/SOQAL 1229d34a, bert/evaluate.py
    ("arcd", "الكتاب", ["كتاب"], 1.0, 1.0),
    ("arcd", "كتالب", ["كت ب"], 1.0, 1.0),
    ("arcd", "القاهرة،", ["القاهرة"], 0.0, 0.0),
    ("arcd", "القاهرة,", ["القاهرة"], 1.0, 1.0),
    ("arcd", "The القاهرة", ["القاهرة"], 1.0, 1.0),
    ("arcd", "في عام 1990", ["1990"], 0.0, 0.5),
    # projecte-aina/club 7cba5ee1, src/qa/mlqa_evaluation_ca.py
    ("mlqa ca", "el gat", ["gat"], 1.0, 1.0),
    ("mlqa ca", "l'home", ["home"], 0.0, 0.0),
    ("mlqa ca", "l’home", ["lhome"], 1.0, 1.0),
    ("mlqa ca", "uns gats negres", ["gats"], 0.0, 0.6667),
    ("mlqa ca", "del gat", ["gat"], 0.0, 0.6667),
    # huggingface/lighteval 3fd15266, metrics/normalizations.py: its articles, taken away where MLQA's script does so
    ("mlqa fr", "le chat des voisins", ["chat voisins"], 1.0, 1.0),
    ("mlqa it", "gli uomini, il mare", ["uomini mare"], 1.0, 1.0),
    ("mlqa pt", "as praias e um rio", ["praias e rio"], 1.0, 1.0),
]


@pytest.mark.parametrize(("row", "prediction", "accepted", "exact_match", "f1"), OFFICIAL)
def test_scores_are_those_of_the_official_script(row, prediction, accepted, exact_match, f1):
    scores = Scorer(row).by_question({"q": prediction}, {"q": accepted})
    assert scores["q"] == pytest.approx((exact_match, f1), abs=5e-5)


def test_every_scorer_has_a_row_with_cases():
    assert set(SCORERS) - {"mlqa"} == {row for row in RULES if not row.startswith("mlqa ")}
    assert set(SCORERS) - {"mlqa", "squad"} <= {case[0] for case in OFFICIAL}


@pytest.mark.parametrize("row", ["korquad", "cmrc", "dureader", "persianqa", "arcd", "mlqa ca"])
def test_a_scorer_without_rules_for_questions_without_an_answer_takes_those_of_v2(row):
    predictions = {"declined": "", "guessed": "7", "answered": "", "right": "7"}
    golds = {"declined": [], "guessed": [], "answered": ["9"], "right": ["7"]}
    scores = Scorer(row).by_question(predictions, golds)
    assert list(scores.values()) == [(1.0, 1.0), (0.0, 0.0), (0.0, 0.0), (1.0, 1.0)]
    assert Scorer(row).name(golds) == f"{Scorer(row).name({'right': ['7']})}" + (
        ", v2.0" if row == "mlqa ca" else ", unanswerable as in SQuAD v2.0"
    )


def test_jglue_and_klue_have_the_same_rules_in_every_data_set():
    for row, drops in (("jglue", True), ("klue", False)):
        empty = {"jglue": "。", "klue": "!"}[row]
        for others in ({}, {"none": []}):
            golds = {"blank": [empty], "both": [empty, "7"]} | others
            assert Scorer(row).name(golds) == Scorer(row).name({"q": ["7"]})
            scores = Scorer(row).by_question({"blank": "", "both": ""}, golds)
            assert scores["blank"] == (1.0, 1.0)
            assert scores["both"] == ((0.0, 0.0) if drops else (1.0, 1.0))


@pytest.mark.parametrize(
    ("answers", "named", "fitting"),
    [
        (
            ["서울에서", "IBM", "1990년"],
            "Korean, which SQuAD v1.1 has no rules for: set eval.scorer to korquad",
            "klue",
        ),
        (
            ["東京タワー", "3月", "源氏"],
            "Japanese, which SQuAD v1.1 has no rules for: set eval.scorer to jglue",
            "jglue",
        ),
        (["上海", "iPhone", "北京大学出版社"], "Chinese, which", "cmrc"),
        (["กรุงเทพมหานคร", "2019"], "no official scorer is known", "jglue"),
        (["القاهرة", "1990"], "in Arabic script (Persian, Arabic), which", "arcd"),
        (["تهران"], "persianqa or arcd or mlqa with eval.language ar", "persianqa"),
    ],
)
def test_answers_in_a_script_that_the_rules_do_not_know_are_named_with_a_scorer(answers, named, fitting):
    golds = {str(number): [answer] for number, answer in enumerate(answers)}
    said = Scorer("squad").advice("dev", golds)
    assert said.startswith("dev: answers are ")
    assert named in said
    assert Scorer("mlqa de").advice("dev", golds) is not None
    assert Scorer(fitting).advice("dev", golds) is None


def test_answers_in_latin_letters_and_no_answers_need_no_advice():
    for golds in ({}, {"1": []}, {"1": ["1990"]}, {"1": ["the cat"], "2": ["Москва"], "3": ["서울"]}):
        assert Scorer("squad").advice("dev", golds) is None
