"""Damaged and unusual Arrow and Parquet data: read, or refused in one line."""

import pyarrow as pa
import pytest

from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from tests.support.qa_files import TABLE_WRITERS as WRITERS
from tests.support.qa_files import compressed, file, refused, rows, stream

CONTEXT = "The caf\u00e9 opened in 1998. It serves tea."


def questions(count=2):
    answers = [{"text": "1998", "answer_start": 19}]
    return rows(*({"id": f"q{i}", "question": "When?", "answers": answers} for i in range(count)), context=CONTEXT)


EXAMPLES = [Example(f"q{i}", "When?", CONTEXT, ("1998",), (19, 23), "Cafes") for i in range(2)]
TABLE = pa.Table.from_pylist(questions())


def with_column(name, column):
    return TABLE.set_column(TABLE.schema.get_field_index(name), name, column)


# Unusual and right


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize(
    "column",
    [
        TABLE["context"].dictionary_encode(),
        TABLE["context"].cast(pa.large_string()),
        TABLE["context"].cast(pa.string_view()),
    ],
    ids=["dictionary", "large", "view"],
)
def test_other_kinds_of_strings(save, write, column):
    assert read_examples(save(write(with_column("context", column))), training=True) == EXAMPLES


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_more_rows_than_are_converted_at_a_time(save, write):
    examples = read_examples(save(write(pa.Table.from_pylist(questions(3000)))), training=True)
    assert [example.id for example in examples] == [f"q{i}" for i in range(3000)]
    assert len({id(example.context) for example in examples}) == 1


# Wrong


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("question", pa.array([None, "When?"]), "question 'q0': field 'question' is None; expected a string"),
        ("question", pa.array([b"When?"] * 2), "field 'question' is b'When?'; expected a string"),
        ("id", pa.array([1.5, 2.5]), "field 'id' is 1.5; expected a string or number"),
        ("answers", pa.array([{"text": ["2001"]}] * 2), "the answer '2001' does not occur in its context"),
        ("answers", pa.array([{"text": ["1998"], "answer_start": [19.5]}] * 2), "answer_start is 19.5; expected"),
    ],
)
def test_columns_of_other_types(save, name, column, message):
    assert message in refused(save(stream(with_column(name, column))))


@pytest.mark.parametrize("write", [stream, file, compressed], ids=["stream", "file", "compressed"])
def test_a_column_given_twice(save, write):
    table = TABLE.append_column("question", TABLE["question"])
    assert "has the column 'question' 2 times; keep one" in refused(save(write(table)))


def test_a_stream_that_is_cut_off_between_its_batches(save):
    """Arrow's reader takes that for its end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=1)
        whole = sink.tell()
    content = sink.getvalue().to_pybytes()
    assert read_examples(save(content), training=True) == EXAMPLES
    assert "damaged data file (it is cut off)" in refused(save(content[:whole]))
