"""Rows as people have them at hand: CSV, one answer a row, no offsets, no labels; and the files that run_qa,
simpletransformers, `datasets`, pandas and Excel write: pandas and `datasets` write them here."""

import csv
import functools
import gzip
import json

import datasets
import numpy as np
import openpyxl
import pandas as pd
import pytest

from swep_ds.data.answers import nested_value, normalize_answer
from swep_ds.data.choices import Choices
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from tests.support.qa_files import lines, refused

CONTEXT = 'The "Otter Mill", a café, was built in 1931 by Vera Lind;\nit burnt down in 1977.'
ANSWERS = {"text": ["Vera Lind", "Lind"], "answer_start": [47, 52]}
OBJECTS = [{"text": text, "answer_start": start} for text, start in zip(*ANSWERS.values(), strict=True)]
NONE = {"text": [], "answer_start": []}


def row(answers, id_="1", question="Who built it?"):
    return {"id": id_, "question": question, "context": CONTEXT, "answers": answers}


ROWS = [row(ANSWERS), row(NONE, "2", "Who's the owner?")]
EXAMPLES = [
    Example("1", "Who built it?", CONTEXT, ("Vera Lind", "Lind"), (47, 56), CONTEXT),
    Example("2", "Who's the owner?", CONTEXT, (), None, CONTEXT),
]
TRAIN = Choices(unanswerable="train")
read = functools.partial(read_examples, training=True, choices=TRAIN)


def table(rows: list[dict], delimiter: str = ",", **options) -> str:
    return pd.DataFrame(rows).to_csv(index=False, sep=delimiter, **options)


OBJECT_ROWS = [row(OBJECTS), row([], "2", "Who's the owner?")]
PARAGRAPH = {"context": CONTEXT, "qas": [{key: row[key] for key in row if key != "context"} for row in OBJECT_ROWS]}
JSON_FORMS = {
    "run_qa": {"version": "0.1.0", "data": ROWS},
    "objects": OBJECT_ROWS,
    "simpletransformers": [PARAGRAPH],
    "articles": [{"title": CONTEXT, "paragraphs": [PARAGRAPH]}],
    "the hub's viewer": {"features": [], "rows": [{"row_idx": n, "row": row} for n, row in enumerate(ROWS)]},
    "Dataset.to_dict": datasets.Dataset.from_list(ROWS).to_dict(),
    "upper case": [{name.title(): value for name, value in row.items()} for row in ROWS],
}
for orient in ("columns", "index", "split", "table"):  # those of pandas
    JSON_FORMS[orient] = json.loads(pd.DataFrame(ROWS).to_json(orient=orient))
    JSON_FORMS[f"{orient}, objects"] = json.loads(pd.DataFrame(OBJECT_ROWS).to_json(orient=orient))


@pytest.mark.parametrize("document", JSON_FORMS.values(), ids=JSON_FORMS)
def test_json_documents_and_json_lines(save, document):
    for indent in (None, 1):
        assert read(save("\n" + json.dumps(document, indent=indent))) == EXAMPLES
    if isinstance(document, list):
        assert read(save(lines(document))) == EXAMPLES


@pytest.mark.parametrize("rows", [ROWS, OBJECT_ROWS], ids=["lists", "objects"])
@pytest.mark.parametrize("writer", ["pandas", "NumPy", "datasets"])
def test_answers_in_a_column_of_objects(tmp_path, rows, writer):
    """CSV holds them as Python, or NumPy, prints them."""
    for form in ("csv", "parquet"):
        file = tmp_path / "data"
        if writer == "datasets":
            getattr(datasets.Dataset.from_list(rows), f"to_{form}")(str(file))
        else:
            frame = pd.DataFrame(rows)
            if writer == "NumPy":  # what pandas reads from Parquet
                frame.to_parquet(file)
                frame = pd.read_parquet(file)
            getattr(frame, f"to_{form}")(file)
        assert read(str(file)) == EXAMPLES


def test_what_python_and_numpy_print_is_read_back():
    """Python takes ['a' 'b'], as NumPy prints two texts, for ['ab']."""
    answers = {"text": [], "answer_start": [1.5, -3]}
    assert nested_value(repr(answers)) == nested_value(json.dumps(answers)) == answers
    for value in (["It's", "a \"b\" \\ \n'c'", "array(['x'])", "'x' 'y'"], [True, None, -1e-05]):
        assert nested_value(repr(value)) == nested_value(json.dumps(value)) == value
        assert nested_value(str(np.array(value, dtype=object))) == value
        assert nested_value(repr({"text": np.array(value, dtype=object)})) == {"text": value}


@pytest.mark.parametrize("text", ["[__import__('os').abort()]", "[x for x in 'ab']", "{1: x}", "[1", "[MASK] token"])
def test_an_answer_that_begins_with_a_bracket_and_is_no_list_is_a_text(save, text):
    """Which is not run. A list that is cut off is refused: it would be a gold answer that no model can give."""
    for name in ("answer", "answers"):
        source = save(table([{"question": "Who?", "context": "A note.", name: text}]))
        assert read_examples(source, training=False)[0].answers == (text,)
        for cut_off in ("['Vera Lind', 'Li", '{"text": ["Vera', "[{'text': 'Ve"):
            source = save(table([{"question": "Who?", "context": "A note.", name: cut_off}]))
            assert "is neither JSON nor a list or dict as Python prints it" in refused(source, training=False)


# "it" is also in "with", and 'Ann' in "Annika"
REPEATING = "Ann met Annika with it in 1852, said Ann."


@pytest.mark.parametrize(
    ("fields", "answers", "span"),
    [
        ({"answer": "it"}, ("it",), (20, 22)),
        ({"answers": "Annika"}, ("Annika",), (8, 14)),
        ({"answers": ["Annika", "it"]}, ("Annika", "it"), (8, 14)),
        ({"answers": {"text": ["Annika", "it"]}}, ("Annika", "it"), (8, 14)),
        ({"answers": {"text": ["Ann", "it"], "answer_start": [37, 20]}}, ("Ann", "it"), (37, 40)),
        ({"answers": {"text": ["Annika"], "answer_start": [None]}}, ("Annika",), (8, 14)),
        ({"answer": "Ann", "answer_start": 37}, ("Ann",), (37, 40)),
        ({"answers": ["Ann"], "answer_start": 37}, ("Ann",), (37, 40)),
        ({"answers": ["Ann", "Ann met"], "answer_start": [37, 0]}, ("Ann", "Ann met"), (37, 40)),
        # pandas makes numbers of a column of years, and floats of one with gaps
        ({"answer": 1852}, ("1852",), (26, 30)),
        ({"answer": 1852.0}, ("1852",), (26, 30)),
        # a blank answer is none: as plain text it would be a gold answer that no model can give
        ({"answers": {"text": [None, "it", " "], "answer_start": [0, 20, 0]}}, ("it",), (20, 22)),
        ({"answer": "\u200b"}, (), None),
        ({"answers": None}, (), None),
        ({"answers": {"text": [""], "answer_start": [-1]}}, (), None),
        ({"answers": [{"text": None, "answer_start": None}]}, (), None),
        ({"answers": [], "answer": "it"}, ("it",), (20, 22)),
        ({"answers": ["it"], "answer": "Annika"}, ("it",), (20, 22)),
        ({"is_impossible": True}, (), None),
        ({"is_impossible": 1}, (), None),  # a column of numbers, and one with gaps
        ({"is_impossible": 1.0}, (), None),
        # as in NewsQA; tokenizers that keep the space before a word would otherwise add the next word to the answer
        ({"answers": {"text": [" met "], "answer_start": [3]}}, (" met ",), (4, 7)),
    ],
)
def test_answers_of_a_row_in_json_and_in_csv(save, fields, answers, span):
    asked = {"id": "q", "question": "Who?", "context": REPEATING} | fields
    printed = {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in asked.items()}
    for content in (json.dumps(asked), table([printed]), table([printed], ";", quoting=csv.QUOTE_ALL)):
        for training in (True, False):
            if training and not answers and "is_impossible" not in fields:
                assert "do not train on withheld answers" in refused(save(content), choices=TRAIN)
                continue
            withheld = not (training or answers or "is_impossible" in fields)  # as by all questions of this set
            expected = Example("q", "Who?", REPEATING, answers, span if training else None, REPEATING, 0, withheld)
            assert read_examples(save(content), training=training, choices=TRAIN) == [expected]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"answer": "Ann", "answer_start": 36}, "is not at answer_start 36 of its context, which has ' An' there"),
        ({"answer": "Ann", "answer_start": "7.5"}, "answer_start is '7.5'; expected a whole number"),
        ({"answer": "Ann", "answer_start": "7th"}, "answer_start is '7th'"),
        # counted from the end of the context, where Python's slices have the answer
        ({"answer": "Ann", "answer_start": "-40"}, "answer_start is '-40'; expected a whole number"),
        ({"answers": {"text": ["Ann"], "answer_start": [-3]}}, "answer_start is -3; expected a whole number"),
        ({"answers": ["Ann", "Ann"], "answer_start": [37]}, "answer_start is [37]; give one whole number for each"),
        ({"answer": "Ann", "is_impossible": True}, "is_impossible is true, but it has answers: correct"),
        ({"answer": "", "is_impossible": False}, "is_impossible is false, but it has no answers: correct"),
        ({"answer": "", "is_impossible": 0.0}, "is_impossible is false, but it has no answers: correct"),
        ({"answer": ""}, "has no answer; give it, or set data.unanswerable to drop such questions or to train"),
    ],
)
def test_faults_of_rows(save, fields, said):
    row = {"id": "q", "question": "Who?", "context": REPEATING} | fields
    for content in ([row], table([row])):
        assert f"question 'q': {said}" in refused(save(content)).replace("the answer 'Ann' ", "")


@pytest.mark.parametrize("column", ["answer", "answers"])
def test_an_answer_that_the_context_holds_letter_by_letter_is_a_text(save, column):
    for given in (ANSWERS["text"], ANSWERS, OBJECTS):
        for answer in ("['Vera']", "[1]", "[note", "{x}", "3.0", "None"):
            frame = pd.DataFrame({"question": "Who?", "context": [CONTEXT, f"See {answer}."], column: [given, answer]})
            first, second = read_examples(save(frame.to_csv()), training=False)
            assert (first.answers, second.answers) == (("Vera Lind", "Lind"), (answer,))


def test_whole_numbers_as_floats(save, tmp_path):
    """pandas makes floats of a column with gaps, that is of unanswerable questions."""
    names = ["id", "question", "context", "answer", "answer_start", "is_impossible"]
    asked = [[1, "Who?", CONTEXT, "Vera Lind", 47, False], [2, "Whose?", CONTEXT, None, None, True]]
    frame = pd.DataFrame([*asked, [None, "When?", CONTEXT, "1977", None, None]], columns=names)
    frame.to_parquet(tmp_path / "parquet")
    sources = [str(tmp_path / "parquet"), save(frame.to_csv(), "csv"), save(frame.to_json(orient="split"), "split")]
    sources.append(save(json.dumps(frame.to_dict("records")), "with NaN"))
    for source in sources:
        first, second, third = read(source)
        assert (first.id, second.id) == ("1", "2")
        assert third.id.endswith(("-2", "csv-4"))  # from its place, in a text table as a spreadsheet counts
        assert [e.span for e in (first, second, third)] == [(47, 56), None, (75, 79)]
        assert (first.answers, second.answers) == (("Vera Lind",), ())


def test_a_gap_that_pandas_writes_is_no_answer_unless_the_context_has_it(save):
    for gap in ("NaN", "None", "nan", "NULL", "<NA>"):
        frame = pd.DataFrame({"question": "Who?", "context": ["A cat.", f"He says {gap}."], "answer": [None, gap]})
        assert [example.answers for example in read(save(frame.to_csv(na_rep=gap)))] == [(), (gap,)]


def test_questions_need_no_answers(save):
    asked = [{key: row[key] for key in ("id", "question", "context")} for row in ROWS]
    expected = [Example(e.id, e.question, e.context, (), None, e.article) for e in EXAMPLES]
    for rows in (asked, ROWS, [row | {"answers": "{'text'"} for row in asked]):
        for content in (lines(rows), table(rows)):
            assert read_examples(save(content), training=False, labels=False) == expected
    for rows, answers in ((asked, [()] * len(ROWS)), (ROWS, [example.answers for example in EXAMPLES])):
        read_them = read_examples(save(lines(rows)), training=False, choices=TRAIN, labels=None)
        assert [example.answers for example in read_them] == answers


def test_an_empty_list_or_object_says_that_there_is_no_answer(save):
    """Also as CSV holds it."""
    for none in (NONE, [], {"text": [""], "answer_start": [-1]}):
        asked = [row(ANSWERS), row(none, "2", "Who's the owner?")]
        for content in (lines(asked), table(asked)):
            examples = read_examples(save(content), training=False, labels=None)
            assert [example.answers for example in examples] == [("Vera Lind", "Lind"), ()]
    asked = [row("Vera Lind"), row("", "2")]
    assert "question '2': has no answer" in refused(save(table(asked)), training=False, labels=None)


def test_normalize_answer():
    for text, normalized in {
        "  an   apple\tand\nthe theatre ": "apple and theatre",  # articles only as whole words
        "the-cat": "thecat",  # punctuation goes first, so no article is left
        "cat\u2013the\u2013dog": "cat\u2013 \u2013dog",  # not ASCII punctuation; an article leaves a space behind
        "STRASSE stra\u00dfe": "strasse stra\u00dfe",  # lower(), not casefold()
        "th\u00e9 the\u0301": "th\u00e9 \u0301",  # \b sees a boundary before a combining accent
        "10\u00a0km\u2003away": "10 km away",
    }.items():
        assert normalize_answer(text) == normalized


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", [["Question", "Context", "Answer"], [" QUESTION ", "context ", "\ufeffAnswer"]])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_headers_in_any_case_and_encodings_of_excel(save, header, delimiter, encoding):
    frame = pd.DataFrame([["Who?", CONTEXT, "Vera Lind"], [None, None, None]])
    for line_end in ("\r\n", "\r"):
        text = f"sep={delimiter}\r\n" + frame.to_csv(sep=delimiter, header=header, index=False, lineterminator=line_end)
        [example] = read(save(text.encode(encoding)))  # the empty row is none
        assert (example.question, example.context, example.span) == ("Who?", CONTEXT, (47, 56))


def test_other_formats_are_refused_with_the_fix(save):
    old_workbook = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
    latin = "question;context;answer\nWo?;Das Café ist in Köln.;Köln\n".encode("cp1252")
    for content in (old_workbook, latin, gzip.compress(latin)):
        said = refused(save(content))
        assert "is neither Parquet nor Arrow nor UTF-8 text ('utf-8' codec" in said
        assert "save text as UTF-8, and a workbook as .xlsx without a password" in said
    assert "is neither a workbook nor data (BadZipFile" in refused(save(b"PK\x03\x04 cut off"))


def test_a_spreadsheet_with_a_title_above_its_header(tmp_path, caplog):
    """Rows have the sheet's numbers. Errors count in columns that are read."""
    book = openpyxl.Workbook()
    for cells in ["Pairs of May"], [], ["Question", "context", "answer", "by"], ["When?", CONTEXT, 1931, "#N/A"], []:
        book.active.append(cells)
    book.active.append(["Who?", CONTEXT, "Vera Lind"])
    book.create_sheet("Other")
    file = tmp_path / "pairs.xlsx"
    book.save(file)
    examples = read(f"{file}#Sheet")
    assert [example.id for example in examples] == ["pairs.xlsx#Sheet-4", "pairs.xlsx#Sheet-6"]
    assert [example.answers for example in examples] == [("1931",), ("Vera Lind",)]
    assert not caplog.records
    assert [example.id for example in read(str(tmp_path))] == ["pairs.xlsx-4", "pairs.xlsx-6"]
    assert caplog.text.count("pairs.xlsx: the sheet 'Sheet' is read, of Sheet, Other: FILE#SHEET names") == 1
    assert "Other: holds no questions" in refused(f"{file}#Other")
    book.active["C6"] = "#N/A"
    book.save(file)
    assert "row 6: answer shows the error #N/A: correct it" in refused(str(file))
    book.active["A3"] = "Frage"
    book.save(file)
    assert "row 3: has no column question, context, answers (found: ['Pairs of May'])" in refused(str(file))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("question,context,answer\nWho?,A text\n", "row 2 has 2 cells, and the header 3"),
        ('question,context,answer\nq,A,A\nq,"B,B\nq,C,C\n', "malformed table of text after row 2 (unexpected end of"),
        ('question,context,answer\nq,"To be" is said,be\n', "malformed table of text after row 1 (',' expected after"),
        ("question;text;answer\nWho?;A text;text\n", "has no column context (found: ['question', 'text', 'answer'])"),
        ("question,context,Answer,answer\na,b,b,b\n", "has the column 'answer' twice ('Answer', 'answer')"),
    ],
)
def test_faults_of_text_tables(save, content, said):
    assert said in refused(save(content))
