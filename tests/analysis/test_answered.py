"""What is wrong with an answer, and where answers are in the text."""

from dataclasses import replace

import pytest

from swep_ds.analysis.answered import KINDS, Answered, by_kind
from swep_ds.data.example import Example
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
