"""The file of verdicts and its exports, read back as training data; writers that are killed, and full disks."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.choices import Choices
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.serve.exports import EXPORTS
from swep_ds.serve.verdicts import Verdicts, row_of
from tests.support.bad_input import refused

TITLE, OTHER = "visits/a,b.txt", "Sister =1+1 did."
CONTEXT = 'A \U0001f3db\r\nFounded in 1852, by "Agnes, Palder" of Elbing; 1852 was cold.\u2028Tram 4.'
SAID = {"answer": "1852", "probability": 0.5, "confidence": 0.75, "start": 16, "end": 20}
# by question, its context, where words of it were marked, what the model said, and whether that is right
GIVEN = {
    "When?": (CONTEXT, (16, 20), SAID, True),
    'Which year was "cold",\nsaid who?': (CONTEXT, (52, 56), SAID, False),
    "What is at the front?": (CONTEXT, (2, 3), None, None),
    "Who flew?": (OTHER, None, SAID | {"answer": "", "start": None, "end": None}, True),
    "Who \U0001f680 flew?": (OTHER, None, SAID | {"start": None, "end": None}, False),
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
    for question, (context, span, said, _) in GIVEN.items():
        verdicts.add(row_of(question, TITLE, context, span, said))
    return verdicts


def add(verdicts: Verdicts, **label: str) -> str:
    return verdicts.add(row_of("Who?", TITLE, "A b.", (0, 1), None) | label)


def reopened(verdicts: Verdicts) -> Verdicts:
    """As a server that starts after this one has ended."""
    verdicts._alone.release()
    return Verdicts(verdicts.path)


def read(file: Path, training: bool = True) -> list[Example]:
    return read_examples(str(file), training=training, choices=Choices(unanswerable="train"))


def test_verdicts_and_their_exports_are_data_to_train_and_to_score_on(verdicts, file):
    rows = list(verdicts.rows.values())
    for name, export in EXPORTS.items():
        file.with_name(name).write_text(export(rows), encoding="utf-8", newline="")
    for name in (file.name, *EXPORTS):
        for training in (True, False):
            examples = {example.id: example for example in read(file.with_name(name), training)}
            for id_, (question, (context, span, _, _)) in zip(verdicts.rows, GIVEN.items(), strict=True):
                answers = (context[slice(*span)],) if span else ()
                expected = Example(id_, question, context, answers, span if training else None, TITLE)
                assert examples.pop(id_) == expected
            assert not examples
    assert [row.get("right") for row in rows] == [right for *_, right in GIVEN.values()]
    assert rows[0]["said"] == SAID


def test_exports_have_the_form_of_their_tools(verdicts):
    rows = [row | {"id": f"q{number}"} for number, row in enumerate(verdicts.rows.values())][1:4]
    qas = []
    for row, answers in zip(rows, ([("1852", 52)], [("\U0001f3db", 2)], []), strict=True):
        qa = {"id": row["id"], "question": row["question"], "is_impossible": not answers}
        qas.append(qa | {"answers": [{"text": text, "answer_start": start} for text, start in answers]})
    paragraphs = [{"context": CONTEXT, "qas": qas[:2]}, {"context": OTHER, "qas": qas[2:]}]
    squad = {"version": "v2.0", "data": [{"title": TITLE, "paragraphs": paragraphs}]}
    assert json.loads(EXPORTS["squad.json"](rows)) == squad
    task, *_ = json.loads(EXPORTS["label-studio.json"](rows))
    [[right], [said]] = (task["annotations"][0]["result"], task["predictions"][0]["result"])
    value = {"start": 52, "end": 56, "text": "1852", "labels": ["Answer"]}
    assert right == {"from_name": "answer", "to_name": "text", "type": "labels", "value": value}
    assert said == right | {"value": value | {"start": 16, "end": 20}}
    assert task["predictions"][0]["score"] == 0.75


def test_undo_removes_a_verdict_and_two_people_on_one_question_are_both_kept(verdicts, file):
    first, *others = verdicts.rows
    verdicts.undo(first)
    assert refused(verdicts.undo, first) == "this verdict was removed before"
    ids = [add(verdicts, asked="q 7"), add(verdicts, asked="q 7")]
    assert (ids[0], ids[1][:4], len(set(ids))) == ("q 7", "q 7 ", 2)
    assert [example.id for example in read(file)] == [*others, *ids]
    verdicts.undo("q 7")
    assert add(verdicts, asked="q 7")[:4] == "q 7 "  # "q 7" is the table's name for the other person's verdict
    assert reopened(verdicts).rows == verdicts.rows


def test_a_file_is_made_by_its_first_verdict_and_has_what_a_killed_undo_left_removed(file):
    left, other = file.with_name(f".{file.name}.123456"), file.with_name(f".{file.name}.old")
    for path in (left, other):
        path.write_bytes(b'{"id": "')
    verdicts = Verdicts(file)
    assert (file.exists(), left.exists(), other.exists()) == (False, False, True)
    added = add(verdicts)
    assert [example.id for example in read(file)] == [added]
    assert list(reopened(verdicts).rows) == [added]


def test_what_two_people_marked_is_in_one_row_of_the_table(verdicts, file):
    """But for words of different contexts, and "no answer" beside words."""
    given = [
        ("q 1", CONTEXT, (16, 20)),
        ("q 1", CONTEXT, (52, 56)),
        ("q 2", CONTEXT, None),
        ("q 2", CONTEXT, (23, 25)),
        ("q 3", CONTEXT, None),
        ("q 3", OTHER, (0, 6)),
    ]
    rows = [verdicts.add(row_of("Who?", TITLE, *about, None) | {"asked": asked}) for asked, *about in given]
    rows = [verdicts.rows[id_] for id_ in rows]
    table = file.with_name("pairs.csv")
    table.write_text(EXPORTS["pairs.csv"](rows[1:]), encoding="utf-8", newline="")
    assert [(example.id, example.answers) for example in read(table, False)] == [
        ("q 1", ("1852",)),
        ("q 2", (CONTEXT[23:25],)),
        ("q 3", ()),
        (rows[-1]["id"], ("Sister",)),
    ]
    table.write_text(EXPORTS["pairs.csv"](rows), encoding="utf-8", newline="")
    assert read(table, False)[0].answers == ("1852", "1852")
    assert read(table, True)[0].span == (16, 20)


def test_what_a_killed_server_has_half_written_is_removed(verdicts, file, caplog):
    whole = file.read_bytes()
    for before, torn in ((whole, b'{"id": "5f", "question": "W\xc3'), (whole, b"{"), (b"", b'{"id": "5f')):
        file.write_bytes(before + torn)
        verdicts = reopened(verdicts)
        assert (file.read_bytes(), len(verdicts.rows)) == (before, before.count(b"\n"))
        assert caplog.messages[-1].endswith("was never saved as a verdict, and is removed")


def test_files_of_something_else_or_another_server_are_refused_and_left_as_they_are(verdicts, file):
    contents = ("note\n", '{"id": "a", "question": "Who?"}\n', "[1]\n", "note", '{"data": []}')
    for number, content in enumerate(contents):
        other = file.with_name(f"other{number}.json")
        other.write_text(content)
        assert refused(Verdicts, other).startswith(f"--output {other}: line 1 is no verdict: correct or remove it")
        assert other.read_text() == content
    row = next(iter(verdicts.rows.values()))
    by_hand = ({"question": None}, {"time": 5}, {"answers": []}, {"answers": {"text": "1852", "answer_start": 16}})
    for number, changed in enumerate(({}, *by_hand)):
        other = file.with_name(f"edited{number}.jsonl")
        other.write_text(f"{json.dumps(row)}\n{json.dumps(row | changed)}\n")
        fault = "is no verdict" if changed else "has the id of an earlier line"
        assert refused(Verdicts, other).startswith(f"--output {other}: line 2 {fault}: correct or remove it")
    assert refused(Verdicts, file).startswith(f"--output {file}: another `swep-ds serve` adds to it: stop that one")


def test_a_full_disk_leaves_the_file_as_it_was(verdicts, file, monkeypatch):
    before, rows = file.read_bytes(), dict(verdicts.rows)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room, said in ((99, "the disk took 99 of"), (0, "File too large")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
        try:
            with pytest.raises(InputError, match=rf"{file}: the verdict is not saved \(.*{said}.*\): make room there"):
                add(verdicts)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (file.read_bytes(), verdicts.rows) == (before, rows)
    full = Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patched:
        patched.setattr("swep_ds.serve.verdicts.write_atomically", full)
        assert "the verdict is not removed" in refused(verdicts.undo, next(iter(rows)))
    added = add(verdicts)
    assert list(reopened(verdicts).rows) == [*rows, added]


def test_what_was_called_saved_is_there_after_a_kill(file):
    saved = []
    for kill in range(5):
        command = [sys.executable, "-c", ADDS_ROWS, str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as adding:
            saved += [adding.stdout.readline().strip() for _ in range(3 + 4 * kill)]
            adding.kill()
            saved += adding.stdout.read().splitlines()
        kept = re.findall('^{"id": "([0-9a-f]{16})"', file.read_text(), re.MULTILINE)
        assert [id_ for id_ in kept if id_ in saved] == saved
    verdicts = Verdicts(file)
    assert set(saved) <= verdicts.rows.keys()
    assert [example.id for example in read(file)] == list(verdicts.rows)


def test_a_file_that_was_replaced_takes_no_verdict_and_a_whole_last_line_stays(tmp_path):
    file = tmp_path / "corrections.jsonl"
    verdicts = Verdicts(file)
    verdicts.add(row_of("Who?", "a.txt", "Ida built it.", (0, 3), None))
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(InputError, match="another program has changed it"):
        verdicts.add(row_of("When?", "a.txt", "Ida built it.", None, None))
    file.write_bytes(content.rstrip(b"\n"))  # as some editors save it
    verdicts._alone.release()
    again = Verdicts(file)
    assert file.read_bytes() == content
    assert len(again.rows) == 1
