"""Questions without an answer in every way that published files have them, and other rows that say two things."""

import datasets
import pytest

from swep_ds.data.choices import Choices
from swep_ds.data.readers import read_examples
from tests.support.qa_files import refused

CONTEXT = "Ada Brook built the mill in 1931. Version 3.0 is here."
ANSWERED = {"id": "first", "question": "Who built it?", "context": CONTEXT, "answer": "Ada Brook"}
IMPOSSIBLE = {"id": "none", "question": "Who owns it?", "context": CONTEXT, "answers": [], "is_impossible": True}
FALSE = {"is_impossible": False}
BLANK = [{"text": "", "answer_start": -1}]


def row(**fields) -> dict:
    return {"id": "it", "question": "When?", "context": CONTEXT} | fields


def read(source: str, unanswerable: str, training: bool) -> tuple[dict, dict]:
    """Answers by id, and the reason of each remark."""
    remarks = []
    choices = Choices(unanswerable)
    examples = read_examples(source, training=training, choices=choices, remark=remarks.append)
    return {example.id: example.answers for example in examples}, {remark.id: remark.reason for remark in remarks}


@pytest.mark.parametrize(
    ("doubtful", "answers"),
    [
        (row(answers=[], **FALSE), ()),
        (row(answers=BLANK, **FALSE), ()),
        (row(answers=None, **FALSE), ()),
        (row(answer="1931", is_impossible=True), ("1931",)),
        (row(answer="1931", is_impossible="1.0"), ("1931",)),
    ],
)
def test_contradictions_are_not_trained_on_and_tests_go_by_the_answers(save, doubtful, answers):
    source = save([ANSWERED, doubtful, IMPOSSIBLE])
    for training in (True, False):
        assert "correct one of the two, or set data.unanswerable" in refused(source, training=training)
        assert read(source, "drop", training)[0] == {"first": ("Ada Brook",)}
    kept, reasons = read(source, "train", True)
    assert kept == {"first": ("Ada Brook",), "none": ()}
    assert reasons["it"].endswith(": left out")
    kept, reasons = read(source, "train", False)
    assert kept == {"first": ("Ada Brook",), "it": answers, "none": ()}
    assert reasons["it"].endswith(": scored by its answers")


@pytest.mark.parametrize("name", ["question", "context"])
@pytest.mark.parametrize("blank", ["", " \u200b", None])
def test_rows_without_a_question_or_a_context(save, name, blank):
    source = save([ANSWERED, row(answer="1931") | {name: blank}, IMPOSSIBLE])
    for training in (True, False):
        assert "question 'it'" in refused(source, training=training)
        for choice in ("drop", "train"):
            kept, reasons = read(source, choice, training)
            assert "it" not in kept
            assert reasons["it"] == f"the {name} is empty: left out"


NONE = ["No answer", "no_answer", "unanswerable", "N/A", " n/a", "None.", "not in the document", "ANSWERNOTFOUND"]


@pytest.mark.parametrize("answer", ["-", "–", *NONE])
def test_words_for_no_answer_are_none_unless_the_context_has_them(save, answer):
    """By which a row says that there is none, as by is_impossible."""
    source = save([ANSWERED, row(answer=answer)])
    assert read(source, "train", True) == ({"first": ("Ada Brook",), "it": ()}, {})
    listed = row(answers={"text": [answer], "answer_start": [9]}, context=f"He wrote {answer} there.")
    if answer not in (" n/a", "ANSWERNOTFOUND"):
        assert read(save([ANSWERED, listed]), "train", True)[0]["it"] == (answer,)
    for said in (
        (FALSE, {"is_impossible": "no"}) if answer != "ANSWERNOTFOUND" else ()
    ):  # with which SubjQA's contexts end
        assert "is_impossible is false, but it has no answers" in refused(save([ANSWERED, row(answer=answer) | said]))
    inside = row(answer=answer, context=f"He wrote {answer} there, x{answer}x.")
    kept = () if answer in ("-", "–", "ANSWERNOTFOUND") else (answer,)  # a dash is in many texts, and answers nothing
    assert read(save([ANSWERED, inside]), "train", False)[0]["it"] == kept
    assert read(save([ANSWERED, inside | {"context": f"x{answer}x"}]), "train", False)[0]["it"] == ()


def test_a_context_that_is_a_files_name_is_said(save):
    said = refused(save([row(answer="1931", context="Hand book.PDF")]))
    assert "context is 'Hand book.PDF', the name of a file: give its text, or name it in a column document" in said


def test_a_text_of_json_that_looks_like_a_float_stays(save):
    """As golds of CMRC 2018. In CSV, pandas writes whole numbers of a column with gaps so."""
    assert read(save([row(answer="39764.0")]), "error", False)[0] == {"it": ("39764.0",)}
    assert read(save([row(answers=["39764.0"])]), "error", False)[0] == {"it": ("39764.0",)}
    assert read(save([row(answer=1931.0)]), "error", True)[0] == {"it": ("1931",)}
    for answer, expected in (("1931.0", "1931"), ("3.0", "3.0")):
        table = f"id,question,context,answer\n7.0,2.0,{CONTEXT},{answer}\n"
        assert read(save(table), "error", True)[0] == {"7": (expected,)}


def test_haystacks_not_given_is_no_answer(save):
    given = [{"text": "1931", "answer_start": 28, "answer_category": "NOT_GIVEN"}]
    source = save([ANSWERED, row(answers=given, **FALSE)])
    assert read(source, "train", True) == ({"first": ("Ada Brook",), "it": ()}, {})
    table = row(answer_text="1931", answer_start=28, answer_category="NOT_GIVEN")  # as a table has it
    kept, reasons = read(save([ANSWERED, table]), "train", True)
    assert (list(kept), list(reasons)) == (["first"], ["it"])


def test_a_test_set_without_any_answer_is_withheld(save):
    silent = [row(id=str(number), answers=answers) for number, answers in enumerate(([], None, BLANK, {"text": []}))]
    for choice in ("error", "drop", "train"):
        examples = read_examples(save(silent), training=False, choices=Choices(choice))
        assert [(example.answers, example.withheld) for example in examples] == [((), True)] * 4
    assert all(example.withheld for example in read_examples(save([row(), row(id="other")]), training=False))
    assert "question 'it': has none of the fields answer, answers" in refused(save([ANSWERED, row()]), training=False)
    source = save([*silent, row(id="false", answers=[], **FALSE)])  # says that it has answers
    assert all(example.withheld for example in read_examples(source, training=False))
    kept, reasons = read(save([*silent, row(id="blank", context="", answers=[])]), "train", False)
    assert (len(kept), reasons) == (4, {"blank": "the context is empty: left out"})
    for last in (ANSWERED, IMPOSSIBLE):
        examples = read_examples(save([*silent, last]), training=False, choices=Choices("train"))
        assert not any(example.withheld for example in examples)
    assert "has no answer; give it, or set data.unanswerable" in refused(save(silent))  # in training
    assert "do not train on withheld answers, or set is_impossible" in refused(save(silent), choices=Choices("train"))


def test_columns_of_texts_and_numbers_as_datasets_keeps_them(save, tmp_path):
    """They are JSON in Arrow and in Parquet."""
    features = datasets.Features({name: datasets.Value("string") for name in ("question", "context")})
    features |= {"id": datasets.Json(), "answers": datasets.List(datasets.Json())}
    rows = [row(id="a1", answers=["Ada Brook"]), row(id=2, answers=[1931])]
    data = datasets.Dataset.from_list(rows, features=datasets.Features(features))
    data.save_to_disk(tmp_path / "saved")
    data.to_parquet(tmp_path / "rows.parquet")
    for name in ("saved", "rows.parquet"):
        assert read(str(tmp_path / name), "error", True)[0] == {"a1": ("Ada Brook",), "2": ("1931",)}


def test_a_pointer_of_git_lfs_is_told(save):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 49007485\n"
    assert "a pointer of Git LFS, not the data: run `git lfs pull`" in refused(save(pointer))
