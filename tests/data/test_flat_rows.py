"""Data as people have it at hand: CSV, rows with one answer, answers without offsets, unlabelled questions."""

import csv
import io
import json

import pyarrow as pa
import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.answers import find_answer
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples, read_questions
from tests.support import qa_files
from tests.support.qa_files import lines, parquet, refused

CONTEXT = 'The "Bean", a cafe,\nopened in 1998; tea – or art – is served at parties.'
ROWS = [
    {"id": "1", "question": "When?", "context": CONTEXT, "answer": "1998"},
    {"id": "2", "question": "What, then?", "context": CONTEXT, "answer": "art"},  # also inside "parties"
]
EXAMPLES = [
    Example("1", "When?", CONTEXT, ("1998",), (30, 34), CONTEXT),
    Example("2", "What, then?", CONTEXT, ("art",), (45, 48), CONTEXT),
]


def table(rows: list[dict], delimiter: str = ",", **options) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), delimiter=delimiter, **options)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def arrow(rows: list[dict]) -> bytes:
    return parquet(pa.Table.from_pylist(rows))


WRITERS = {
    "comma": table,
    "semicolon": lambda rows: table(rows, ";", quoting=csv.QUOTE_ALL),
    "tab, with a mark": lambda rows: table(rows, "\t", lineterminator="\n").encode("utf-8-sig"),
    "lines": lines,
    "list": json.dumps,
    "Parquet": arrow,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_one_answer_a_row(save, write):
    assert read_examples(save(write(ROWS)), training=True) == EXAMPLES
    assert [e.span for e in read_examples(save(write(ROWS)), training=False)] == [None, None]


@pytest.mark.parametrize(
    "answers",
    [
        ["1998", "in 1998"],
        {"text": ["1998", "in 1998"]},
        {"text": ["1998", "in 1998"], "answer_start": [30, 27]},
        {"text": ["1998", "in 1998"], "answer_start": [None, None]},
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_several_answers_a_row(save, answers, as_text):
    row = {"question": "When?", "context": CONTEXT, "answers": answers}
    content = table([row | {"answers": json.dumps(answers)}]) if as_text else json.dumps(row)
    [example] = read_examples(save(content), training=True)
    assert example.id == ("data-2" if as_text else "data-1")
    assert (example.answers, example.span) == (("1998", "in 1998"), (30, 34))


def test_excels_own_first_line_is_no_header(save):
    [example] = read_examples(save("sep=;\r\nQuestion;Context;Answer\r\nWho?;A cat.;cat\r\n"), training=True)
    assert (example.question, example.answers) == ("Who?", ("cat",))


def test_offsets_beside_one_answer_are_checked(save):
    row = {"question": "What?", "context": "tea or tea", "answer": "tea", "answer_start": 7}
    for content in (json.dumps(row), table([row])):
        assert read_examples(save(content), training=True)[0].span == (7, 10)
    for wrong, said in ((6, "is not at answer_start 6"), ("7.5", "answer_start is '7.5'"), ("7th", "answer_start is")):
        assert said in refused(save(table([row | {"answer_start": wrong}])))


def test_offsets_beside_several_answers(save):
    row = {"question": "Who?", "context": "Ann met Ann.", "answers": ["Ann", "Ann met"], "answer_start": [8, 0]}
    single = row | {"answers": ["Ann"], "answer_start": 8}
    for content in (
        json.dumps(row),
        json.dumps(single),
        table([row | {key: json.dumps(row[key]) for key in ("answers", "answer_start")}]),
        table([single | {"answers": "Ann"}]),
    ):
        assert read_examples(save(content), training=True)[0].span == (8, 11)
    assert "answer_start is [8]; give one whole number for each text" in refused(
        save(json.dumps(row | {"answer_start": [8]}))
    )
    assert "is not at answer_start 4" in refused(save(json.dumps(single | {"answer_start": 4})))


@pytest.mark.parametrize("answer", ["[1]", "[note", "{x}"])
def test_a_texts_answer_that_looks_like_json_says_how_it_is_written(save, answer):
    row = {"question": "Who?", "context": f"See {answer} here."}
    said = refused(save(table([row | {"answers": answer}])))
    assert "give an answer that itself begins with [ or { in a column `answer`, or" in said
    for given in ({"answer": answer}, {"answers": json.dumps([answer])}):
        assert read_examples(save(table([row | given])), training=True)[0].answers == (answer,)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "answers",
    [
        {"answer": "\u200b"},
        {"answers": None},
        {"answers": [" ", ""]},
        {"answers": {"text": [""], "answer_start": [-1]}},
        {"answers": [{"text": None, "answer_start": None}]},
    ],
)
def test_a_blank_answer_is_no_answer(save, training, answers):
    """As plain text it would be a gold answer that no model can give."""
    row = {"id": "q", "question": "Who?", "context": "foo bar", **answers}
    squad = qa_files.squad(row, context=row["context"])
    for content in (json.dumps(row), json.dumps(row | {"is_impossible": True}), json.dumps(squad)):
        [example] = read_examples(save(content), training=training, unanswerable=True)
        assert (example.answers, example.span) == ((), None)
        said = "question 'q': has no answer; give it, or set data.unanswerable to drop such questions or to train on"
        assert said in refused(save(content), training=training)


@pytest.mark.parametrize(
    ("context", "text", "start"),
    [
        ("art at parties", "art", 0),
        ("parties of art", "art", 11),
        ("the U.S. and U.S.", "the U.S.", 0),
        ("5 and 50 °C", "5", 0),
        ("上海市在中国", "中国", 4),  # no spaces between words
        ("อยู่ที่กรุง", "กรุง", 7),
        ("in 1998年", "1998", 3),  # a script with spaces beside one without
        ("tea", " tea ", 0),
        ("un cafe\u0301 noir", "cafe\u0301", 3),  # a combining accent
        ("วันที่1998", "1998", 6),
    ],
)
def test_an_answer_is_found_where_it_occurs_once_as_whole_words(context, text, start):
    assert find_answer(context, text) == (start, start + len(text.strip()))


@pytest.mark.parametrize(
    ("context", "text", "said"),
    [
        ("tea or tea", "tea", "the answer 'tea' occurs 2 times in its context; give its answer_start"),
        ("parties", "art", "the answer 'art' does not occur in its context; correct it"),
        ("Tea", "tea", "does not occur"),
        ("aa aa aa", "aa aa", "occurs 2 times"),
        ("un cafe\u0301 noir", "cafe", "does not occur"),
        ("\u0915\u0930\u093e\u091a\u0940", "\u0915\u0930", "does not occur"),  # a vowel sign of Devanagari
    ],
)
def test_any_other_answer_is_an_error(context, text, said):
    with pytest.raises(InputError) as error:
        find_answer(context, text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("question,context,answer\nWho?,A text\n", "malformed table of text from line 2 on (it has 2 cells, and"),
        ('question,context,answer\nq,"We said.,We\nq,A,A\nq,"B",B\n', "from line 2 on (',' expected after"),
        ('question,context,answer\nq,A,A\nq,"B,B\nq,C,C\n', "from line 3 on (unexpected end of data)"),
        ('question,context,answer\nq,"To be" is said,be\n', "from line 2 on (',' expected after"),
        ("question,context\nWho?,A text\n", "has no column answer (found: ['question', 'context']): rename"),
        (
            "question,context,anwser\nWho?,A text,text\n",
            "has no column answer (found: ['question', 'context', 'anwser'])",
        ),
        ("question;text;answer\nWho?;A text;text\n", "has no column context (found: ['question', 'text', 'answer'])"),
        ("question,context,context\nWho?,a,b\n", "has the column 'context' 2 times"),
        ("question,context,answer\n,A text,text\n", "question 'data-2': question is empty"),
        ("question,context,answer\nWho?,A text,\n", "question 'data-2': has no answer; give it, or set"),
        (
            "question,context,answers\nWho?,A text,[1\n",
            "question 'data-2': answers '[1': is neither a list of texts nor",
        ),
        ("question,context,answer\n", "holds no questions"),
    ],
)
def test_faults_of_text_tables(save, content, said):
    assert said in refused(save(content))


def test_questions_need_no_answers(save):
    asked = [{key: row[key] for key in ("id", "question", "context")} for row in ROWS]
    expected = [Example(e.id, e.question, e.context, (), None, e.article) for e in EXAMPLES]
    for content in (
        lines(asked),
        table(asked),
        lines(ROWS),
        json.dumps([row | {"answers": 5} for row in asked]),
        table([row | {"answers": "{'text'"} for row in asked]),
    ):
        assert read_questions(save(content)) == expected
    document = qa_files.squad({"id": "1", "question": "When?"}, context=CONTEXT)
    assert [e.question for e in read_questions(save(document))] == ["When?"]
