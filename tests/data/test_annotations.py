"""Exports of annotation tools, made here in the shapes that the tools write: what is an answer, where, and what is left
out. Offsets are looked up in the context."""

import csv
import io
import json

import pandas as pd
import pyarrow as pa
import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.annotations import annotated_rows, tool_of
from swep_ds.data.choices import Choices
from swep_ds.data.formats import numbered
from swep_ds.data.readers import read_examples
from tests.support.qa_files import lines, parquet, refused

CONTEXT = "The 🛶 race began in 1894. Mira Holt won it in 1902, and in 1902 the pier fell."
YEAR, WINNER, FALL = "When did the race begin?", "Who won it?", "When did the pier fall?"
SECOND = CONTEXT.rindex("1902")
OLD = {"text": ["1902"], "answer_start": [CONTEXT.index("1902")]}


DECLINING = Choices(unanswerable="train")


def read(file: str):
    return read_examples(file, training=True, choices=DECLINING)


def rows(*items: dict, labels: bool = True):
    """The rows that the items become, and the remarks."""
    given = list(annotated_rows(numbered(items), (), set(), labels=labels))
    remarks = [(str(item.row.get("id") or item.place), item.remark, item.left_out) for item in given if item.remark]
    return [item.row for item in given if not item.left_out], remarks


def pairs(*items: dict) -> list[list[tuple[str, int]]]:
    """The answers of each question, with their offsets."""
    answers = [row["answers"] for row in rows(*items)[0]]
    return [list(zip(given["text"], given["answer_start"], strict=True)) for given in answers]


def units(start: int) -> int:
    """UTF-16 units before a character of the context."""
    return len(CONTEXT[:start].encode("utf-16-le")) // 2


def region(marked: str, start: int | None = None, *, label="Answer", utf16=False, **changed) -> dict:
    """A region of Label Studio."""
    start = CONTEXT.index(marked) if start is None else start
    end = start + len(marked)
    if utf16:
        start, end = units(start), units(end)
    return {"start": start, "end": end, "text": marked, "labels": [label], **changed}


def task(id_: int, question: str, *annotations: list[dict] | None, **data) -> dict:
    """A task of Label Studio's JSON; an annotation is its regions or, if it was skipped, None."""
    made = [
        {
            "id": 10 * id_ + number,
            "was_cancelled": regions is None,
            "result": [
                {"from_name": "mark", "to_name": "text", "type": "labels", "value": value} for value in regions or []
            ],
        }
        for number, regions in enumerate(annotations)
    ]
    return {"id": id_, "data": {"text": CONTEXT, "question": question, **data}, "annotations": made, "predictions": []}


def annotation(id_: int, question: str, regions, **other) -> dict:
    """A row of Label Studio's JSON-MIN."""
    row = {
        "id": id_,
        "context": CONTEXT,
        "question": question,
        "annotator": 1,
        "annotation_id": 10 * id_,
        "lead_time": 2.5,
        **other,
    }
    return row if regions is None else {**row, "mark": regions}


def prodigy(question: str, *spans: tuple[str, int], answer="accept", **other) -> dict:
    marked = [{"start": start, "end": start + len(text), "label": "ANSWER"} for text, start in spans]
    row = {"text": CONTEXT, "question": question, "_task_hash": 5, "_view_id": "ner_manual", "answer": answer}
    return {**row, "spans": marked, **other}


def doccano(question: str, *spans: tuple[str, int], **other) -> dict:
    marked = [[units(start), units(start + len(text)), "ANSWER"] for text, start in spans]
    return {"id": 4, "text": CONTEXT, "question": question, "label": marked, "Comments": [], **other}


def argilla(id_: str, question: str, *responses: tuple[str, list | None], **other) -> dict:
    """A flattened record; a response is its status and the (text, start) pairs."""
    values = [
        None
        if marked is None
        else [{"start": units(at), "end": units(at + len(text)), "label": "x"} for text, at in marked]
        for _, marked in responses
    ]
    row = {"id": id_, "context": CONTEXT, "question": question, "span.suggestion": None}
    statuses = [status for status, _ in responses]
    return {**row, "span.responses": values or None, "span.responses.status": statuses or None, **other}


YEAR_PAIR = ("1894", CONTEXT.index("1894"))
FALL_PAIR = ("1902", SECOND)
WINNER_PAIR = ("Mira Holt", CONTEXT.index("Mira"))
MARKED = [region(*FALL_PAIR)]
SAME = {  # two questions in every shape: one with an answer that occurs twice, one without an answer
    "Label Studio": [task(1, FALL, MARKED), task(2, "Why?", [])],
    "Label Studio before 1.0": [
        {"id": 1, "data": {"context": CONTEXT, "question": FALL}, "completions": [{"result": [{"value": MARKED[0]}]}]},
        {"id": 2, "data": {"context": CONTEXT, "question": "Why?"}, "completions": [{"id": 3, "result": []}]},
    ],
    "JSON-MIN": [annotation(1, FALL, MARKED), annotation(2, "Why?", None)],
    "Prodigy": [prodigy(FALL, FALL_PAIR), prodigy("Why?")],
    "Prodigy, renamed": [
        {"context": CONTEXT, "question": FALL, "spans": prodigy("", FALL_PAIR)["spans"], "answer": "accept"},
        {"context": CONTEXT, "question": "Why?", "spans": [], "answer": "accept"},
    ],
    "Prodigy, question in meta": [
        {key: value for key, value in prodigy("", *spans, meta={"question": question}).items() if key != "question"}
        for question, *spans in ((FALL, FALL_PAIR), ("Why?",))
    ],
    "doccano": [doccano(FALL, FALL_PAIR), doccano("Why?", id=5)],
    "doccano, old names": [
        {"text": CONTEXT, "labels": doccano("", FALL_PAIR)["label"], "meta": {"question": FALL}},
        {"text": CONTEXT, "labels": [], "meta": {"question": "Why?"}},
    ],
    "doccano, relations": [
        {
            "text": CONTEXT,
            "question": FALL,
            "entities": [{"id": 1, "label": "A", "start_offset": units(SECOND), "end_offset": units(SECOND + 4)}],
            "relations": [],
        },
        {"text": CONTEXT, "question": "Why?", "entities": [], "relations": []},
    ],
    "Argilla": [argilla("a", FALL, ("submitted", [FALL_PAIR])), argilla("b", "Why?", ("submitted", []))],
}


@pytest.mark.parametrize("items", SAME.values(), ids=SAME)
def test_spans_become_answers_with_their_places(save, items):
    for text in (lines(items), json.dumps(items)):
        with_answer, without = read(save(text))
        assert (with_answer.question, with_answer.context) == (FALL, CONTEXT)
        assert (with_answer.answers, with_answer.span) == (("1902",), (SECOND, SECOND + 4))
        assert (without.question, without.answers, without.span) == ("Why?", (), None)
    assert len(read(save(lines(items[:1])))) == 1  # a line alone is a JSON document
    assert [row["is_impossible"] for row in rows(*items)[0]] == [False, True]
    assert "has no answer" in refused(save(json.dumps(items)))


def test_a_table_of_text_holds_regions_as_json_or_as_python_prints_them(save):
    made = [annotation(1, FALL, MARKED), annotation(2, "Why?", ""), annotation(3, YEAR, "", annotation_id="")]
    for write in (json.dumps, str):
        table = io.StringIO()
        writer = csv.DictWriter(table, made[0])
        writer.writeheader()
        writer.writerows({**row, "mark": row["mark"] and write(row["mark"])} for row in made)
        first, second = read(save(table.getvalue()))
        assert (first.id, first.span, second.id, second.answers) == ("1", (SECOND, SECOND + 4), "2", ())
    records = [argilla("a", FALL, ("submitted", [FALL_PAIR])), argilla("b", YEAR, ("discarded", [YEAR_PAIR]))]
    assert [example.span for example in read(save(pd.DataFrame(records).to_csv()))] == [(SECOND, SECOND + 4)]


@pytest.mark.parametrize("items", [SAME[tool] for tool in ("Argilla", "Prodigy", "JSON-MIN", "doccano, relations")])
def test_a_table_of_arrow_keeps_the_columns_of_an_export(save, items):
    items = [{"Comments": [], "context": CONTEXT, **item} for item in items]
    with_answer, without = read(save(parquet(pa.Table.from_pylist(items))))
    assert (with_answer.span, without.answers) == ((SECOND, SECOND + 4), ())


def test_annotators_are_pooled_and_what_they_passed_over_is_left_out():
    both = [[WINNER_PAIR, FALL_PAIR]]
    assert pairs(task(1, WINNER, [region(*WINNER_PAIR)], [region(*WINNER_PAIR), region(*FALL_PAIR)], None)) == both
    assert pairs(annotation(1, WINNER, [region(*WINNER_PAIR)]), annotation(1, WINNER, [region(*FALL_PAIR)])) == both
    assert pairs(prodigy(WINNER, WINNER_PAIR), prodigy(WINNER, FALL_PAIR), prodigy(WINNER, answer="reject")) == both
    assert pairs(argilla("a", WINNER, ("submitted", [WINNER_PAIR]), ("submitted", [FALL_PAIR]))) == both
    assert pairs(task(1, WINNER, [], [region(*WINNER_PAIR)])) == [[WINNER_PAIR]]
    assert len(pairs(prodigy(WINNER, WINNER_PAIR), prodigy(YEAR, YEAR_PAIR))) == 2

    shown, remarks = rows(
        task(1, YEAR, [region(*YEAR_PAIR)]), task(2, WINNER, None), task(3, FALL), task(4, FALL, None, None)
    )
    assert [row["id"] for row in shown] == [1]
    skipped = "skipped: left out"
    assert remarks == [("2", skipped, True), ("3", "not annotated: left out", True), ("4", skipped, True)]
    _, remarks = rows(prodigy(YEAR, YEAR_PAIR, answer="reject"), prodigy(WINNER, answer="ignore"))
    assert remarks == [("row 0", "rejected: left out", True), ("row 1", "ignored: left out", True)]
    _, remarks = rows(
        argilla("a", YEAR, ("discarded", [YEAR_PAIR]), ("draft", None)),
        argilla("b", YEAR, **{"span.suggestion": [{"start": 0, "end": 3, "label": "x"}]}),
    )
    assert remarks == [("a", "discarded, draft: left out", True), ("b", "not annotated: left out", True)]
    shown, remarks = rows(annotation(1, YEAR, None, annotation_id=None), annotation(2, FALL, MARKED))
    assert ([row["id"] for row in shown], remarks) == ([2], [("1", "not annotated: left out", True)])


def test_questions_alone_are_read_whatever_annotators_did(save):
    items = [task(1, YEAR, None), task(2, FALL, MARKED), task(3, WINNER)]
    questions = read_examples(save(json.dumps(items)), training=False, labels=False)
    assert [(example.question, example.answers) for example in questions] == [(YEAR, ()), (FALL, ()), (WINNER, ())]
    shown, remarks = rows(*items, labels=False)
    assert (["answers" in row for row in shown], remarks) == ([False, True, False], [])


def test_an_annotation_overrules_the_answer_that_was_imported_and_says_so():
    told = [("1", "the imported answer is not read: the annotation counts", False)]
    for old in ({"answers": OLD}, {"answer": "1894"}):
        for item in (
            task(1, FALL, MARKED, **old),
            annotation(1, FALL, MARKED, **old),
            doccano(FALL, FALL_PAIR, **{**old, "id": 1}),
            argilla("1", FALL, ("submitted", [FALL_PAIR]), **old),
        ):
            shown, remarks = rows(item)
            assert (shown[0]["answers"], remarks) == ({"text": ["1902"], "answer_start": [SECOND]}, told)
    shown, remarks = rows(prodigy(FALL, FALL_PAIR, answers=OLD, id=1), prodigy(YEAR, answer="reject", answers=OLD))
    assert (shown[0]["answers"]["answer_start"], remarks[0]) == ([SECOND], *told)
    assert rows(task(1, FALL, [], answers=OLD), task(2, FALL, MARKED))[1] == told
    assert not rows(task(1, FALL, MARKED, answers={"text": ["1902"], "answer_start": [SECOND]}, answer=None))[1]


def test_the_text_of_label_studio_tells_how_its_offsets_count():
    old = region(*FALL_PAIR, utf16=True)
    assert old["start"] == SECOND + 1
    assert pairs(annotation(1, FALL, [old])) == [[FALL_PAIR]]
    assert pairs(annotation(1, YEAR, [region("The", 0, text=None)])) == [[("The", 0)]]
    with pytest.raises(InputError, match=r"question '1': its span .* or two"):
        rows(annotation(1, FALL, [region(*FALL_PAIR, text=None)]))
    words = region("Mira Holt", text="ira H")  # granularity="word"
    assert pairs(annotation(1, WINNER, [words])) == [[WINNER_PAIR]]
    broken = "A hut\r\nby  the sea."
    marked = {"start": 2, "end": 14, "text": "hut\\nby the", "labels": ["Answer"]}
    assert pairs(annotation(1, "What?", [marked], context=broken)) == [[("hut\r\nby  the", 2)]]


def test_spans_that_fit_no_place_are_refused(save):
    wrong = region(*FALL_PAIR, text="1894")
    assert "'1894' is not at answer_start" in refused(
        save(json.dumps([annotation(1, FALL, [wrong])])), choices=DECLINING
    )
    for start, end in ((4, 5), (9, 9), (60, 999), (-4, 8)):  # the first is half of an emoji
        with pytest.raises(InputError, match=r"question '4': its span .* is no place"):
            rows(doccano(FALL, label=[[start, end, "A"]]))
    html = {**region("1894"), "start": "/p[1]/text()[1]", "end": "/p[1]/text()[1]"}
    with pytest.raises(InputError, match="in plain text, not in HTML"):
        rows(task(1, YEAR, [html]))


def test_of_several_labels_or_columns_that_of_the_answers_is_read():
    evidence = region("Mira Holt won it", label="Evidence")
    assert pairs(annotation(1, WINNER, [evidence, region(*WINNER_PAIR, label="ANSWER")])) == [[WINNER_PAIR]]
    assert pairs(annotation(1, WINNER, [evidence])) == [[(evidence["text"], evidence["start"])]]
    both = argilla("a", WINNER, ("submitted", [WINNER_PAIR]))
    for name in ("responses", "responses.status"):
        both[f"Answer.{name}"] = both.pop(f"span.{name}")
        both[f"proof.{name}"] = argilla("a", WINNER, ("submitted", [FALL_PAIR]))[f"span.{name}"]
    assert pairs(both) == [[WINNER_PAIR]]
    with pytest.raises(
        InputError, match=r"Label Studio with the labels \['evidence', 'mark', 'short'\]: name .* Answer"
    ):
        rows(task(1, WINNER, [evidence]), task(2, WINNER, [region(*WINNER_PAIR, label="Short")]))


def test_an_export_without_a_marked_span_is_refused_as_its_answers_may_be_typed():
    text = {"answer.responses": ["1894"], "answer.responses.status": ["submitted"]}
    for item in (
        annotation(1, YEAR, None, answer="1894"),
        doccano(YEAR, label=["1894", "in 1894"]),
        {"context": CONTEXT, "question": YEAR, **text},
        prodigy(FALL, answers=OLD),
    ):
        with pytest.raises(InputError, match="without a marked span"):
            rows(item)
        assert "answers" not in rows(item, labels=False)[0][0]


OTHERS = {
    "brat": "T1\tAnswer 29 33\t1907\n#1\tAnnotatorNotes T1\tWhen?\n",
    "WebAnno": "#FORMAT=WebAnno TSV 3.3\n#Text=It opened.\n1-1\t0-2\tIt\t_\t\n",
    "LightTag": '{"examples": [{"content": "It"}], "schema": {}, "relations": []}',
    "Argilla 1": '[{"text": "It", "tokens": ["It"], "annotation": [], "annotation_agent": "a"}]',
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_other_exports_are_refused_in_a_line_that_says_what_is_read(save, text):
    assert "of annotation tools, those of Label Studio, Prodigy, doccano and Argilla are read" in refused(save(text))


def test_an_export_that_forgets_what_was_discarded_is_refused(save):
    forgetful = [{"id": "1", "fields": {}, "responses": {}, "suggestions": {}, "metadata": {}}]
    assert "to_json forgets what was discarded: export to_datasets" in refused(save(forgetful))


def test_exports_with_faults_are_refused(save):
    for items, said in (
        ([prodigy(YEAR, YEAR_PAIR), prodigy(WINNER, answer="maybe")], "row 1 is not as Prodigy writes it"),
        ([doccano(YEAR, YEAR_PAIR), {"text": CONTEXT}], "row 1 is not as doccano writes it"),
        ([{**argilla("a", YEAR, ("submitted", [])), "span.responses.status": None}], "not as Argilla writes it"),
        ([task(1, YEAR, MARKED), 3], "row 1 is not as Label Studio writes it"),
        (
            [{"id": 1, "data": {"body": CONTEXT, "question": YEAR}, "annotations": task(1, "", MARKED)["annotations"]}],
            "no column context",
        ),
        (
            [{"id": 1, "data": {"text": CONTEXT, "query": YEAR}, "annotations": task(1, "", MARKED)["annotations"]}],
            "no column question",
        ),
    ):
        assert said in refused(save(json.dumps(items)), choices=DECLINING)


ROW = {"question": YEAR, "context": CONTEXT}
PLAIN = [
    {"title": "A", "paragraphs": [{"context": CONTEXT, "qas": []}]},
    {"context": CONTEXT, "qas": [{"question": YEAR, "answers": []}]},
    {**ROW, "answers": OLD, "label": [1, 2], "entities": [], "tokens": [{"start": 1, "end": 2}], "annotation_id": 3},
    {**ROW, "answer": ["accept"], "text": "x", "labels": [], "annotator": 1},
    {**ROW, "answer": "[{start", "responses": [], "data": {}, "spans": [], 3: "[[["},
    [ROW],
]


@pytest.mark.parametrize("item", PLAIN)
def test_other_items_pass_untouched_and_are_not_read_ahead(item):
    def items():
        yield "row 0", item
        raise AssertionError("read ahead")

    assert tool_of(item) is None
    given = annotated_rows(items(), (), set(), labels=True)
    assert next(given).row is item
    assert list(annotated_rows(iter(()), (), set(), labels=True)) == []


TEXT = {"text": CONTEXT, "question": YEAR, "answer": "1894"}
RESEARCH = [
    {**ROW, "answers": ["1894"], "evidence": [{"start": 1, "end": 2, "labels": ["x"]}]},
    {**ROW, "answers": ["1894"], "annotator": 3, "annotation_id": 12},
    {**TEXT, "label": ["history"]},
    {**TEXT, "entities": [{"start_offset": 1, "end_offset": 2, "label": "x"}]},
]


@pytest.mark.parametrize("row", RESEARCH)
def test_rows_of_other_data_with_labels_are_no_exports(save, row):
    columns = (("context", "text"),) if "text" in row else ()
    choices = Choices(columns=columns)
    assert read_examples(save([row]), training=False, choices=choices)[0].answers == ("1894",)


def test_labels_are_compared_in_any_case_and_typed_answers_are_left_out(save):
    year, fall = doccano(YEAR, YEAR_PAIR), doccano(FALL, FALL_PAIR)
    fall["label"][0][2] = fall["label"][0][2].upper()
    assert pairs(year, fall) == [[YEAR_PAIR], [FALL_PAIR]]
    typed = task(2, FALL, [])
    typed["annotations"][0]["result"] = [{"from_name": "note", "type": "textarea", "value": {"text": ["in 1894"]}}]
    shown, remarks = rows(task(1, YEAR, [region(*YEAR_PAIR)]), typed)
    assert [row["id"] for row in shown] == [1]
    assert remarks == [("2", "typed, not marked: left out", True)]


def test_the_names_of_columns_in_an_export_are_met(save):
    item = prodigy(YEAR, YEAR_PAIR)
    item["Frage"] = item.pop("question")
    remarks = []
    choices = Choices(columns=(("question", "Frage"),))
    read_examples(save(json.dumps([item])), training=True, choices=choices, remark=remarks.append)
    assert remarks == []


def test_a_remark_has_the_id_of_its_question(save):
    items = [prodigy(YEAR, YEAR_PAIR), prodigy(FALL, answer="reject")]
    remarks = []
    [example] = read_examples(save(json.dumps(items)), training=True, remark=remarks.append)
    assert (example.id, [remark.id for remark in remarks]) == ("data-0", ["data-1"])


def test_a_whole_number_start_is_an_offset(save):
    start = {"start": SECOND, "end": SECOND + 4}
    for answer in (
        {"answer": "1902", **start},
        {"answer": {"text": "1902", **start}},
        {"answers": [{"text": "1902", **start}]},
        {"answers": {"text": ["1902"], "start": [SECOND]}},
        {"answer": "1902", "start": 3, "answer_start": SECOND},
    ):
        [example] = read(save(json.dumps([{**ROW, **answer}])))
        assert example.span == (SECOND, SECOND + 4)
        if "answer" in answer:
            for file in (
                pd.DataFrame([{**ROW, **answer}]).to_csv(),
                parquet(pa.Table.from_pylist([{**ROW, **answer}])),
            ):
                assert read(save(file))[0].span == (SECOND, SECOND + 4)
    assert "is not at answer_start 3" in refused(save(json.dumps([{**ROW, "answer": "1902", "start": 3}])))
    [example] = read(save(json.dumps([{**ROW, "answer": "1894", "start": "00:12:03"}])))
    assert example.span == (YEAR_PAIR[1], YEAR_PAIR[1] + 4)


def test_an_answer_that_haystack_calls_not_given_is_none(save):
    answer = {"text": "1902", "answer_start": SECOND, "answer_category": "NOT_GIVEN"}
    [example] = read(save(json.dumps([{**ROW, "answers": [answer]}])))
    assert (example.answers, example.span) == ((), None)
