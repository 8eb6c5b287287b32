"""A run calibrates its confidences on held-out text."""

import json
from pathlib import Path

import numpy as np
import pytest

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.data.splits import clusters, halves
from swep_ds.evaluation.bounds import are_whole_words
from swep_ds.evaluation.calibration import CALIBRATED, CALIBRATION, N_BEST, Calibrator, calibrated_scores, features
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import Answer
from swep_ds.pipeline.examples import load_examples, reported_examples
from swep_ds.pipeline.recipe import Recipe
from tests.support.tiny_run import ds_config, make_runs, prepare, squad


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """calibrated/; plain/, which has no held-out half; and out."""
    folder = tmp_path_factory.mktemp("calibrate")
    recipe = prepare(folder)
    windows = {"max_length": 48, "doc_stride": 16, "max_query_length": 16}
    (folder / "model" / "reading.json").write_text(json.dumps({"data": windows, "eval": {}}))
    answerer = QuestionAnswerer(folder / "model")
    for name, document in (("train", squad(240)), ("test", squad(9, seed=1))):
        paragraphs = [paragraph for article in document["data"] for paragraph in article["paragraphs"]][::2]
        asked = [(paragraph["qas"][0]["question"], paragraph["context"]) for paragraph in paragraphs]
        for paragraph, [reply] in zip(paragraphs, answerer.answer(asked), strict=True):  # it answers every second right
            paragraph["qas"][0]["answers"] = [{"text": reply.text, "answer_start": reply.start}]
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "model" / "reading.json").unlink()
    # so that the run ends with the weights of its start
    settings = ["train.max_updates=1", "train.learning_rate=1e-20", "train.precision=fp32"]
    settings += ["data.holdout_fraction=0.5", f"data.eval.test={folder / 'test.json'}"]
    run = {"recipe": str(recipe), "ds_config": str(ds_config(folder, 1))}
    listed = [
        run | {"output_dir": str(folder / name), "set": [*settings, f"eval.select_on={selecting}"]}
        for name, selecting in (("calibrated", "held_out"), ("plain", "null"))
    ]
    (folder / "out").write_text(make_runs(folder, listed).stdout)
    return folder


def read(file: Path) -> dict:
    return json.loads(file.read_text())


def test_a_run_fits_a_calibrator_to_the_half_that_it_does_not_report(runs):
    run = runs / "calibrated"
    results, reading = read(run / "results.json"), read(run / "model" / "reading.json")
    calibrator = Calibrator.model_validate(reading["calibrator"])
    assert results["calibrator"] == reading["calibrator"]
    recipe = Recipe.load(str(run / "recipe.yaml"))
    assert reading["eval"]["whole_words"] == are_whole_words(load_examples(recipe)[0])
    assert calibrator.questions == len(halves(load_examples(recipe)[1]["held_out"])[0])
    selection, trained = results["selection"], results["train"]
    assert (selection["data_set"], selection["update"], selection["total"]) == ("held_out", 1, calibrator.questions)
    assert (trained["updates"], trained["examples"]) == (1, len(load_examples(recipe)[0]))
    windows = trained["samples_per_second"] * trained["seconds"]  # one update of one rank
    assert windows == pytest.approx(recipe.train.micro_batch_size * recipe.train.gradient_accumulation_steps)
    for name in recipe.test_sets:
        examples = reported_examples(recipe, name)
        answers, softmax, sure, n_best = (
            read(run / kind / f"{name}.json") for kind in ("predictions", "confidence", "calibrated", "n_best")
        )
        assert list(answers) == list(softmax) == list(sure) == list(n_best) == [example.id for example in examples]
        seen = []
        for example in examples:
            best = [Answer(**answer) for answer in n_best[example.id]]
            assert 1 <= len(best) <= N_BEST
            assert (best[0].text, best[0].probability) == (answers[example.id], softmax[example.id])
            assert all(example.context[answer.start : answer.end] == answer.text for answer in best)
            seen.append(features(example, best))
        expected = calibrator.confidence(np.array(seen))
        assert list(sure.values()) == pytest.approx(expected.tolist())
        right = [em for em, _ in Scorer().by_question(answers, {e.id: e.answers for e in examples}).values()]
        scores = calibrated_scores(list(softmax.values()), list(sure.values()), right, clusters(examples))
        assert results["eval"][name].items() >= scores.items()
        assert set(CALIBRATION) | set(CALIBRATED) < set(results["eval"][name])
    assert "reading.json) that was fitted to" in (run / "model" / "README.md").read_text().replace("\n", " ")


def test_a_run_without_a_calibrator_says_why(runs):
    out = " ".join((runs / "out").read_text().split())
    assert "no held-out half of the source domain calibrates them (eval.select_on)" in out
    assert "calibrator" not in read(runs / "plain" / "results.json")
    assert read(runs / "plain" / "model" / "reading.json")["calibrator"] is None
    assert not (runs / "plain" / "calibrated").exists()
    assert (runs / "plain" / "n_best" / "test.json").is_file()
