"""The file of verdicts and its exports, read back as training data; writers that are killed, and full disks."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.choices import Choices
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.serve.exports import EXPORTS
from swep_ds.serve.verdicts import Verdicts, row_of
from tests.support.bad_input import refused

TITLE = "visits/a,b.txt"
CONTEXT = 'A \U0001f3db\r\nFounded in 1852, by "Agnes, Palder" of Elbing; 1852 was cold.\u2028Tram 4.'
SAID = {"answer": "1852", "probability": 0.5, "confidence": 0.75, "start": 16, "end": 20}
DECLINED = SAID | {"answer": "", "start": None, "end": None}
# by question, its context, the words that were marked and where, and what the model said
GIVEN: dict[str, tuple[str, tuple[int, int] | None, dict[str, Any] | None]] = {
    "When?": (CONTEXT, (16, 20), SAID),
    'Which year was "cold",\nsaid who?': (CONTEXT, (52, 56), SAID),
    "What is at the front?": (CONTEXT, (2, 3), None),
    "Who flew?": ("Nobody =1+1 did.", None, DECLINED),
    "Who \U0001f680 flew?": ("Nobody =1+1 did.", None, SAID | {"start": None, "end": None}),
}
ADDS_ROWS = """
import sys
from pathlib import Path
from swep_ds.serve.verdicts import Verdicts, row_of
verdicts = Verdicts(Path(sys.argv[1]))
while True:
    print(verdicts.add(row_of("Who?", "t", "x" * 50_000, (0, 1), None)), flush=True)
"""


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "corrections.jsonl"


@pytest.fixture
def verdicts(file) -> Verdicts:
    verdicts = Verdicts(file)
    for question, (context, span, said) in GIVEN.items():
        verdicts.add(row_of(question, TITLE, context, span, said))
    return verdicts


def reopened(verdicts: Verdicts) -> Verdicts:
    """As a server that starts after this one has ended."""
    verdicts._alone.release()
    return Verdicts(verdicts.path)


def read(file: Path, training: bool) -> list[Example]:
    return read_examples(str(file), training=training, choices=Choices(unanswerable="train"))


def expected(ids: list[str], training: bool) -> list[Example]:
    examples = []
    for id_, (question, (context, span, _)) in zip(ids, GIVEN.items(), strict=True):
        answers = (context[slice(*span)],) if span else ()
        examples.append(Example(id_, question, context, answers, span if training else None, TITLE))
    return examples


@pytest.mark.parametrize("name", ["corrections.jsonl", *EXPORTS])
def test_verdicts_and_their_exports_are_data_to_train_and_to_score_on(verdicts, file, name):
    rows = list(verdicts.rows.values())
    if name in EXPORTS:
        file = file.with_name(name)
        file.write_text(EXPORTS[name](rows), encoding="utf-8", newline="")
    for training in (True, False):
        examples = sorted(read(file, training), key=lambda example: list(GIVEN).index(example.question))
        assert examples == expected(list(verdicts.rows), training)
    assert [row.get("right") for row in rows] == [True, False, None, True, False]
    assert rows[0]["said"] == SAID


def test_exports_have_the_form_of_their_tools(verdicts):
    rows = list(verdicts.rows.values())
    ids = list(verdicts.rows)
    qas = []
    for id_, (question, (context, span, _)) in zip(ids, GIVEN.items(), strict=True):
        answers = [{"text": context[slice(*span)], "answer_start": span[0]}] if span else []
        qas.append({"id": id_, "question": question, "is_impossible": not span, "answers": answers})
    paragraphs = [{"context": CONTEXT, "qas": qas[:3]}, {"context": "Nobody =1+1 did.", "qas": qas[3:]}]
    articles = [{"title": TITLE, "paragraphs": paragraphs}]
    assert json.loads(EXPORTS["squad.json"](rows)) == {"version": "v2.0", "data": articles}
    task = json.loads(EXPORTS["label-studio.json"](rows))[1]
    regions = []
    for [result] in (task["annotations"][0]["result"], task["predictions"][0]["result"]):
        assert (result["from_name"], result["to_name"], result["type"]) == ("answer", "text", "labels")
        regions.append(result["value"])
    label = {"text": "1852", "labels": ["Answer"]}
    assert regions == [{"start": 52, "end": 56} | label, {"start": 16, "end": 20} | label]
    assert task["predictions"][0]["score"] == 0.75


def test_a_verdict_is_undone_and_the_others_stay(verdicts, file):
    first, *others = verdicts.rows
    verdicts.undo(first)
    assert refused(verdicts.undo, first) == "this verdict was removed before"
    again = verdicts.add(row_of("Who?", TITLE, "A b.", (0, 1), None))
    assert list(verdicts.rows) == [*others, again]
    assert [example.id for example in read(file, True)] == [*others, again]
    assert reopened(verdicts).rows == verdicts.rows


def test_two_people_on_one_question_are_both_kept(verdicts):
    ids = [verdicts.add(row_of("Who?", TITLE, "A b.", (n, n + 1), None), "q 7") for n in (0, 2)]
    assert ids[0] == "q 7"
    assert ids[1].startswith("q 7 ")
    assert [verdicts.rows[id_]["answers"]["text"] for id_ in ids] == [["A"], ["b"]]


def test_what_a_killed_server_has_half_written_is_removed(verdicts, file, caplog):
    before = file.read_bytes()
    for torn in (b'{"id": "5f", "question": "W\xc3', b"{"):
        file.write_bytes(before + torn)
        verdicts = reopened(verdicts)
        assert (file.read_bytes(), list(verdicts.rows)) == (before, [example.id for example in read(file, True)])
        assert caplog.messages[-1].endswith("was never saved as a verdict, and is removed")
    file.write_bytes(b'{"id": "5f"')
    assert (reopened(verdicts).rows, file.read_bytes()) == ({}, b"")


@pytest.mark.parametrize("content", ["note\n", '{"id": "a", "question": "Who?"}\n', "[1]\n", "note", '{"data": []}'])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(file, content):
    file.write_text(content)
    assert refused(Verdicts, file).startswith(f"--output {file}: line 1 is no verdict: name a new file")
    assert file.read_text() == content


def test_a_second_server_on_the_same_file_is_refused(verdicts, file):
    said = f"--output {file}: another `swep-ds serve` adds to it: stop that one, or name another file"
    assert refused(Verdicts, file) == said
    verdicts.add(row_of("Who?", TITLE, "A b.", (0, 1), None))
    assert "there is no folder" in refused(Verdicts, file.parent / "none" / "c.jsonl")


def test_a_full_disk_leaves_the_file_as_it_was(verdicts, file, monkeypatch):
    before = file.read_bytes()
    rows = dict(verdicts.rows)
    whole = verdicts._file
    half = Mock(wraps=whole, write=lambda line: whole.write(line[: len(line) // 2]))
    full = Mock(wraps=whole, write=Mock(side_effect=OSError(28, "No space left on device")))
    for disk, said in ((half, "the disk took"), (full, "No space left on device")):
        monkeypatch.setattr(verdicts, "_file", disk)
        with pytest.raises(InputError, match=f"{file}: the verdict is not saved .*{said}.*: make room there"):
            verdicts.add(row_of("Who?", TITLE, "A b.", (0, 1), None))
        assert (file.read_bytes(), verdicts.rows) == (before, rows)
    monkeypatch.setattr(verdicts, "_file", whole)
    with monkeypatch.context() as patched:
        patched.setattr("swep_ds.serve.verdicts.write_atomically", full.write)
        assert "the verdict is not removed" in refused(verdicts.undo, next(iter(rows)))
    assert (file.read_bytes(), verdicts.rows) == (before, rows)
    added = verdicts.add(row_of("Who?", TITLE, "A b.", (0, 1), None))
    assert list(reopened(verdicts).rows) == [*rows, added]


def test_what_was_called_saved_is_there_after_a_kill(file):
    saved = []
    for kill in range(5):
        command = [sys.executable, "-c", ADDS_ROWS, str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as adding:
            for _ in range(3 + 7 * kill):
                saved.append(adding.stdout.readline().strip())
            adding.kill()
            saved += adding.stdout.read().splitlines()
        kept = re.findall('^{"id": "([0-9a-f]{16})"', file.read_text(), re.MULTILINE)
        assert [id_ for id_ in kept if id_ in saved] == saved
    verdicts = Verdicts(file)
    assert set(saved) <= verdicts.rows.keys()
    assert [example.id for example in read(file, True)] == list(verdicts.rows)
