"""Damaged, hostile and unusual Arrow and Parquet data: read, or refused in one line; the process never ends."""

import json
import random
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from swep_ds.data.readers import Example, read_examples
from tests.support.qa_files import TABLE_WRITERS as WRITERS
from tests.support.qa_files import compressed, file, parquet, refused, rows, stream

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
def test_columns_that_are_not_read_may_hold_anything(save, write):
    table = TABLE.append_column("more", pa.array([b"\xff", None])).append_column("more", pa.array([1, 2]))
    assert read_examples(save(write(table)), training=True) == EXAMPLES


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_more_rows_than_are_converted_at_a_time(save, write):
    examples = read_examples(save(write(pa.Table.from_pylist(questions(3000)))), training=True)
    assert [example.id for example in examples] == [f"q{i}" for i in range(3000)]
    assert len({id(example.context) for example in examples}) == 1


# Wrong


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("question", pa.array([None, None]), "field 'question' is None; expected a string"),
        ("question", pa.array([b"When?"] * 2), "field 'question' is b'When?'; expected a string"),
        ("question", pa.array([0, 1], pa.timestamp("s")), "field 'question' is datetime"),
        ("question", pa.array([["When?"]] * 2), "field 'question' is ['When?']; expected a string"),
        ("id", pa.array([True, False]), "field 'id' is True; expected a string or number"),
        ("id", pa.array([1.5, 2.5]), "field 'id' is 1.5; expected a string or number"),
        ("answers", pa.array(["1998"] * 2), "field 'answers' is '1998'; expected an object with two lists"),
        ("answers", pa.array([[{"text": "1998"}]] * 2), "the answer {'text': '1998'} is not text; give a string"),
        ("answers", pa.array([{"text": "1998"}] * 2), "answers: field 'text' is '1998'; expected a list"),
        ("answers", pa.array([{"text": ["2001"]}] * 2), "the answer '2001' does not occur in its context"),
        ("answers", pa.array([{"text": ["1998"], "answer_start": [True]}] * 2), "answer_start is True; expected"),
        ("answers", pa.array([{"text": ["1998"], "answer_start": [19.0]}] * 2), "answer_start is 19.0; expected"),
    ],
)
def test_columns_of_other_types(save, write, name, column, message):
    assert message in refused(save(write(with_column(name, column))))


@pytest.mark.parametrize("write", [stream, file, compressed], ids=["stream", "file", "compressed"])
def test_a_column_given_twice(save, write):
    table = TABLE.append_column("question", TABLE["question"])
    assert "has the column 'question' 2 times; keep one" in refused(save(write(table)))


def test_rows_that_the_file_cannot_hold(save):
    """A few bytes can claim any number of rows of empty columns."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(10**6)] * 3, names=["question", "context", "answers"])
    assert "claims 1000000 rows in" in refused(save(stream(pa.Table.from_batches([batch]))))
    assert "claims 1000000 rows" in refused(save(parquet(pa.Table.from_batches([batch]))))


@pytest.mark.parametrize(
    ("offsets", "values"),
    [(b"\0\0\0\0\1\0\0\0\2\0\0\0", b"\xff\xfe"), (b"\0\0\0\0\xff\xff\xff\x7f\2\0\0\0", b"ab")],
    ids=["no UTF-8", "offsets out of bounds"],  # which crash the process if nothing checks them
)
def test_strings_that_are_damaged(save, offsets, values):
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(values))
    assert "damaged data file" in refused(save(stream(with_column("question", broken))))


DAMAGED = """
import random, sys
from pathlib import Path
from swep_ds.data.readers import read_examples
from swep_ds.errors import InputError

for path in sorted(Path(sys.argv[1]).iterdir()):
    content = path.read_bytes()
    for seed in range(int(sys.argv[2])):
        rng, damaged = random.Random(f"{path.name} {seed}"), bytearray(content)
        for _ in range(rng.choice([1, 1, 2, 4, 16])):
            damaged[rng.randrange(6, len(damaged))] = rng.choice([0, 127, 128, 255, rng.randrange(256)])
        if seed % 10 == 0:
            del damaged[rng.randrange(8, len(damaged)):]
        Path(sys.argv[3]).write_bytes(damaged)
        print(path.name, seed, flush=True)
        try:
            read_examples(sys.argv[3], training=True)
        except InputError as error:
            assert "\\n" not in str(error)
"""


def test_damaged_bytes_end_in_one_line(tmp_path):
    """In another process, as a fault in Arrow's own code would end it."""
    (tmp_path / "whole").mkdir()
    for name, write in WRITERS.items():
        (tmp_path / "whole" / name).write_bytes(write(pa.Table.from_pylist(questions(40))))
    command = [sys.executable, "-c", DAMAGED, str(tmp_path / "whole"), "100", str(tmp_path / "damaged")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout[-50:], done.stderr[-2000:])


def test_a_stream_that_is_cut_off_between_its_batches(save):
    """Arrow's reader takes that for its end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=1)
        whole = sink.tell()
    content = sink.getvalue().to_pybytes()
    assert read_examples(save(content), training=True) == EXAMPLES
    assert "damaged data file (it is cut off)" in refused(save(content[:whole]))


# Saved data sets


@pytest.fixture
def folder(tmp_path):
    datasets.Dataset.from_list(questions()).save_to_disk(tmp_path / "saved", num_shards=2)
    return tmp_path / "saved"


def test_a_saved_data_set_is_read_in_the_order_of_its_state(folder):
    assert read_examples(str(folder), training=True) == EXAMPLES
    change_state(folder, lambda state: state["_data_files"].reverse())
    assert read_examples(str(folder), training=True) == EXAMPLES[::-1]


def change_state(folder, change):
    state = json.loads((folder / "state.json").read_text())
    change(state)
    (folder / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.clear(), "'_data_files' is not a list of different file names"),
        (lambda state: state.update(_data_files=None), "'_data_files' is not a list of different file names"),
        (
            lambda state: state.update(_data_files=["data-00000-of-00002.arrow"]),
            "is not a list of different file",
        ),
        (lambda state: state.update(_data_files=[{"filename": "../secret"}]), "is not a list of different file"),
        (
            lambda state: state.update(_data_files=[{"filename": "/etc/passwd"}]),
            "is not a list of different file",
        ),
        (lambda state: state.update(_data_files=[{"filename": ".."}]), "is not a list of different file"),
        (lambda state: state.update(_data_files=[{"filename": 5}]), "is not a list of different file"),
        (lambda state: state.update(_data_files=[{"filename": ["a"]}]), "is not a list of different file"),
        (lambda state: state["_data_files"].append(state["_data_files"][0]), "is not a list of different file"),
        (lambda state: state["_data_files"].pop(), "does not name data-00001-of-00002.arrow beside it"),
        (lambda state: state["_data_files"].append({"filename": "none.arrow"}), "none.arrow: no such file"),
    ],
)
def test_a_wrong_state(folder, change, message):
    change_state(folder, change)
    assert message in refused(str(folder))


@pytest.mark.parametrize("content", ["", "[]", "null", "{", '{"a": 1, "a": 2}', "[" * 10**5, "1" * 5000, b"\xff"])
def test_damaged_json_of_a_saved_data_set(folder, tmp_path, content):
    content = content if isinstance(content, bytes) else content.encode()
    (folder / "state.json").write_bytes(content)
    assert str(folder / "state.json") in refused(str(folder))
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict" / "dataset_dict.json").write_bytes(content)
    assert str(tmp_path / "dict" / "dataset_dict.json") in refused(str(tmp_path / "dict"))


@pytest.mark.parametrize("splits", [["../saved"], ["/tmp"], [5], "train", [[]], [""], [".."], ["train"]])
def test_splits_that_leave_the_folder_or_are_not_there(save, tmp_path, splits):
    save({"splits": splits}, "dataset_dict.json")
    said = "state.json: no such file" if splits == ["train"] else "damaged: no list of names in its field 'splits'"
    assert said in refused(str(tmp_path))


def test_dataset_info_is_not_needed(folder):
    """The Arrow schema alone says how to read the rows."""
    (folder / "dataset_info.json").write_text("[" * 10**5)
    assert read_examples(str(folder), training=True) == EXAMPLES


def test_a_damaged_shard(folder):
    rng = random.Random(0)
    (shard, _) = sorted(folder.glob("*.arrow"))
    content = shard.read_bytes()
    for _ in range(30):
        shard.write_bytes(content[: rng.randrange(len(content))])
        refused(str(folder))
    shard.unlink()
    assert f"{shard.name}: no such file" in refused(str(folder))
    Path(shard).mkdir()
    assert f"{shard.name}: is not a regular file" in refused(str(folder)) or "cannot be read" in refused(str(folder))
