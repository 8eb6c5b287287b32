"""Question-answering files of every layout, made from questions as SQuAD has them, and the line that refuses one."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.readers import read_examples


def squad(*qas: dict, context: str, title: str = "Cafes") -> dict:
    return {"version": "1.1", "data": [{"title": title, "paragraphs": [{"context": context, "qas": list(qas)}]}]}


def rows(*qas: dict, context: str, title: str = "Cafes") -> list[dict]:
    answers = [
        {key: [answer[key] for answer in qa["answers"] if key in answer] for key in ("text", "answer_start")}
        for qa in qas
    ]
    return [{**qa, "title": title, "context": context, "answers": a} for qa, a in zip(qas, answers, strict=True)]


def lines(values: list) -> str:
    return "\n".join(json.dumps(value) for value in values) + "\n"


def stream(table: pa.Table, new_writer=pa.ipc.new_stream, **options) -> bytes:
    sink = pa.BufferOutputStream()
    with new_writer(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def file(table: pa.Table) -> bytes:
    return stream(table, pa.ipc.new_file)


def compressed(table: pa.Table) -> bytes:
    return stream(table, options=pa.ipc.IpcWriteOptions(compression="zstd"))


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def refused(source: str, *, training: bool = True, longest: int = 700, **wanted: Any) -> str:
    """The message of the InputError: one short printable line, which a log can hold."""
    with pytest.raises(InputError) as error:
        read_examples(source, training=training, **wanted)
    message = str(error.value)
    message.encode()
    assert message.isprintable()
    assert len(message) < longest + 2 * len(source)
    assert source[:200] in message or not source.isprintable()
    return message


def save(path, content: Any, name: str = "data") -> str:
    """Writes bytes, text or a JSON value to a file of the folder `path`."""
    content = content if isinstance(content, str | bytes) else json.dumps(content)
    (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path / name)
