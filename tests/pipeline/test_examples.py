"""The questions that results are of, read set by set."""

import json
import re

import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.splits import halves
from swep_ds.data.windows import WindowSettings
from swep_ds.pipeline.examples import load_examples, reported_examples, warn_without_overlap
from swep_ds.pipeline.prepare import prepare
from swep_ds.pipeline.recipe import HOLDOUT, Recipe
from swep_ds.ranks.group import process_group
from tests.support import qa_files
from tests.support.bad_input import refused

GONE = "gone.json"
HELD_OUT = ["data.holdout_fraction=0.1", "data.eval={news: 'quickstart_v2:news', forum: 'quickstart_v2:forum'}"]


def test_one_set_is_read_as_among_all_of_them():
    settings = ["eval.select_on=held_out", "data.max_eval_examples=50", f"data.eval.lost={GONE}"]
    recipe = Recipe.load("quickstart", [*HELD_OUT, *settings[:2]])
    _, whole = load_examples(recipe)
    assert list(whole) == [HOLDOUT, *recipe.data.eval]
    lacking = Recipe.load("quickstart", [*HELD_OUT, *settings])  # what cannot be read does not take the others along
    assert reported_examples(lacking, HOLDOUT) == halves(whole[HOLDOUT])[1]
    lacking = lacking.model_copy(update={"data": lacking.data.model_copy(update={"train": GONE})})
    assert reported_examples(lacking, "news") == whole["news"]
    assert re.search(r"^data\.eval\.lost: .*gone\.json", refused(reported_examples, lacking, "lost"))
    assert "no test set nyt: name one of held_out, news, forum" in refused(reported_examples, recipe, "nyt")


def test_another_share_than_asked_for_is_said(tmp_path, caplog):
    sizes, answer = {"large": 90, "small": 10}, {"text": "Ada", "answer_start": 0}
    rows = []
    for context, title in ((f"Ada of {title} {n}", title) for title, size in sizes.items() for n in range(size)):
        rows += qa_files.rows({"id": context, "question": "Who?", "answers": [answer]}, context=context, title=title)
    (tmp_path / "rows.jsonl").write_text(qa_files.lines(rows))
    for fraction, said in ((0.1, ""), (0.04, "0.04: 10 of 100 questions are held out, which is 10 %")):
        caplog.clear()
        settings = [f"data.train={tmp_path / 'rows.jsonl'}", f"data.holdout_fraction={fraction}", "data.eval={}"]
        _, tests = load_examples(Recipe.load("quickstart", settings))
        assert len(tests[HOLDOUT]) == 10
        assert said in caplog.text
        assert bool(said) == ("data.holdout_fraction" in caplog.text)


def test_windows_that_do_not_overlap_are_said(caplog):
    warn_without_overlap(WindowSettings(64, 63))
    assert not caplog.records
    warn_without_overlap(WindowSettings(64, 64))
    assert "doc_stride 64: windows of 64 tokens then do not overlap" in caplog.text


def test_test_questions_that_are_trained_on_are_counted(caplog):
    settings = ["data.max_train_examples=70", "data.train=quickstart:news.test", "data.max_eval_examples=90"]
    recipe = Recipe.load("quickstart", settings)
    training, tests = load_examples(recipe)
    asked = {(example.question, example.context) for example in training}
    later = training[:3] + tests["forum"]
    expected = {}
    for name, examples in {**tests, "later": later}.items():
        count = sum((example.question, example.context) in asked for example in examples)
        source = "pretrain.train" if name == "later" else "data.train"
        if count:
            said = f"test set {name}: {count} of its {len(examples)} questions are in {source}, with the same "
            expected[name] = f"{said}contexts: its scores say little about new text"
    with process_group():  # as a first stage does, before a second one
        prepare(recipe, "zero0", training_source="pretrain.train", tested_later={"later": later})
    messages = [record.message for record in caplog.records]
    assert {"news", "later"} <= expected.keys()
    assert expected["later"] in messages
    load_examples(recipe)
    messages = [record.message for record in caplog.records]
    assert all(said in messages for said in expected.values())


@pytest.fixture
def repeated(tmp_path):
    """Data whose second question, of three, has an answer without an offset that occurs twice."""
    rows = [{"question": "Who?", "context": "Ann Bob Ann.", "answer": answer} for answer in ("Bob", "Ann", "")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    return tmp_path / "rows.json"


SPANS = {"first": [(4, 7), (0, 3), None], "drop": [(4, 7), None]}


@pytest.mark.parametrize("choice", SPANS)
@pytest.mark.parametrize("field", ["data.train", "pretrain.train"])
def test_repeated_answers_are_settled_and_counted_once(caplog, repeated, field, choice):
    settings = [f"{field}={repeated}", "data.eval={}", f"data.repeated_answers={choice}", "data.unanswerable=train"]
    recipe = Recipe.load("quickstart", settings)
    training, _ = load_examples(recipe.first_stage() if recipe.pretrain else recipe, field)
    assert [example.span for example in training] == SPANS[choice]
    end = {"first": "are trained on its first place", "drop": "are left out"}[choice]
    assert [record.message for record in caplog.records] == [
        f"{field}: 1 of 3 questions have an answer that occurs several times in its context, and {end} "
        "(data.repeated_answers)",
        f"{field}: 1 of 3 questions have no answer and teach the model to decline (data.unanswerable)",
    ]
    recipe = Recipe.load("quickstart", [*settings, "data.repeated_answers=error"])
    said = refused(load_examples, recipe.first_stage() if recipe.pretrain else recipe, field)
    assert re.match(
        rf"{field}: .*'rows.json-1': the answer 'Ann' occurs 2 times .* set data\.repeated_answers to", said
    )


@pytest.mark.parametrize(("setting", "answer"), [("repeated_answers", "Ann"), ("unanswerable", "")])
def test_some_question_must_be_left(tmp_path, setting, answer):
    (tmp_path / "rows.json").write_text(json.dumps([{"question": "Who?", "context": "Ann, Ann", "answer": answer}]))
    settings = [f"data.train={tmp_path / 'rows.json'}", "data.eval={}", f"data.{setting}=drop"]
    with pytest.raises(InputError, match=r"all of its 1 questions are dropped \(data\.unanswerable, data\.repeated_"):
        load_examples(Recipe.load("quickstart", settings))
