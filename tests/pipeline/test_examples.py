"""The questions that a run trains on and that results are of, and the files that they are read from."""

import gzip
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import datasets
import pytest

from swep_ds.analysis.answered import read_answered
from swep_ds.analysis.trained_run import TrainedRun
from swep_ds.data.example import Example
from swep_ds.data.splits import halves, subset
from swep_ds.evaluation.results import write_results
from swep_ds.models.folders import model_checksum
from swep_ds.pipeline import examples as module
from swep_ds.pipeline.examples import (
    CONTRADICTED,
    answered_examples,
    divided,
    load_examples,
    reported_examples,
    source_of_test_set,
    warn_of_known,
)
from swep_ds.pipeline.inputs import check_unchanged, input_checksums, input_files, questions_checksum
from swep_ds.pipeline.recipe import HOLDOUT, FirstStage, Recipe
from swep_ds.serve.verdicts import Verdicts, row_of
from tests.support import tiny_run
from tests.support.bad_input import refused
from tests.support.finished import finished

GONE = "gone.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """train.json, news.json and forum.json, and two samples of each training question in augmented.json."""
    path = tmp_path_factory.mktemp("examples")
    for name, count, seed in (("train", 100, 0), ("news", 60, 1), ("forum", 20, 2)):
        (path / f"{name}.json").write_text(json.dumps(tiny_run.squad(count, seed)))
    document = tiny_run.squad(100)
    for article in document["data"]:
        paragraphs = [json.loads(json.dumps(paragraph)) for paragraph in article["paragraphs"] for _ in range(2)]
        for number, paragraph in enumerate(paragraphs):
            paragraph["context"] += " again"
            paragraph["qas"][0]["id"] += f"-ssmba{number % 2}"
        article["paragraphs"] = paragraphs
    (path / "augmented.json").write_text(json.dumps(document))
    return path


def recipe(folder: Path, method: str = "mle", **data) -> Recipe:
    train, news, forum = (str(folder / f"{name}.json") for name in ("train", "news", "forum"))
    data = {"train": train, "eval": {"news": news, "forum": forum}} | data
    if method == "ssmba":
        data["augmented"] = str(folder / "augmented.json")
    return Recipe.model_validate({"model": {"name": "m"}, "method": {"name": method}, "data": data, "seed": 3})


def training(folder: Path, method: str = "mle", **data) -> list[Example]:
    return load_examples(recipe(folder, method, **data), [])[0]


def test_one_set_is_read_as_among_all_of_them(folder):
    selecting = Recipe.make(recipe(folder, holdout_fraction=0.3, max_eval_examples=15), eval={"select_on": "held_out"})
    _, whole = load_examples(selecting, [])
    assert list(whole) == [HOLDOUT, "news", "forum"]
    # a random choice, the same for every seed of a run
    every = load_examples(recipe(folder), [])[1]["news"]
    assert whole["news"] == subset(every, 1.0, 15, seed=0) != every[:15]
    assert reported_examples(Recipe.make(selecting, seed=9), "news") == whole["news"]
    # what cannot be read does not take the others along
    lacking = Recipe.make(selecting, data={"eval": selecting.data.eval | {"lost": GONE}})
    assert reported_examples(lacking, HOLDOUT) == halves(whole[HOLDOUT])[1]
    assert reported_examples(Recipe.make(lacking, data={"train": GONE}), "news") == whole["news"]
    assert re.search(r"^data\.eval\.lost: .*gone\.json", refused(reported_examples, lacking, "lost"))


@pytest.mark.parametrize(
    ("count", "without", "select_on", "are_halved"),
    [
        (48, "none", None, False),
        (48, "all", None, True),
        (48, "none", "held_out", True),
        (76, "none", None, False),  # 38 questions cannot be 20 right and 20 wrong answers
        (82, "none", None, True),
    ],
)
def test_a_half_is_set_aside_only_if_it_may_choose_something(tmp_path, count, without, select_on, are_halved):
    rows = []
    for number in range(2 * count):
        answers = {"text": ["Ann"], "answer_start": [0]}
        if without == "all" and number % 2:
            answers = {"text": [], "answer_start": []}
        row = {"id": f"q{number}", "question": f"Who, {number}?", "context": f"Ann {number // 2}", "answers": answers}
        rows.append(json.dumps(row) + "\n")
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    data = {"train": str(tmp_path / "rows.jsonl"), "unanswerable": "train", "holdout_fraction": 0.5, "eval": {}}
    chosen = Recipe.make(recipe(tmp_path, **data), eval={"select_on": select_on})
    held_out = load_examples(chosen, [])[1][HOLDOUT]
    assert len(held_out) == count
    expected = ([], held_out)
    if are_halved:
        expected = halves(held_out)
    assert divided(chosen, HOLDOUT, held_out) == expected
    assert reported_examples(chosen, HOLDOUT) == expected[1]


def test_of_a_mix_each_source_is_read_as_alone_but_for_the_articles_that_home_holds_out(folder, tmp_path, caplog):
    names = ("train", "forum")
    sources = [str(folder / f"{name}.json") for name in names]
    data = {"train": [{"source": source, "weight": 1} for source in sources], "home": sources[1]}
    data |= {"holdout_fraction": 0.3, "eval": {"news": str(folder / "news.json")}}
    mix = recipe(folder, **data)
    examples, tests = load_examples(mix, [])
    home, home_tests = load_examples(recipe(folder, **data | {"train": sources[1], "home": None}), [])
    held_out = {example.article for example in tests[HOLDOUT]}
    alone = [example for example in training(folder) if example.article not in held_out]
    said = "{}: {} of {} questions: about a held-out article: left out"
    assert [record.message for record in caplog.records] == [said.format("data.train.0.source", 100 - len(alone), 100)]
    assert 0 < len(alone) < 100
    assert tests == home_tests
    assert examples == alone + [replace(example, source=1) for example in home]
    assert reported_examples(mix, HOLDOUT) == tests[HOLDOUT]
    assert source_of_test_set(mix, HOLDOUT) == "data.train.1.source"
    few = training(folder, **data, train_fraction=0.1, max_train_examples=5)
    assert [example.source for example in few] == [0] * 5 + [1] * round(0.1 * len(home))
    assert list(input_files(mix, ["data.train.1.source"]).values()) == [(Path(sources[1]),)]
    checksums = input_checksums(mix)
    assert list(checksums) == ["data.train.0.source", "data.train.1.source", "data.eval.news"]
    faulty = Recipe.make(mix, data={"train": [*data["train"][:1], {"source": GONE, "weight": 1}], "home": None})
    assert re.match(r"data\.train\.1\.source: .*gone\.json", refused(load_examples, faulty))
    # questions that were generated about the same texts, which have no titles
    texts = {example.context: example in home for example in training(folder, train=sources[1])}
    for name, contexts in (("made", [*texts]), ("leaked", [text for text, kept in texts.items() if not kept])):
        answers = [{"text": [text.split()[0]], "answer_start": [0]} for text in contexts]
        rows = [{"question": "What?", "context": c, "answers": a} for c, a in zip(contexts, answers, strict=True)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
        data["train"][0]["source"] = str(tmp_path / f"{name}.json")
        if name == "made":
            made = [example.context for example in training(folder, **data) if example.source == 0]
            assert made == [text for text, kept in texts.items() if kept]
            assert caplog.records[-1].message == said.format("data.train.0.source", len(texts) - len(made), len(texts))
    assert refused(training, folder, **data).startswith("data.train.0.source: all of its questions are about held-out")


def test_a_test_set_whose_domain_is_trained_on_but_counts_as_another_is_named(folder, tmp_path, caplog):
    for number, name in enumerate(("train", "validation")):
        (tmp_path / f"{name}.json").write_text(json.dumps(tiny_run.squad(20, 5 + number)))
    train = [{"source": str(folder / "train.json"), "weight": 1}, {"source": str(tmp_path), "weight": 1}]
    both = {"both": str(tmp_path)}
    for eval_ in (both, {"news": str(folder / "news.json")} | both):
        assert not caplog.records
        training(folder, train=train, eval=eval_)
    said = f"data.eval.both counts as out of domain, but {tmp_path} is also in data.train"
    assert [record.message for record in caplog.records] == [said]


def test_test_questions_that_are_trained_on_are_counted(tmp_path, caplog):
    file = str(tiny_run.prepare(tmp_path))
    train = tmp_path / "train.json"
    both = Recipe.load(file, [f"data.eval.same={train}", "data.max_train_examples=30"])
    examples, tests = load_examples(both, [])
    known = {(example.question, example.context) for example in examples}
    count = sum((example.question, example.context) in known for example in tests["same"])
    assert 30 <= count < 42
    said = "test set {}: {} of its {} questions are in {}, with the same contexts: its scores say little about new text"
    assert [record.message for record in caplog.records] == [said.format("same", count, 42, "data.train")]
    first = Recipe.load(file, [f"pretrain.train={train}"]).first_stage()
    warn_of_known(first, load_examples(first, [])[0], {"later": examples[:3] + tests["test"]})
    assert said.format("later", 3, 12, "pretrain.train") in caplog.text


def test_a_name_of_a_column_that_no_file_has_is_told_beside_the_counts(caplog, tmp_path):
    rows = [{"question": "Who?", "context": "Ann Bob Ann.", "answer": answer} for answer in ("Bob", "Ann")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    settings = [f"data.train={tmp_path / 'rows.json'}", "data.eval={}", "data.repeated_answers=drop"]
    remarks = []
    load_examples(Recipe.load("quickstart", [*settings, "data.columns.question=Frage"]), remarks)
    assert [record.message for record in caplog.records] == [
        "data.train: data.columns: rows.json has no 'Frage': read by the usual names",
        "data.train: 1 of 2 questions: the answer occurs several times in its context: left out "
        "(data.repeated_answers)",
    ]
    assert [remark["id"] for remark in remarks] == ["rows.json-1"]


SPANS = {"first": [(4, 7), (0, 3), None], "drop": [(4, 7), None]}


@pytest.mark.parametrize("choice", SPANS)
@pytest.mark.parametrize("field", ["data.train", "pretrain.train"])
def test_repeated_answers_are_settled_and_counted_once(caplog, tmp_path, field, choice):
    """The second question, of three, has an answer without an offset that occurs twice."""
    rows = [{"question": "Who?", "context": "Ann Bob Ann.", "answer": answer} for answer in ("Bob", "Ann", "")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    settings = [f"{field}={tmp_path / 'rows.json'}", "data.eval={}", "data.unanswerable=train"]

    def stage(choice: str) -> Recipe:
        whole = Recipe.load("quickstart", [*settings, f"data.repeated_answers={choice}"])
        return whole.first_stage() if whole.pretrain else whole

    training, _ = load_examples(stage(choice), [])
    assert [example.span for example in training] == SPANS[choice]
    end = {"first": "trained on its first place", "drop": "left out"}[choice]
    total = len(SPANS[choice])
    assert [record.message for record in caplog.records] == [
        f"{field}: 1 of 3 questions: the answer occurs several times in its context: {end} (data.repeated_answers)",
        f"{field}: 1 of {total} questions have no answer and teach the model to decline (data.unanswerable)",
        f"{field}: {total} of {total} questions: {CONTRADICTED}",
    ]
    fault = rf"{field}: .*'rows.json-1': the answer 'Ann' occurs 2 times .* set data\.repeated_answers to"
    assert re.match(fault, refused(load_examples, stage("error")))


TEXT = "The college was founded by Agnes Palder, a brewer, in 1890. It has a garden. Its trees are old."
CUT = TEXT.index(" Its trees")


def verdicts_on(tmp_path: Path, name: str, *answers: tuple[str, str, str | None, str]) -> tuple[str, list[str]]:
    """A file of verdicts (question, name of the text, answer, context), as `swep-ds serve` writes them, and its ids."""
    verdicts = Verdicts(tmp_path / f"{name}.jsonl")
    ids = []
    for question, title, answer, context in answers:
        span = None
        if answer is not None:
            start = context.index(answer)
            span = (start, start + len(answer))
        ids.append(verdicts.add(row_of(question, title, context, span, None)))
    return str(verdicts.path), ids


def test_verdicts_that_contradict_each_other_are_named_and_trained_on(caplog, tmp_path):
    who, when = "Who founded the college?", "When was it founded?"
    first = [(who, "college.md", "Agnes Palder", TEXT), (when, "college.md", "in 1890", TEXT)]
    first += [("who founded the  college", "college.md", None, TEXT)]  # another person's
    first += [(when, "college.md", "1890", TEXT[:CUT])]  # says the same, about another passage
    first += [(who, "college.md", None, TEXT[CUT:])]  # the passage does not say
    first += [(who, "other.md", "a brewer", TEXT)]  # another text
    second = [(when, "other.md", None, TEXT[CUT:]), (who, "college.md", "a brewer", TEXT[:CUT])]
    (source, ids), (other, other_ids) = (verdicts_on(tmp_path, *each) for each in (("a", *first), ("b", *second)))
    train = [{"source": path, "weight": 1} for path in (source, other)]
    settings = {"data": {"train": train, "eval": {}, "holdout_fraction": 0.0, "unanswerable": "train"}}
    remarks = []
    training, _ = load_examples(Recipe.make(Recipe.load("quickstart"), **settings), remarks)
    assert len(training) == len(first) + len(second)
    wanted = [("data.train.0.source", ids[0]), ("data.train.0.source", ids[2]), ("data.train.1.source", other_ids[1])]
    assert [(remark["field"], remark["id"], remark["reason"]) for remark in remarks] == [
        (*place, CONTRADICTED) for place in wanted
    ]
    said = [record.message for record in caplog.records if CONTRADICTED in record.message]
    assert said == [
        f"data.train.0.source: 2 of 6 questions: {CONTRADICTED}",
        f"data.train.1.source: 1 of 2 questions: {CONTRADICTED}",
    ]
    caplog.clear()
    load_examples(Recipe.make(Recipe.load("quickstart"), **settings))  # a run that has said it
    assert not caplog.records


def test_equal_questions_about_two_places_of_a_text_do_not_contradict_each_other(tmp_path):
    """One answer is a part of words about something else in the other's passage; and two people find none."""
    sound, price = (
        "The sound is as good as new, for 25 euros. ",
        "Others say: it is great. It has 2 plugs, a good deal.",
    )
    rows = [("How is it?", "t", "good", sound), ("How is it?", "t", "great", price)]
    rows += [("How many?", "t", "25", sound), ("How many?", "t", "2", price)]
    rows += [("Who?", "t", None, sound), ("Who?", "t", None, sound + price), ("How many?", "t", None, sound[:18])]
    source, _ = verdicts_on(tmp_path, "a", *rows)
    data = {"train": source, "eval": {}, "holdout_fraction": 0.0, "unanswerable": "train"}
    remarks = []
    load_examples(Recipe.make(Recipe.load("quickstart"), data=data), remarks)
    assert not remarks


def test_of_very_many_equal_questions_the_first_are_compared(monkeypatch):
    monkeypatch.setattr(module, "MOST_COMPARED", 3)
    rows = [Example(f"{n}", "Who?", "Ann Bob", (answer,), None, "t") for n, answer in enumerate(["Ann"] * 3 + ["Bob"])]
    assert module._contradicted(rows) == []
    assert sorted(example.id for example in module._contradicted(rows[1:])) == ["1", "2", "3"]


@pytest.mark.parametrize(("setting", "answer"), [("repeated_answers", "Ann"), ("unanswerable", "")])
def test_some_question_must_be_left(tmp_path, setting, answer):
    (tmp_path / "rows.json").write_text(json.dumps([{"question": "Who?", "context": "Ann, Ann", "answer": answer}]))
    settings = [f"data.train={tmp_path / 'rows.json'}", "data.eval={}", f"data.{setting}=drop"]
    said = refused(load_examples, Recipe.load("quickstart", settings))
    assert said.endswith("rows.json: all of its questions are left out: the warnings above say why")


# Fractions and samples


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_fractions_are_nested(folder, holdout):
    whole, half, tenth = (training(folder, train_fraction=f, holdout_fraction=holdout) for f in (1.0, 0.5, 0.1))
    assert [len(half), len(tenth)] == [round(0.5 * len(whole)), round(0.1 * len(whole))]
    assert {e.id for e in tenth} < {e.id for e in half} < {e.id for e in whole}


@pytest.mark.parametrize("data", [{}, {"max_train_examples": 7}, {"train_fraction": 0.5, "holdout_fraction": 0.3}])
def test_questions_are_the_same_for_every_method_and_samples_follow_them(folder, data):
    plain = training(folder, **data)
    for method in ("ssmba", "swep"):
        examples = training(folder, method, augmented=str(folder / "augmented.json"), **data)
        samples = examples[len(plain) :]
        assert examples[: len(plain)] == plain
        assert [e.id for e in samples] == [f"{e.id}-ssmba{k}" for e in plain for k in range(2)]
        assert samples[0].context == plain[0].context + " again"
        assert samples[0].span == plain[0].span


def test_samples_that_are_missing_or_of_other_data(folder):
    said = refused(training, folder, augmented=GONE)
    assert re.match(r"data\.augmented: .*gone\.json.*no such file", said)
    said = refused(training, folder, augmented=str(folder / "train.json"))
    assert said.startswith("data.augmented: none of its 100 questions is a sample")


# Files


def test_every_field_that_names_local_files_has_their_checksum(tmp_path):
    options = ["data.eval.quick=quickstart:news", "data.eval.hub=owner/name", f"data.eval.gone={tmp_path}/gone.json"]
    options += [f"data.augmented={tmp_path}/test.json", f"pretrain.train={tmp_path}/train.json"]
    path = tiny_run.prepare(tmp_path)
    files = [tmp_path / name for name in ("train.json", "test.json")]
    train, test = (hashlib.sha256(file.read_bytes()).hexdigest()[:32] for file in files)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(files[1].read_bytes()))  # with the time in its header
    recipe = Recipe.load(str(path), [*options, f"data.eval.packed={packed}"])
    expected = {"data.train": train, "data.augmented": test, "data.eval.test": test, "pretrain.train": train}
    expected |= {"data.eval.packed": test, "model.name": model_checksum(str(tmp_path / "model"))}
    assert input_checksums(recipe) == expected


def test_a_folder_stands_for_the_data_files_in_it(tmp_path):
    rows = [{"id": "1", "question": "Who?", "context": "Ann.", "answers": {"text": ["Ann"], "answer_start": [0]}}]
    datasets.DatasetDict(train=datasets.Dataset.from_list(rows)).save_to_disk(tmp_path)
    datasets.load_from_disk(str(tmp_path))["train"].map(dict, load_from_cache_file=False)  # leaves a cache there
    assert list(tmp_path.glob("train/cache-*"))
    recipe = Recipe.load("quickstart", [f"data.train={tmp_path}", "data.holdout_fraction=0"])
    assert [file.name for file in input_files(recipe)["data.train"]] == ["data-00000-of-00001.arrow"]


def test_what_a_run_read_is_compared_before_anything_is_computed_from_it_again(tmp_path):
    folder = finished(tmp_path)
    run = TrainedRun.load(folder)
    assert run.test_examples()
    assert run.training_examples()
    document = json.loads((tmp_path / "test.json").read_text())
    for paragraph in document["data"][0]["paragraphs"]:  # the same ids, but another answer
        paragraph["qas"][0]["answers"] = [{"text": paragraph["context"].split()[0], "answer_start": 0}]
    (tmp_path / "test.json").write_text(json.dumps(document))
    said = f"data.eval.test {tmp_path}/test.json: has changed since {folder} read it: restore it, or train again"
    assert refused(run.test_examples).startswith(said)
    assert refused(read_answered, folder, run.recipe, "test").startswith(said)
    assert run.training_examples()
    (tmp_path / "train.json").write_text(json.dumps(document))
    assert refused(run.training_examples).startswith(f"data.train {tmp_path}/train.json: has changed")
    first = FirstStage.model_validate(run.recipe.model_dump(mode="json"))
    assert refused(check_unchanged, first, folder, ["data.train"]).startswith(f"pretrain.train {tmp_path}/train.json")
    (tmp_path / "train.json").unlink()  # what is gone cannot be compared
    check_unchanged(run.recipe, folder, ["data.train"])


def test_a_file_that_has_grown_still_has_the_questions_that_a_run_answered(tmp_path):
    def write(rows: list[dict]) -> None:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    rows = []
    for number in range(20):
        row = {
            "id": f"q{number}",
            "question": f"Who, {number}?",
            "title": f"t{number // 2}",
            "context": f"Ann {number}",
        }
        rows.append(row | {"answers": {"text": ["Ann"], "answer_start": [0]}})
    write(rows)
    chosen = recipe(tmp_path, train=str(tmp_path / "rows.jsonl"), holdout_fraction=0.4, eval={})
    before = load_examples(chosen, [])[1][HOLDOUT]
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions/held_out.json").write_text(json.dumps({example.id: "Ann" for example in before}))
    results = {"method": "mle", "model": "m", "seed": 0, "world_size": 1, "eval": {}, "versions": {}}
    results |= {"inputs": input_checksums(chosen), "questions": {HOLDOUT: questions_checksum(before)}}
    write_results(tmp_path, results)
    assert answered_examples(chosen, tmp_path, HOLDOUT) == before
    more = [rows[0] | {"id": f"n{number}", "title": f"n{number}"} for number in range(30)]
    write(rows + more)
    assert load_examples(chosen, [])[1][HOLDOUT] != before
    assert answered_examples(chosen, tmp_path, HOLDOUT) == before
    assert [item.example for item in read_answered(tmp_path, chosen, HOLDOUT)] == before

    held_out = {example.id for example in before}
    places = [place for place, row in enumerate(rows) if row["id"] in held_out]
    trained = next(place for place, row in enumerate(rows) if row["id"] not in held_out)
    said = f"data.train {tmp_path}/rows.jsonl: has changed since {tmp_path} read it"

    def edited(place: int, **changes) -> list[dict]:
        return [row | changes if number == place else row for number, row in enumerate(rows)] + more

    write(edited(trained, question="Else?"))  # it was not answered
    assert answered_examples(chosen, tmp_path, HOLDOUT) == before
    last = places[-1]
    for wrong in (
        edited(last, question="Else?"),
        edited(last, context=f"Ann {last}."),
        edited(last, answers={"text": ["Ann", f"Ann {last}"], "answer_start": [0, 0]}),
        edited(last, id="else"),
        edited(last, title="else"),
        rows[:last] + rows[last + 1 :] + more,
    ):
        write(wrong)
        assert refused(answered_examples, chosen, tmp_path, HOLDOUT).startswith(said)
    write(more + rows[::-1])
    assert answered_examples(chosen, tmp_path, HOLDOUT) == before
    write_results(tmp_path, results | {"questions": {}})  # as by an earlier version
    assert refused(answered_examples, chosen, tmp_path, HOLDOUT).startswith(said)
