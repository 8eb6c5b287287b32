"""Files that run_qa, simpletransformers, `datasets`, pandas and Excel write: pandas and `datasets` write them here."""

import bz2
import functools
import gzip
import io
import json
import lzma
import zipfile

import datasets
import numpy as np
import pandas as pd
import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.data.fields import nested_value
from swep_ds.data.layouts import settle_repeated
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
read = functools.partial(read_examples, training=True, unanswerable=True)


def qas(rows):
    return [{"id": row["id"], "question": row["question"], "answers": row["answers"]} for row in rows]


OBJECT_ROWS = [row(OBJECTS), row([], "2", "Who's the owner?")]
PARAGRAPH = {"context": CONTEXT, "qas": qas(OBJECT_ROWS)}
JSON_FORMS = {
    "run_qa": {"version": "0.1.0", "data": ROWS},
    "run_qa, objects": {"data": OBJECT_ROWS},
    "objects": OBJECT_ROWS,
    "simpletransformers": [PARAGRAPH],
    "simpletransformers in data": {"data": [PARAGRAPH]},
    "articles": [{"title": CONTEXT, "paragraphs": [PARAGRAPH]}],
    "the hub's viewer": {"features": [], "rows": [{"row_idx": n, "row": row} for n, row in enumerate(ROWS)]},
    "Dataset.to_dict": datasets.Dataset.from_list(ROWS).to_dict(),
    "upper case": [{name.title(): value for name, value in row.items()} for row in ROWS],
}


@pytest.mark.parametrize("document", JSON_FORMS.values(), ids=JSON_FORMS)
@pytest.mark.parametrize("indent", [None, 1])
def test_json_documents(save, document, indent):
    assert read(save(json.dumps(document, indent=indent))) == EXAMPLES


@pytest.mark.parametrize(
    "items",
    [OBJECT_ROWS, [PARAGRAPH], [{"title": CONTEXT, "paragraphs": [PARAGRAPH]}]],
    ids=["rows", "paragraphs", "articles"],
)
def test_json_lines(save, items):
    assert read(save(lines(items))) == EXAMPLES


@pytest.mark.parametrize("rows", [ROWS, OBJECT_ROWS], ids=["lists", "objects"])
@pytest.mark.parametrize("orient", ["records", "columns", "index", "split", "table", "lines"])
def test_every_orientation_of_pandas_json(save, orient, rows):
    options = {"orient": "records", "lines": True} if orient == "lines" else {"orient": orient}
    assert read(save(pd.DataFrame(rows).to_json(**options))) == EXAMPLES


@pytest.mark.parametrize("rows", [ROWS, OBJECT_ROWS], ids=["lists", "objects"])
@pytest.mark.parametrize("writer", ["pandas", "pandas with index", "NumPy", "datasets"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_answers_in_a_column_of_objects(save, tmp_path, rows, writer, form):
    """CSV holds them as Python, or NumPy, prints them."""
    file = tmp_path / "data"
    if writer == "datasets":
        getattr(datasets.Dataset.from_list(rows), f"to_{form}")(str(file))
    else:
        frame = pd.DataFrame(rows)
        if writer == "NumPy":  # what pandas reads from Parquet
            frame.to_parquet(file)
            frame = pd.read_parquet(file)
        options = {} if form == "parquet" or writer != "pandas" else {"index": False}
        getattr(frame, f"to_{form}")(file, **options)
    assert read(str(file)) == EXAMPLES


def test_texts_as_numpy_prints_them_are_not_joined(save):
    """Python takes ['a' 'b'] for ['ab']."""
    frame = pd.DataFrame([row(np.array(["Vera Lind", "Lind"], dtype=object)) | {"answer_start": np.array([47, 52])}])
    assert read(save(frame.to_csv()))[0] == EXAMPLES[0]


@pytest.mark.parametrize(
    "value",
    [
        ANSWERS,
        OBJECTS,
        ["It's", "a \"b\" \\ \n'c'", "array(['x'])", "'x' 'y'"],
        [],
        {"text": [], "answer_start": [1.5, -3]},
        [True, None, -1e-05],
    ],
)
def test_what_python_and_numpy_print_is_read_back(value):
    assert nested_value(repr(value)) == nested_value(json.dumps(value)) == value
    if isinstance(value, list):
        assert nested_value(str(np.array(value, dtype=object))) == value
        assert nested_value(repr({"text": np.array(value, dtype=object)})) == {"text": value}


@pytest.mark.parametrize(
    "text", ["[__import__('os').getcwd()]", "[open('x')]", "[x for x in 'ab']", "{1: x}", "[1", "["]
)
def test_other_python_is_refused_and_not_run(text):
    with pytest.raises(InputError, match="is neither JSON nor a list or dict as Python prints it"):
        nested_value(text)


# Columns with gaps


def test_whole_numbers_as_floats(save, tmp_path):
    """pandas makes floats of a column with gaps, that is of unanswerable questions."""
    frame = pd.DataFrame(
        {
            "id": [1, 2, None],
            "question": ["Who?", "Whose?", "When?"],
            "context": CONTEXT,
            "answer": ["Vera Lind", None, "1977"],
            "answer_start": [47, None, None],
            "is_impossible": [False, True, None],
        }
    )
    frame.to_parquet(tmp_path / "parquet")
    sources = [str(tmp_path / "parquet"), save(frame.to_csv(), "csv"), save(frame.to_json(orient="split"), "split")]
    sources.append(save(json.dumps(frame.to_dict("records")), "with NaN"))
    for source in sources:
        first, second, third = read(source)
        assert (first.id, second.id) == ("1", "2")
        assert third.id.endswith(("-2", "csv-4"))  # from its place, in a text table as a spreadsheet counts
        assert [e.span for e in (first, second, third)] == [(47, 56), None, (75, 79)]
        assert (first.answers, second.answers) == (("Vera Lind",), ())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"answers": None},
        {"answers": []},
        {"answers": ""},
        {"answers": [{"text": "", "answer_start": -1}]},
    ],
)
def test_a_question_marked_impossible_needs_no_answers(save, changes):
    question = {"id": "2", "question": "Who's the owner?", "is_impossible": True, "plausible_answers": OBJECTS}
    question |= changes
    flat = question | {"context": CONTEXT}
    for document in (
        {"data": [{"title": CONTEXT, "paragraphs": [{"context": CONTEXT, "qas": [question]}]}]},
        [{"context": CONTEXT, "qas": [question]}],
        [flat],
    ):
        assert read(save(document)) == EXAMPLES[1:]
        assert "question '2': has no answer; give it, or set data.unanswerable" in refused(save(document))
    table = pd.DataFrame([{"answers": None} | flat])
    assert read(save(table.to_csv(index=False))) == EXAMPLES[1:]


# Spreadsheets


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", [["Question", "Context", "Answer"], [" QUESTION ", "context ", "\ufeffAnswer"]])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_headers_in_any_case_and_encodings_of_excel(save, header, delimiter, encoding):
    frame = pd.DataFrame([["Who?", CONTEXT, "Vera Lind"], [None, None, None]])
    content = frame.to_csv(sep=delimiter, header=header, index=False).encode(encoding)
    [example] = read(save(content))  # the empty row is none
    assert (example.question, example.context, example.span) == ("Who?", CONTEXT, (47, 56))


def test_two_headers_for_one_column(save):
    assert "has the column 'answer' 2 times" in refused(save("question,context,Answer,answer\na,b,b,b\n"))
    assert "row 0: has a field twice" in refused(save([row(ANSWERS) | {"Question": "What?"}]))


WORKBOOK = "is a workbook of Excel or LibreOffice: save it as CSV UTF-8"


def archive(name, content="{}"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (archive("xl/workbook.xml"), WORKBOOK),
        (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 500,
            WORKBOOK,
        ),
        (
            archive("mimetype", "application/vnd.oasis.opendocument.spreadsheet"),
            WORKBOOK,
        ),
        (archive("train.json"), "is a zip archive: unpack it"),
        (bz2.compress(b"{}"), "is compressed by bzip2: unpack it"),
        (lzma.compress(b"{}"), "is compressed by xz: unpack it"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "is compressed by Zstandard: unpack it"),
        (
            "question;context;answer\nWo?;Das Café ist in Köln.;Köln\n".encode("cp1252"),
            "UTF-8 text (byte 35): save it as UTF-8",
        ),
    ],
    ids=["xlsx", "xls", "ods", "zip", "bz2", "xz", "zst", "Windows-1252"],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_other_formats_are_named_with_the_fix(save, content, said, compress):
    assert said in refused(save(compress(content)))


# Answers that occur several times

REPEATED = [
    {"id": "once", "question": "Who?", "context": "Ann met Bob.", "answer": "Bob"},
    {"id": "twice", "question": "Who?", "context": "Annika met Ann, and Ann left.", "answer": " Ann "},
    {"id": "at", "question": "Who?", "context": "Ann met Ann.", "answer": "Ann", "answer_start": 8},
    {"id": "none", "question": "Who?", "context": "Ann met Ann.", "answer": ""},
]


@pytest.mark.parametrize("write", [lines, json.dumps, lambda rows: pd.DataFrame(rows).to_csv()])
def test_repeated_answers_get_their_first_place_or_are_left_out(save, write):
    source = save(write(REPEATED))
    spans = {"once": (8, 11), "twice": (11, 14), "at": (8, 11), "none": None}
    examples = read(source, repeated=True)
    for choice, left_out in (("first", set()), ("drop", {"twice"})):
        settled, count = settle_repeated(examples, choice)
        assert count == 1
        assert {e.id: e.span for e in settled} == {id_: s for id_, s in spans.items() if id_ not in left_out}
    message = refused(source, unanswerable=True)
    assert "'twice': the answer 'Ann' occurs 2 times in its context; give its answer_start (in " in message
    assert "set data.repeated_answers to first" in message
    assert len(read_examples(source, training=False, unanswerable=True)) == 4  # tests need no place


@pytest.mark.parametrize("given", [["Vera Lind", "Lind"], ANSWERS, OBJECTS], ids=["texts", "lists", "objects"])
def test_lists_in_the_column_answer_are_no_texts(save, given):
    """An answer that the context holds letter by letter is a text, whatever it looks like."""
    frame = pd.DataFrame({"question": "Who?", "context": [CONTEXT, "It says ['Vera']."], "answer": [given, "['Vera']"]})
    first, second = read_examples(save(frame.to_csv()), training=False)
    assert first.answers == ("Vera Lind", "Lind")
    assert second.answers == ("['Vera']",)


@pytest.mark.parametrize("gap", ["NaN", "None", "nan", "NULL", "<NA>"])
def test_a_gap_that_pandas_writes_is_no_answer_unless_the_context_has_it(save, gap):
    frame = pd.DataFrame({"question": "Who?", "context": ["A cat.", f"He says {gap}."], "answer": [None, gap]})
    first, second = read(save(frame.to_csv(na_rep=gap)))
    assert (first.answers, second.answers) == ((), (gap,))


@pytest.mark.parametrize("write", [lambda frame: frame.to_json(orient="records"), lambda frame: frame.to_csv()])
def test_numbers_are_answers(save, write):
    """pandas makes numbers of a column of years, and floats of one with gaps."""
    frame = pd.DataFrame({"question": "When?", "context": "In 1852.", "answer": [1852, 1852.0, None]})
    examples = read(save(write(frame)))
    assert [example.span for example in examples] in ([(3, 7), (3, 7), None], [])


@pytest.mark.parametrize("texts", [["", "cat"], ["cat", None], [None, "cat", " "]])
def test_blank_answers_beside_others_are_left_out_with_their_offsets(save, texts):
    answers = {"text": texts, "answer_start": [2 if text == "cat" else 0 for text in texts]}
    [example] = read(save(json.dumps([{"question": "Who?", "context": "A cat.", "answers": answers}])))
    assert (example.answers, example.span) == (("cat",), (2, 5))
