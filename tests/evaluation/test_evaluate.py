"""Evaluation over ranks, and a run's outputs: predictions, results.json, the printed table."""

import json
import re
from pathlib import Path

import pytest

from swep_ds.evaluation.calibration import calibration
from swep_ds.evaluation.results import out_of_domain_mean, print_scores, write_predictions
from swep_ds.evaluation.scores import Scorer
from tests.support import fake_runs
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
        assert sorted(results) == sorted([*sections, "threads", "provenance"])
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
        ("out-of-domain mean", "58.89", "67.39", ""),  # of equal weights
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
