"""Faulty fields in every layout: text, numbers and offsets; one message names all faulty questions of a file."""

import json
import os

import pytest

from swep_ds.data.readers import read_examples
from tests.support import qa_files
from tests.support.qa_files import lines, refused

CONTEXT = "The cafe opened in 1998. It serves tea."
HALF = "\ud800"


def question(**changes):
    qa = {"id": "q1", "question": "When?", "answers": [{"text": "1998", "answer_start": 19}]}
    return qa | changes


def squad(*qas, context=CONTEXT, **title):
    return json.dumps(qa_files.squad(*qas, context=context, **title))


def rows(*qas, context=CONTEXT, **title):
    return lines(qa_files.rows(*qas, context=context, **title))


def mrqa(*qas, context=CONTEXT, **title):
    asked = []
    for qa in qas:
        texts = [answer["text"] for answer in qa["answers"]]
        starts = [answer.get("answer_start", 0) for answer in qa["answers"]]
        spans = [[start, start + 3 if type(start) is int else start] for start in starts]
        detected = [{"text": text, "char_spans": [span]} for text, span in zip(texts, spans, strict=True)]
        asked.append({"qid": qa["id"], "question": qa["question"], "answers": texts, "detected_answers": detected})
    return json.dumps({"context": context, "qas": asked})


LAYOUTS = {"squad": squad, "rows": rows, "mrqa": mrqa}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


# All questions of a file at once


@layouts
@pytest.mark.parametrize("training", [True, False])
def test_all_questions_without_answers_are_named_at_once(save, layout, training):
    qas = [question(id=f"q{i}", answers=[]) if i % 3 == 1 else question(id=f"q{i}") for i in range(320)]
    message = refused(save(layout(*qas)), training=training, longest=2000)
    assert "question 'q1': has no answer" in message
    named = ", ".join(f"'q{i}'" for i in range(4, 304, 3))
    assert message.endswith(f"106 more of this file's questions have faults: {named} and 6 others")


@layouts
def test_where_every_question_has_a_fault_the_others_are_counted(save, layout):
    moved = [{"text": "1998", "answer_start": 18}]
    message = refused(save(layout(*(question(id=f"q{i}", answers=moved if i else []) for i in range(150)))))
    assert "question 'q0': has no answer" in message
    assert message.endswith("; all other 149 questions of this file have faults, too")


@layouts
def test_all_wrong_offsets_are_named_at_once(save, layout):
    """Such data had its white space changed after its offsets were computed."""
    moved = [{"text": "1998", "answer_start": 18}]
    qas = [question(id=f"q{i}", answers=moved) if i in (2, 5, 6) else question(id=f"q{i}") for i in range(8)]
    message = refused(save(layout(*qas)))
    assert "question 'q2': the answer '1998' is not at " in message
    assert "2 more of this file's questions have faults: 'q5', 'q6'" in message
    assert "others" not in message
    assert len(read_examples(save(layout(*qas)), training=False)) == 8


@layouts
def test_faults_of_several_kinds_and_one_alone(save, layout):
    message = refused(save(layout(question(question=" "), question(id=True), question(id="q3", answers=[]))))
    assert "question 'q1': question is empty" in message
    assert "2 more of this file's questions have faults" in message
    assert "more" not in refused(save(layout(question(), question(id="q2", question=" "))))


@layouts
def test_thousands_of_long_ids_are_cut_in_a_message(save, layout):
    refused(save(layout(*(question(id=f"{i}" + "x" * 3000, answers=[]) for i in range(2000)))), longest=9000)


# Text


@layouts
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"id": f"q{HALF}"}, "id holds half"),
        ({"question": f"When{HALF}?"}, "question holds half"),
        ({"answers": [{"text": f"19{HALF}8", "answer_start": 19}]}, "an answer holds half"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_half_of_a_surrogate_pair_is_not_text(save, layout, changes, name, training):
    """Nothing could be written with it: a run would end where it writes its predictions."""
    if layout is mrqa and name.startswith("id"):
        name = "qid holds half"
    assert name in refused(save(layout(question(**changes))), training=training)


@layouts
def test_half_of_a_surrogate_pair_in_a_context_or_title(save, layout):
    assert "context holds half" in refused(save(layout(question(), context=CONTEXT + HALF)))
    if layout is not mrqa:
        assert "title holds half" in refused(save(layout(question(), title=HALF)))


def test_whole_surrogate_pairs_are_text(save):
    source = save(squad(question(id="q\ud83d\ude00", question="When? \ud83d\ude00"), title="\ud83d\ude00"))
    (example,) = read_examples(source, training=True)
    assert (example.id, example.question, example.article) == ("q\U0001f600", "When? \U0001f600", "\U0001f600")


@layouts
def test_control_characters_of_ids_do_not_reach_the_terminal(save, layout):
    message = refused(save(layout(question(id="q\n\x1b[31m\u202e", answers=[]), question(id="\r\x07", answers=[]))))
    assert r"q\n\x1b[31m\u202e" in message
    assert r"\r\x07" in message


def test_control_characters_of_file_names_do_not_reach_the_terminal(save, tmp_path):
    source = save(squad(question(id=None)), "a\n\x1b[31mb.json")
    (example,) = read_examples(source, training=True)  # whose id comes from the file's name
    assert example.id.isprintable()
    refused(save("{", "c\n\x1b.json"))
    refused(str(tmp_path / "missing\n\x1b.json"))


def test_a_file_name_of_other_bytes_than_utf_8(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")
    with open(path, "w") as file:
        file.write(squad(question(id=None)))
    (example,) = read_examples(path, training=True)
    assert example.id.encode()


# Numbers


@layouts
@pytest.mark.parametrize(
    "start",
    [True, False, "19th", 19.5, [19], {}, float("inf"), -20, 10**9, 10**30],
    ids=str,
)
def test_offsets_that_are_no_places_in_the_context(save, layout, start):
    refused(save(layout(question(answers=[{"text": "1998", "answer_start": start}]))))


@layouts
@pytest.mark.parametrize("id_", [True, False, 1.5, [], {}, [[[[[[[[1]]]]]]]]])
def test_ids_that_are_neither_text_nor_whole_numbers(save, layout, id_):
    assert "expected a string or number" in refused(save(layout(question(id=id_))))


def test_values_nested_deep_in_a_message(save):
    assert "expected a string" in refused(save(squad(question()).replace('"When?"', "[" * 900 + "]" * 900)))


# Other layouts


def test_rows_without_answers_say_what_is_read(save):
    message = refused(save(json.dumps({"id": "1", "question": "When?", "context": CONTEXT, "reply": "1998"})))
    assert "field 'answers' is missing (found: ['id', 'question', 'context', 'reply'])" in message
    assert "or a list of texts; or give one text in a field 'answer'" in message


# Files


@pytest.mark.parametrize("name", ["data.json", "data", "data.arrow"])
@pytest.mark.parametrize("within", [False, True])
def test_a_pipe_is_not_a_file(tmp_path, name, within):
    os.mkfifo(tmp_path / name)
    message = refused(str(tmp_path if within else tmp_path / name))
    assert ("no data file in this folder" if within else "is not a regular file") in message


@pytest.mark.parametrize("source", ["/dev/zero", "/dev/null", "/dev/stdin", "~no-such-user/x.json", "a\0b", "x" * 5000])
def test_what_is_not_a_file(source):
    refused(source)


def test_links_that_lead_nowhere(tmp_path):
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "missing.json")
    refused(str(tmp_path / "loop.json"))
    refused(str(tmp_path / "dangling.json"))
    assert "no data file" in refused(str(tmp_path))


def test_a_folder_that_may_not_be_read(tmp_path, monkeypatch):
    def iterdir(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("swep_ds.data.readers.Path.iterdir", iterdir)
    assert "cannot be read ([Errno 13] Permission denied)" in refused(str(tmp_path))
