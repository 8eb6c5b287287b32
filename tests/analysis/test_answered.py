"""What is wrong with an answer, where answers are in the text, and what confidences say, against loops."""

from dataclasses import replace

import numpy as np
import pytest

from swep_ds.analysis.answered import KINDS, Answered, by_kind
from swep_ds.analysis.charts import OTHERS, confidence
from swep_ds.data.example import Example
from swep_ds.evaluation.calibration import calibration
from swep_ds.evaluation.scores import SQUAD

TEXT = "The battle of Lund was fought in 1676. The battle of Narva was fought in 1700 by the king of Sweden."
TWICE = "In 1700 nothing happened. The battle of Narva was fought in 1700."


def item(predicted: str, *accepted: str, text: str = TEXT) -> Answered:
    example = Example(predicted, "When?", text, accepted, None, "a")
    accepted = accepted or ("",)
    right = bool(SQUAD.exact_match(predicted, accepted))
    return Answered(example, predicted, right, 100 * SQUAD.f1(predicted, accepted))


@pytest.mark.parametrize(
    ("predicted", "accepted", "kind"),
    [
        ("the king of sweden", ("king of Sweden",), "right"),
        ("king", ("king of Sweden",), "boundary"),
        ("Narva was fought in 1700", ("battle of Narva", "1700"), "boundary"),
        ("battle of Narva", ("battle of Lund",), "other"),  # shared words, another place
        ("1676", ("1700",), "other"),
        (" ", ("1700",), "none"),
        ("the monarch of Sweden", ("king of Sweden",), "boundary"),  # generated: not in the text, but shared words
        ("a monarch", ("king of Sweden",), "other"),
        ("1700", (), "unanswerable"),
        ("", (), "right"),
    ],
)
def test_kinds(predicted, accepted, kind):
    answer = item(predicted, *accepted)
    assert answer.kind == kind
    assert by_kind([answer]) == {name: [answer] if name == kind else [] for name in KINDS}


def marked(answer: Answered) -> str:
    """The excerpt with the accepted answer in [] and the predicted one in {}."""
    shown = ""
    for text, accepted, predicted in answer.excerpt:
        if accepted:
            text = f"[{text}]"
        if predicted:
            text = f"{{{text}}}"
        shown += text
    return shown


def test_both_answers_are_marked_where_they_are_nearest_or_where_the_run_pointed():
    pointed = replace(item("1700", "fought in 1700", text=TWICE), place=range(3, 7))
    assert pointed.kind == "other"
    assert marked(pointed) == "In {1700} nothing happened. The battle of Narva was [fought in 1700]."
    assert marked(item("fought in 1700", "1700", text=TWICE)) == (
        "In 1700 nothing happened. The battle of Narva was {fought in }{[1700]}."
    )
    assert marked(item("Lund", "Narva")) == TEXT.replace("Lund", "{Lund}").replace("Narva", "[Narva]")
    assert marked(item("the monarch", "Narva")) == TEXT.replace("Narva", "[Narva]")
    assert marked(item("", "LUND")) == TEXT.replace("Lund", "[Lund]")  # in any case


def test_a_long_text_is_cut_around_both_answers():
    text = "start " + "word " * 200 + "Ada " + "word " * 200 + "Bob " + "word " * 200 + "end"
    shown = marked(item("Ada", "Bob", text=text))
    assert shown.count("…") == 3  # before, between and after
    assert len(shown) < 600
    assert set(shown.replace("…", " ").split()) == {"word", "{Ada}", "[Bob]"}  # no word is cut
    shown = marked(item("上海", "北京", text="字" * 5000 + "北京在北方,上海在南方" + "字" * 5000))
    assert "[北京]在北方,{上海}在南方" in shown
    assert len(shown) < 400


def answers(seed: int, calibrated: bool = False) -> list[Answered]:
    rng = np.random.default_rng(seed)
    items = []
    for sure, other in rng.random((60, 2)).tolist():
        right = bool(rng.random() < sure)
        items.append(replace(item("1676"), right=right, confidence=sure, calibrated=other if calibrated else None))
    return items


def test_curves_and_rows_with_and_without_a_calibrator():
    answered = {name: answers(seed, calibrated=True) for seed, name in enumerate(("wiki", "news", "forum"))}
    told = confidence(answered)
    reliability, risk = told["charts"]
    groups = {"wiki": answered["wiki"], OTHERS: answered["news"] + answered["forum"]}
    names = [name + suffix for suffix in ("", ", calibrated") for name in groups]
    assert list(risk.curves) == list(reliability.curves) == names
    tables = {"confidence": told["rows"] + told["groups"], "calibrated": told["calibrated"] + told["calibrated_groups"]}
    for (kind, table), suffix in zip(tables.items(), ("", ", calibrated"), strict=True):
        assert [row[0] for row in table] == [*answered, *groups]
        for (_, sure, right, *scores), items in zip(table, [*answered.values(), *groups.values()], strict=True):
            values = [(getattr(item, kind), item.right) for item in items]
            assert scores == [*calibration(*zip(*values, strict=True)).values()]
            assert (sure, right) == pytest.approx(tuple(100 * np.mean(values, axis=0)))
        for name, items in groups.items():
            values = np.array(sorted(((getattr(item, kind), item.right) for item in items), reverse=True))
            wrong = np.cumsum(1 - values[:, 1]) / np.arange(1, len(items) + 1)
            covered, share = risk.curves[name + suffix]
            rows = np.rint(covered * len(items) / 100).astype(int) - 1
            np.testing.assert_allclose(share, 100 * wrong[rows], atol=1e-12)
            assert rows[-1] == len(items) - 1
            least_confident = 100 * values[-(len(items) // 15) :].mean(0)
            assert [bins[0] for bins in reliability.curves[name + suffix]] == pytest.approx(least_confident)


def test_runs_without_confidences_or_a_calibrator():
    old = [item("1676", "1676")]
    assert confidence({}) is None
    assert confidence({"wiki": old, "news": answers(1)}) is None
    told = confidence({"wiki": answers(1), "news": old})
    assert [row[0] for row in told["rows"]] == [row[0] for row in told["groups"]] == ["wiki"]
    assert told["calibrated"] == told["calibrated_groups"] == []
