"""Evaluation over ranks, and a run's outputs: predictions, results.json, the printed table."""

import json
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import torch

from swep_ds.data.batches import Batch
from swep_ds.data.choices import STRICT
from swep_ds.data.example import Example
from swep_ds.data.features import build_features
from swep_ds.data.formats import document_items
from swep_ds.data.questions import judged_items
from swep_ds.data.splits import clusters
from swep_ds.evaluation import evaluate
from swep_ds.evaluation.calibration import FEATURES, Calibrator, calibrated_scores, calibration, features
from swep_ds.evaluation.evaluate import Evaluation, decode
from swep_ds.evaluation.predictions import write_predictions
from swep_ds.evaluation.results import out_of_domain_mean, print_scores
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import SpanDecoder, SpanSettings, with_null
from swep_ds.ranks import group
from tests.support import fake_runs, tiny
from tests.support.tiny_run import ds_config, make_runs, prepare, squad

SETS = {"source": 7, "single": 1, "shifted": 12}  # questions; on 2 ranks of 2 windows each none divides evenly
RUNS = [(0, 1), (3, 2)]  # ZeRO stage, ranks


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[tuple[int, int], Path]:
    folder = tmp_path_factory.mktemp("evaluate")
    job = {"recipe": str(prepare(folder)), "set": ["data.eval={}", "eval.batch_size=2", "train.max_updates=1"]}
    job["set"].append("train.learning_rate=1e-20")  # so that all runs end with the same weights
    for seed, (name, count) in enumerate(SETS.items()):
        (folder / f"{name}.json").write_text(json.dumps(squad(count, seed)))
        job["set"].append(f"data.eval.{name}={folder / name}.json")
    for stage, ranks in RUNS:
        output = {"ds_config": str(ds_config(folder, stage)), "output_dir": str(folder / f"zero{stage}")}
        make_runs(folder, [job | output], ranks=ranks)
    return {run: folder / f"zero{run[0]}" for run in RUNS}


def read(file: Path) -> dict:
    return json.loads(file.read_text())


def questions(run: Path, name: str) -> list[dict]:
    articles = read(run.parent / f"{name}.json")["data"]
    return [qa for article in articles for paragraph in article["paragraphs"] for qa in paragraph["qas"]]


@pytest.mark.slow
def test_every_question_is_answered_once_in_order_on_any_ranks_and_stage(runs):
    for name, count in SETS.items():
        ids = [question["id"] for question in questions(runs[0, 1], name)]
        assert len(ids) == count
        for run in runs.values():
            text = (run / "predictions" / f"{name}.json").read_text()
            assert [id_ for id_, _ in json.loads(text, object_pairs_hook=list)] == ids  # with duplicate keys
        expected, other = (read(runs[run] / "predictions" / f"{name}.json") for run in RUNS)
        assert other == expected
        confidence, other_confidence = (read(runs[run] / "confidence" / f"{name}.json") for run in RUNS)
        assert other_confidence == pytest.approx(confidence, rel=1e-4)
        contexts = (runs[0, 1].parent / f"{name}.json").read_text()
        assert all(json.dumps(answer)[1:-1] in contexts for answer in expected.values())


@pytest.mark.slow
def test_results_have_their_fixed_layout_and_scores_in_percent_of_all_questions(runs):
    for (_, ranks), run in runs.items():
        results = read(run / "results.json")
        sections = ["method", "model", "seed", "world_size", "train", "eval", "scorers", "versions", "inputs"]
        assert sorted(results) == sorted([*sections, "threads", "questions", "provenance"])
        assert (results["method"], results["seed"], results["world_size"]) == ("swep", 0, ranks)
        assert results["threads"] == 1  # `run_script` sets it
        assert results["model"] == str(run.parent / "model")
        train = results["train"]
        assert train.keys() == fake_runs.TRAIN.keys()
        assert (train["examples"], train["updates"]) == (42, 1)
        assert train["features"] > 42
        assert train["samples_per_second"] == pytest.approx(8 * ranks / train["seconds"])
        assert train["tokens_per_second"] > train["samples_per_second"]
        assert 2**20 < train["peak_memory_bytes"] < 2**36
        assert list(results["eval"]) == list(SETS)  # the source domain first
        assert {"python", "swep-ds", "torch", "deepspeed", "transformers"} <= set(results["versions"])
        for name in SETS:
            golds = {qa["id"]: [answer["text"] for answer in qa["answers"]] for qa in questions(run, name)}
            answers, confidences = (read(run / kind / f"{name}.json") for kind in ("predictions", "confidence"))
            assert list(confidences) == list(answers)
            right = [Scorer().exact_match(answers[id_], accepted) for id_, accepted in golds.items()]
            expected = Scorer().score(answers, golds) | calibration([*confidences.values()], right)
            assert results["eval"][name] == expected


# Without a run


@pytest.fixture
def on_rank(monkeypatch):
    """Makes this process rank `rank` of `world` for what it computes; each rank has `calls` batches at most."""

    def become(rank: int, world: int, calls: int = 0) -> None:
        monkeypatch.setattr(group, "rank", lambda: rank)
        monkeypatch.setattr(group, "world_size", lambda: world)
        monkeypatch.setattr(group, "gather", lambda value: [value, calls] if calls else [value])

    return become


# one per token of the vocabulary; they take gradients, as a model's weights do
LOGITS = torch.randn(2, 200, generator=torch.Generator().manual_seed(0)).requires_grad_()
SIZES = tiny.WindowSettings(max_length=32, doc_stride=8, max_query_length=8)


def predict(batch: Batch) -> tuple[torch.Tensor, ...]:
    return LOGITS[:, batch.input_ids].unbind()


def examples_of(count: int, seed: int) -> list[Example]:
    judged, _ = judged_items("squad", document_items(squad(count, seed)), STRICT, training=False, labels=True)
    return [question.example for question in judged]


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_share_the_questions_and_make_as_many_calls(world, on_rank, tmp_path):
    examples = examples_of(11, 0)
    windows = build_features(examples, tiny.wordpiece(), SIZES, training=False, cache_dir=tmp_path).dataset
    assert len(windows) > len(examples)
    [alone, *others] = [SpanDecoder(examples, SpanSettings(), null=True) for _ in range(1 + world)]
    for row in range(len(windows)):  # by itself
        columns = evaluate.Windows(windows.data.table).columns(np.array([row]))
        logits = predict(Batch(torch.tensor([windows[row]["input_ids"]]), None))
        alone.add(columns, *(each.detach() for each in logits))
    answers, nulls = {}, {}
    for rank, decoder in enumerate(others):
        on_rank(rank, world, calls=20)
        model = mock.Mock(side_effect=predict)
        decode(model, decoder, windows, tiny.wordpiece(), batch_size=2)
        assert model.call_count == 20
        mine_N = np.array(windows["example"]) % world == rank
        longest = [max(call.args[0].lengths) for call in model.call_args_list[: -(-mine_N.sum() // 2)]]
        assert longest == sorted(longest, reverse=True)  # memory peaks at once
        assert list(decoder.n_best(1)) == [example.id for example in examples[rank::world]]
        answers |= decoder.n_best(5)
        nulls |= decoder.nulls()
    assert answers == alone.n_best(5)
    assert nulls == alone.nulls()


def test_windows_are_read_from_any_chunk_of_a_table_that_cannot_be_joined():
    rows = [{"example": i, "length": i % 7, "input_ids": np.arange(i, i + 1000 + i % 7)} for i in range(1000)]
    schema = pa.schema({"example": pa.int32(), "length": pa.int32(), "input_ids": pa.list_(pa.int32())})
    chunk = pa.RecordBatch.from_pylist(rows, schema)
    table = pa.Table.from_batches([chunk, chunk[:0], chunk[3:10], *[chunk] * 2200])
    with pytest.raises(pa.ArrowInvalid, match="overflow"):  # more tokens than offsets can count
        table.take([0])
    columns = evaluate.Windows(table).columns(np.array([1005, 2, 1006, 999, 1007, 2006, len(table) - 1]))
    expected = [rows[place] for place in (8, 2, 9, 999, 0, 999, 999)]
    for name in schema.names:
        assert columns[name].tolist() == [np.array(row[name]).tolist() for row in expected]


def test_scores_and_files_are_of_the_answers_that_are_given(on_rank, tmp_path, monkeypatch):
    on_rank(0, 1)
    monkeypatch.setattr(evaluate, "CACHE", tmp_path / "cache")
    monkeypatch.setattr("swep_ds.evaluation.calibration.RESAMPLES", 20)
    weights = {name: 0.1 * (1 + number) for number, name in enumerate(FEATURES)}
    calibrator = Calibrator(kind="features", intercept=-3.0, weights=weights, log_loss={}, questions=40)
    tests = {"some have none": examples_of(40, 1), "German": examples_of(9, 2)}
    threshold = -4.0
    evaluation = Evaluation(tiny.wordpiece(), SIZES, SpanSettings(), 4, threshold, calibrator)
    sets = evaluation.prepare(tests, lambda name: Scorer("mlqa de" if name == "German" else "squad"))
    assert [test.scorer for test in sets] == [Scorer(), Scorer("mlqa de")]
    undeclined = evaluation.predict(predict, sets[0]).texts
    for row, example in enumerate(sets[0].examples):
        sets[0].examples[row] = replace(example, answers=(undeclined[example.id],) if row % 3 else ())
    scores = evaluation.run(predict, sets, tmp_path, lambda _: None)
    assert list(scores) == list(tests)
    for test in sets:
        predictions = evaluation.predict(predict, test)
        assert list(predictions.n_best) == [example.id for example in test.examples]
        nulls = predictions.nulls
        given = {id_: with_null(best, nulls[id_], threshold)[:5] for id_, best in predictions.n_best.items()}
        texts = {id_: best[0].text for id_, best in given.items()}
        assert 0 < list(texts.values()).count("") < len(texts)
        softmax = {id_: best[0].probability for id_, best in given.items()}
        seen = np.array([features(example, given[example.id]) for example in test.examples])
        sure = dict(zip(given, calibrator.confidence(seen).tolist(), strict=True))
        odds = {id_: answer.odds for id_, answer in nulls.items()}
        files = {"predictions": texts, "confidence": softmax, "calibrated": sure, "null_odds": odds}
        assert {name: read(tmp_path / name / f"{test.name}.json") for name in files} == files
        for id_, answers in read(tmp_path / "n_best" / f"{test.name}.json").items():
            assert [(a["text"], a["probability"], a["score"], a.get("start"), a.get("end")) for a in answers] == [
                (a.text, a.probability, a.score, a.start, a.end) for a in given[id_]
            ]
        golds = {example.id: example.answers for example in test.examples}
        right = [em for em, _ in test.scorer.by_question(texts, golds).values()]
        expected = test.scorer.score(texts, golds) | calibration([*softmax.values()], right)
        expected |= calibrated_scores([*softmax.values()], [*sure.values()], right, clusters(test.examples))
        if test.name == "some have none":
            expected |= test.scorer.best_thresholds(undeclined, golds, odds)
        assert scores[test.name] == expected


SCORES = {
    "wiki": {"exact_match": 80.0, "f1": 90.0, "total": 10},
    "news": {"exact_match": 60.0, "f1": 70.0, "total": 1000},
    "amazon": {"exact_match": 50.0, "f1": 65.5, "total": 10},
}


def test_the_table_has_the_source_first_rows_for_questions_without_an_answer_and_the_mean_last(capsys):
    unanswered = Scorer().score({"a": "x", "b": "x", "c": ""}, {"a": ["x"], "b": [], "c": []})
    print_scores(SCORES | {"forum": unanswered}, "swep, /models/[v2]/m")
    printed = capsys.readouterr().out
    assert "swep, /models/[v2]/m" in printed
    assert re.findall(r"│ +(\w[^│]*?) +│ +([\d.]+) +│ +([\d.]+) +│ +(\d*) +│", printed) == [
        ("wiki", "80.00", "90.00", "10"),
        ("news", "60.00", "70.00", "1000"),
        ("amazon", "50.00", "65.50", "10"),
        ("forum", "66.67", "66.67", "3"),
        ("with an answer", "100.00", "100.00", "1"),
        ("without an answer", "50.00", "50.00", "2"),
        ("out-of-domain mean", "58.89", "67.39", ""),  # weights are equal
    ]
    for names in (["wiki"], ["wiki", "news"]):  # the mean of one would repeat it
        print_scores({name: SCORES[name] for name in names}, "mle")
        assert "mean" not in capsys.readouterr().out


def test_means_are_of_scores_and_not_of_totals_thresholds_and_intervals():
    more = {"ece": 1.0, "best_f1_threshold": 2.0, "aurc_change_low": 3.0, "aurc_change_high": 4.0}
    scores = {name: score | more for name, score in SCORES.items()}
    assert out_of_domain_mean(scores) == {"exact_match": 55.0, "f1": 67.75, "ece": 1.0}


def test_what_an_earlier_test_left_of_another_kind_is_deleted(tmp_path):
    write_predictions(tmp_path, "news", {"predictions": {"q": "a"}, "calibrated": {"q": 0.5}})
    write_predictions(tmp_path, "forum", {"calibrated": {"q": 0.5}})
    write_predictions(tmp_path, "news", {"predictions": {"q": "b"}})
    assert json.loads((tmp_path / "predictions" / "news.json").read_text()) == {"q": "b"}
    assert [file.name for file in (tmp_path / "calibrated").iterdir()] == ["forum.json"]
