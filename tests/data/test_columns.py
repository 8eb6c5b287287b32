"""Files whose columns or fields have other names."""

import json

import pandas as pd
import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.choices import Choices
from swep_ds.data.columns import check_columns
from swep_ds.data.readers import read_examples
from tests.support.qa_files import lines, refused, squad

CONTEXT = "Ada Brook built the mill in 1931."
ROW = {"id": "a", "question": "Who built it?", "context": CONTEXT, "answer": "Ada Brook"}
NAMES = {"id": "nummer", "question": "Frage", "context": "Text", "answer": "Antwort"}
COLUMNS = tuple(NAMES.items())
GERMAN = {NAMES[column]: value for column, value in ROW.items()}


def told(source: str, *columns: tuple[str, str | None]) -> list[tuple]:
    choices = Choices(unanswerable="train", columns=columns)
    return [(e.id, e.question, e.answers, e.span) for e in read_examples(source, training=True, choices=choices)]


EXPECTED = [("a", "Who built it?", ("Ada Brook",), (0, 9))]


@pytest.mark.parametrize("rows", [GERMAN, ROW], ids=["theirs", "the fields' own"])
def test_other_names_stand_for_columns_in_every_format(save, rows):
    table = "\t".join(rows) + "\n" + "\t".join(rows.values()) + "\n"
    by_column = {name: [value] for name, value in rows.items()}
    for content in (lines([rows]), json.dumps([rows]), json.dumps(by_column), table):
        assert told(save(content), *COLUMNS) == EXPECTED


def test_other_names_of_fields_in_paragraphs(save):
    """As in CMRC 2018's list, whose names are known, and in the Malay SQuAD's."""
    question = {"query_id": "a", "query_text": "Who built it?", "answers": ["Ada Brook"]}
    assert told(save(json.dumps([{"context_id": "c", "context_text": CONTEXT, "qas": [question]}]))) == EXPECTED
    answers = [{"text": "Ada Brook", "answer_start": 0}]
    asked = [{"id": "a", "question": "Who built it?", "answers": answers, "impossible": False}]
    asked.append({"id": "b", "question": "Who owns it?", "answers": [], "impossible": True})
    document = {"data": [{"paragraphs": {"passage": CONTEXT, "qa": asked}}]}  # AmQA has one object in place of a list
    names = (("context", "passage"), ("qas", "qa"), ("is_impossible", "impossible"))
    assert told(save(json.dumps(document)), *names) == [*EXPECTED, ("b", "Who owns it?", (), None)]


def test_the_name_that_was_given_goes_before_the_columns_own(save):
    row = ROW | {"passage": "Otto Lind sold it.", "answer": "Otto Lind"}
    assert told(save([row]), ("context", "passage")) == [("a", "Who built it?", ("Otto Lind",), (0, 9))]
    # and a name that belongs to another column can be given
    row = {"context": "Who built it?", "question": CONTEXT, "answer": "Ada Brook", "id": "a"}
    assert told(save([row]), ("context", "question"), ("question", "context")) == EXPECTED


def test_a_named_answer_goes_before_the_column_answers(save):
    row = ROW | {"answers": {"text": ["1931"], "answer_start": [28]}, "gold": "Ada Brook"}
    del row["answer"]
    assert told(save([row]), ("answer", "gold")) == EXPECTED


def test_names_are_compared_in_any_case(save):
    assert told(save([GERMAN]), *((column, f" {name.upper()} ") for column, name in COLUMNS)) == EXPECTED


def test_names_that_a_file_does_not_have_are_told(save):
    """It has the usual ones, which are read."""
    for content in ([ROW], squad({**ROW, "answers": [{"text": "Ada Brook", "answer_start": 0}]}, context=CONTEXT)):
        remarks = []
        choices = Choices(columns=(("question", "Frage"), ("context", "context"), ("answer", "Antwort")))
        [example] = read_examples(save(content), training=True, choices=choices, remark=remarks.append)
        assert example.question == "Who built it?"
        assert [(remark.id, remark.left_out) for remark in remarks] == [(None, False)]
        assert remarks[0].reason == "data.columns: data has no 'Antwort', 'Frage': read by the usual names"


def test_repeated_ids_are_told_at_once_and_read_by_their_places(save):
    source = save([ROW, ROW | {"id": "b"}, ROW, ROW | {"id": "b"}, ROW | {"id": "c"}])
    for wanted in ({}, {"training": False}, {"training": False, "labels": False}):
        said = refused(source, **wanted)
        assert "question ids that occur more than once: 2 ('a', 'b'): make every id unique, or set data." in said
    assert [id_ for id_, *_ in told(source, ("id", None))] == [f"data-{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"Frage": "Who?", "Text": "Ann."}, "has no column question, context, answers (found: ['Frage', 'Text'])"),
        ({"question": "Who?", "Text": "Ann."}, "has no column context, answers (found: ['question', 'Text'])"),
        ({"question": "Who?", "Text": "Ann.", "answer": "Ann"}, "has no column context (found:"),
        ({"question": "Who?", "context": "Ann."}, "field 'answers' is missing; add it, or name yours in data.columns"),
        ({**ROW, "answer_text": "Ada"}, "has the column 'answer' twice ('answer', 'answer_text'); keep one"),
    ],
)
def test_all_missing_columns_are_named_at_once(save, row, said):
    assert said in refused(save(json.dumps([row])))


def test_questions_alone_need_no_other_column(tmp_path):
    """A file whose name ends in .csv may have one column, whatever the name."""
    fix = "rename yours, or name it in data.columns (--columns), as in question=NAME"
    for name, text, names in (
        ("asked.csv", "Frage\nWho, and when?\n", ["Frage"]),
        ("note.txt", "Ann, not Bob", ["Ann", " not Bob"]),
        ("asked.csv", "Frage;Text\nWho?;Ann.\n", ["Frage", "Text"]),
        ("asked.json", json.dumps([{"Frage": "Who?"}]), ["Frage"]),
    ):
        (tmp_path / name).write_text(text)
        said = refused(str(tmp_path / name), training=False, labels=False)
        assert said.endswith(f"has no column question (found: {names}): {fix}")
    said = refused(str(tmp_path / "asked.csv"))
    assert "row 2: has no column question, context, answers (found: ['Frage', 'Text'])" in said


@pytest.mark.parametrize("suffix", ["parquet", "xlsx", "csv"])
def test_a_table_without_a_question_names_all_of_its_columns(suffix, tmp_path):
    table = pd.DataFrame([{"Frage": "Who?", "context": "Ann did.", "answer": "Ann"}])
    write = {"parquet": table.to_parquet, "xlsx": table.to_excel, "csv": table.to_csv}[suffix]
    write(tmp_path / f"rows.{suffix}", index=False)
    said = refused(str(tmp_path / f"rows.{suffix}"))
    assert "has no column question (found: ['Frage', 'context', 'answer'])" in said


def test_answer_text_is_an_answer(save):
    row = {"id": "a", "question": "Who built it?", "context": CONTEXT, "answer_text": "Ada Brook", "answer_start": 0}
    assert told(save([row])) == EXPECTED


def test_mistakes_in_columns_are_refused():
    for columns, said in (
        ({"frage": "question"}, "'frage' is not one of id, title, question"),
        ({"context": None}, "context: give the name of its column; only the id can do without"),
        ({"context": "text", "question": "text"}, "context: 'text' also stands for another column"),
    ):
        with pytest.raises(ValueError, match=said):
            check_columns(columns)
    with pytest.raises(InputError, match="expected an object with fields such as context and question, found 'text'"):
        told_of_text()


def told_of_text():
    from swep_ds.data.columns import known_fields

    known_fields("text", ())
