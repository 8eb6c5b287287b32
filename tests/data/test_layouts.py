"""Faulty fields in every layout: text, numbers and offsets; one message names all faulty questions of a file."""

import json

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
def test_all_wrong_offsets_are_named_at_once(save, layout):
    """Such data had its white space changed after its offsets were computed."""
    moved = [{"text": "1998", "answer_start": 18}]
    qas = [question(id=f"q{i}", answers=moved) if i in (2, 5, 6) else question(id=f"q{i}") for i in range(8)]
    message = refused(save(layout(*qas)))
    assert "question 'q2': the answer '1998' is not at " in message
    assert "2 more of this file's questions have faults: 'q5', 'q6'" in message
    assert "others" not in message
    assert len(read_examples(save(layout(*qas)), training=False)) == 8


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


# Numbers


@layouts
@pytest.mark.parametrize(
    "start",
    ["19th", 19.5, [19], -20, 10**9],
    ids=str,
)
def test_offsets_that_are_no_places_in_the_context(save, layout, start):
    refused(save(layout(question(answers=[{"text": "1998", "answer_start": start}]))))


# Other layouts


def test_rows_without_answers_say_what_is_read(save):
    message = refused(save(json.dumps({"id": "1", "question": "When?", "context": CONTEXT, "reply": "1998"})))
    assert "field 'answers' is missing (found: ['id', 'question', 'context', 'reply'])" in message
    assert "or a list of texts; or give one text in a field 'answer'" in message


# Files
