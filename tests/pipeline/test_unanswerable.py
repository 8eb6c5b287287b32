"""Questions without an answer, end to end: read, trained, declined above a chosen threshold, scored, exported."""

import json
import re
from pathlib import Path

import pytest

from swep_ds.analysis.report import write_report
from swep_ds.data.answers import normalize_answer
from swep_ds.data.choices import Choices
from swep_ds.data.readers import read_examples
from swep_ds.data.splits import halves, hold_out_articles
from swep_ds.data.windows import WindowSettings
from swep_ds.evaluation.results import out_of_domain_mean, read_results
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.asked import HELD_OUT_ROWS, read_asked, row_numbers
from swep_ds.pipeline.examples import load_examples, reported_examples
from swep_ds.pipeline.inputs import questions_checksum
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import load_saved
from tests.support import tiny
from tests.support.bad_input import refused
from tests.support.tiny import build
from tests.support.tiny_run import ds_config, make_runs, prepare, squad


def with_unanswerable(count: int, seed: int = 0) -> dict:
    """Every third question has no answer."""
    document = squad(count, seed)
    questions = [qa for article in document["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    for qa in questions[::3]:
        qa |= {"answers": [], "is_impossible": True}
    return document


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("unanswerable")
    for home, architecture in ((path, "bert"), (path / "t5", "t5")):
        prepare(home, architecture=architecture)
        (home / "train.json").write_text(json.dumps(with_unanswerable(42)))
        (home / "test.json").write_text(json.dumps(with_unanswerable(9, seed=1)))
    answered, secret = squad(20, seed=2), squad(5, seed=3)
    answered["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] += 1
    for article in secret["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"][0]["answers"] = []
    (path / "answered.json").write_text(json.dumps(answered))
    (path / "secret.json").write_text(json.dumps(secret))
    return path


def test_they_are_an_error_or_dropped_or_kept(folder, caplog):
    plain = Recipe.load(str(folder / "recipe.yaml"))
    drop, train = (Recipe.make(plain, data={"unanswerable": choice}) for choice in ("drop", "train"))
    fault = r"data.train: .* has no answer; give it, or set data.unanswerable to drop"
    assert re.match(fault, refused(load_examples, plain))
    training, tests = load_examples(drop, [])
    assert (len(training), len(tests["test"])) == (28, 6)
    assert all(example.answers and example.span for example in training)
    assert [record.message for record in caplog.records] == [
        "data.train: 14 of 42 questions: no answer: left out (data.unanswerable)",
        "data.eval.test: 3 of 9 questions: no answer: left out (data.unanswerable)",
    ]
    training, tests = load_examples(train, [])
    assert (len(training), len(tests["test"])) == (42, 9)
    assert [example.span is None for example in training] == [not example.answers for example in training]


@pytest.mark.parametrize(("task", "left_out"), [("extractive", "cls"), ("extractive", "drop"), ("generative", "drop")])
def test_they_are_trained_towards_cls_or_an_empty_answer(folder, task, left_out):
    examples = read_examples(str(folder / "train.json"), training=True, choices=Choices(unanswerable="train"))
    parts = examples, [e for e in examples if not e.answers], [e for e in examples if e.answers]
    tokenizer, options = tiny.wordpiece(), {"training": True, "windows_without_answer": left_out}
    rows, alone, others = (build(part, "wordpiece", WindowSettings(40, 8, 16, task), **options)[1] for part in parts)
    assert len(rows) == len(alone) + len(others)
    assert len(alone) >= len(parts[1])  # none of their windows is left out
    for row in alone:
        if task == "generative":
            assert row["target_ids"] == [tokenizer.cls_token_id, tokenizer.sep_token_id]
        else:
            assert (row["start_position"], row["end_position"], row["has_answer"]) == (0, 0, False)


# Runs

WITHHELD = ("data.misplaced_answers=drop", "data.eval={{test: {folder}/test.json, secret: {folder}/secret.json}}")


@pytest.fixture(scope="module")
def runs(folder) -> Path:
    """extractive and generative, with held-out articles; plain, without; answerable, without such questions, but with a
    misplaced answer and a test set whose answers are withheld; few, without such questions and with held-out articles.
    """
    listed = []
    for name, home, *settings in (
        ("extractive", folder, "data.holdout_fraction=0.5", f"data.eval.test={folder / 'test.json'}"),
        ("generative", folder / "t5", "data.holdout_fraction=0.5", f"data.eval.test={folder / 't5' / 'test.json'}"),
        ("plain", folder),
        ("answerable", folder, f"data.train={folder / 'answered.json'}", *WITHHELD),
        (
            "few",
            folder,
            "data.train={folder}/answered.json",
            WITHHELD[0],
            "data.holdout_fraction=0.5",
            "data.eval={{}}",
        ),
    ):
        settings = [setting.format(folder=folder) for setting in settings]
        settings += ["data.unanswerable=train", "train.max_updates=2"]
        run = {"recipe": str(home / "recipe.yaml"), "set": settings, "ds_config": str(ds_config(folder, 1))}
        listed.append(run | {"output_dir": str(folder / name)})
    (folder / "out").write_text(make_runs(folder, listed).stdout)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["extractive", "generative", "plain"])
def test_a_run_declines_what_is_above_its_threshold(runs, name):
    run = runs / name
    results = json.loads((run / "results.json").read_text())
    threshold = results["null_threshold"]
    assert json.loads((run / "model" / "reading.json").read_text())["null_threshold"] == threshold
    assert load_saved(str(run / "model")).null_threshold == threshold
    recipe = Recipe.load(str(run / "recipe.yaml"))
    assert recipe.test_sets == ([] if name == "plain" else ["held_out"]) + ["test"]
    for test in recipe.test_sets:
        examples = reported_examples(recipe, test)
        predictions = json.loads((run / "predictions" / f"{test}.json").read_text())
        odds = json.loads((run / "null_odds" / f"{test}.json").read_text())
        assert list(predictions) == list(odds) == [example.id for example in examples]
        assert all(text == "" for id_, text in predictions.items() if odds[id_] > threshold)
        scores = results["eval"][test]
        golds = {example.id: example.answers for example in examples}
        assert scores.items() >= Scorer().score(predictions, golds).items()
        # v2.0's sweep gives nothing for declining a question whose answer, such as "the", normalises to nothing
        emptied = sum(bool(answers) and not any(map(normalize_answer, answers)) for answers in golds.values())
        assert scores["best_f1"] >= scores["f1"] - 100 * emptied / len(golds) - 1e-9
        assert scores["has_answer_total"] + scores["no_answer_total"] == scores["total"] == len(examples)
        assert results["scorers"][test] == "SQuAD v2.0"
    if name == "extractive":
        examples = read_examples(str(runs / "train.json"), training=True, choices=Choices(unanswerable="train"))
        _, reported = halves(hold_out_articles(examples, 0.5)[1])  # the first half chose the threshold
        held_out = json.loads((run / "predictions" / "held_out.json").read_text())
        assert list(held_out) == [example.id for example in reported]
    if name == "plain":
        assert threshold == 0
        assert "at null odds above 0.00: the default, for lack of data to choose it on" in (runs / "out").read_text()


@pytest.mark.slow
def test_all_are_scored_where_half_of_them_could_choose_nothing(runs):
    held_out = load_examples(Recipe.load(str(runs / "few" / "recipe.yaml")))[1]["held_out"]
    predictions = json.loads((runs / "few" / "predictions" / "held_out.json").read_text())
    assert list(predictions) == [example.id for example in held_out]
    results = read_results(runs / "few" / "results.json")
    assert results.eval["held_out"]["total"] == len(held_out)
    assert results.questions["held_out"] == questions_checksum(held_out)
    assert set(read_asked(runs / "few" / "model", HELD_OUT_ROWS)) == set(row_numbers(held_out))
    said = " ".join((runs / "out").read_text().split())
    assert "all held-out questions are scored: half of them has no question without an answer, and is too" in said


@pytest.mark.slow
def test_a_model_that_did_not_learn_to_decline_does_not(runs):
    results = json.loads((runs / "answerable" / "results.json").read_text())
    assert "null_threshold" not in results
    assert load_saved(str(runs / "answerable" / "model")).null_threshold is None
    assert all(json.loads((runs / "answerable" / "predictions" / "test.json").read_text()).values())
    assert results["eval"]["test"]["no_answer_exact_match"] == 0  # it should have declined these


@pytest.mark.slow
def test_withheld_answers_get_predictions_and_no_score_wherever_scores_are(runs):
    """And questions that are left out, or doubtful, are in a file beside them."""
    run = runs / "answerable"
    results = read_results(run / "results.json")
    assert results.eval["secret"] == {"total": 5}
    assert list(results.scores) == ["test"]
    assert results.scorers["secret"] == "answers withheld"
    assert out_of_domain_mean(results.eval) is None
    assert len(json.loads((run / "predictions" / "secret.json").read_text())) == 5
    said = (runs / "out").read_text()
    assert re.search(r"secret\W+answers withheld\W+5", said)
    card = (run / "model" / "README.md").read_text()
    assert "The answers of secret are withheld: it has no scores." in card
    assert "answers withheld (" not in card
    assert "secret: no scores, since its answers are withheld" in write_report(run)[0]
    [left_out] = [json.loads(line) for line in (run / "remarks.jsonl").read_text().splitlines()]
    assert (left_out["field"], left_out["id"]) == ("data.train", "q2-0")
    assert "left out (data.misplaced_answers)" in left_out["reason"]


def test_the_source_domain_needs_its_answers(folder):
    recipe = str(folder / "recipe.yaml")
    secret = [setting.format(folder=folder) for setting in WITHHELD]
    first = Recipe.load(recipe, [f"data.eval={{secret: {folder / 'secret.json'}}}", "data.unanswerable=train"])
    selects = Recipe.load(recipe, [*secret, "eval.select_on=secret", "data.unanswerable=train"])
    for wrong in (first, selects):
        assert refused(load_examples, wrong).startswith(
            "data.eval.secret: its answers are withheld, and the first test"
        )
