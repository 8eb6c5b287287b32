"""Soups: the mean of weights that NumPy computes, of runs that belong together, tested like any other model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForQuestionAnswering

from swep_ds.evaluation.calibration import KINDS
from swep_ds.evaluation.results import PACKAGES, RESULTS
from swep_ds.pipeline.saved import ReadingSettings
from swep_ds.pipeline.soup import make_soup
from tests.support.bad_input import change_json, refused
from tests.support.finished import finished
from tests.support.fork_server import run_script

WEIGHT = "bert.embeddings.word_embeddings.weight"
MODEL, READING = "model/model.safetensors", "model/reading.json"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """Three finished runs of one start, whose weights differ."""
    folder = tmp_path_factory.mktemp("soup")
    finished(folder / "0", "mle")
    scores = {"test": {"exact_match": 10.0, "f1": 20.0, "total": 9}}
    change_json(folder / "0" / RESULTS, eval=scores, inputs={}, versions=dict.fromkeys(PACKAGES, "1.0"))
    for number in (1, 2):
        shutil.copytree(folder / "0", folder / str(number))
        change_weights(folder / str(number), lambda weights: {n: w + torch.randn_like(w) for n, w in weights.items()})
    return folder


def change_weights(run: Path, change: Callable[[dict], dict]) -> None:
    save_file(change(load_file(run / MODEL)), run / MODEL, metadata={"format": "pt"})


@pytest.fixture
def runs(base, tmp_path) -> list[Path]:
    return [shutil.copytree(base / str(number), tmp_path / str(number)) for number in range(3)]


def test_a_soup_is_the_mean_of_its_runs_and_is_tested_like_any_model(runs, tmp_path):
    soup, scores = tmp_path / "soups" / "swep", tmp_path / "scores"
    said = run_script("swep_ds", "soup", *map(str, runs), "--output", str(soup)).stdout
    assert said == f"soup of 3 models in {soup}\n"
    ingredients = [load_file(run / MODEL) for run in runs]
    loaded = AutoModelForQuestionAnswering.from_pretrained(soup).state_dict()
    assert loaded.keys() >= ingredients[0].keys()
    for name in ingredients[0]:
        mean = np.mean([weights[name].numpy().astype(np.float64) for weights in ingredients], axis=0)
        np.testing.assert_allclose(loaded[name].numpy(), mean, rtol=1e-6, atol=1e-9)
    card = (soup / "README.md").read_text()
    assert all(f"| {run.name} | mle | 0 | `train.json` |" in card for run in runs)
    assert str(tmp_path) not in card
    assert "| 10.00 / 20.00 |" in card
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "transformers"
    assert [path.name for path in soup.parent.iterdir()] == ["swep"]
    assert len({file.stat().st_mode for file in soup.iterdir()}) == 1  # all read the weights who may read the card
    data = ["--data", f"test={runs[0] / 'test.json'}", "--output_dir", str(scores)]
    said = run_script("swep_ds", "evaluate", str(soup), *data).stdout
    assert "windows of 64 tokens, 32 apart" in said  # as its runs read
    assert json.loads((scores / RESULTS).read_text())["eval"]["test"]["total"] == 9


def test_a_soup_declines_at_the_mean_of_the_thresholds(runs, tmp_path):
    for run, threshold in zip(runs, (-1.0, 0.5, 2.0), strict=True):
        change_json(run / READING, null_threshold=threshold)
    fitted = {"kind": KINDS[0], "intercept": 0.0, "weights": {}, "log_loss": {}, "questions": 9}
    change_json(runs[0] / READING, calibrator=fitted)
    make_soup(runs, tmp_path / "soup")
    reading = ReadingSettings.load(tmp_path / "soup" / "reading.json")
    assert reading.null_threshold == pytest.approx(0.5)
    assert reading.calibrator is None  # it was fitted to one run's answers
    change_json(runs[1] / READING, null_threshold=None)
    assert "null_threshold, whether there is one" in refused(make_soup, runs, tmp_path / "other")


def test_what_is_unlike_the_first_run_is_refused(runs, tmp_path):
    def is_said(difference: str, runs: list[Path]) -> None:
        message = refused(make_soup, runs, tmp_path / "soup")
        assert message.startswith(f"{runs[-1]}: is unlike {runs[0]} (")
        assert difference in message
        assert message.endswith("): leave that run out")
        assert not (tmp_path / "soup").exists()

    change_weights(runs[2], lambda weights: weights | {WEIGHT: weights[WEIGHT][:-1].contiguous()})
    is_said(f"{WEIGHT} 'F32 [", runs)
    change_json(runs[2] / RESULTS, inputs={"model.name": "b"})
    is_said("files of model.name None there, 'b' here", runs)
    change_json(runs[1] / READING, "data", doc_stride=8)
    is_said("data.doc_stride 32 there, 8 here", runs[:2])
    recipe = runs[1] / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("name: /", "name: /other/"))
    is_said("model.name '/", runs[:2])


def test_what_is_not_a_soup_is_refused(runs, tmp_path):
    for few in (runs[:1], [runs[0]] * 2):
        assert "a soup is made of two or more different runs" in refused(make_soup, few, tmp_path / "soup")
    change_weights(runs[2], lambda weights: weights | {WEIGHT: weights[WEIGHT] / 0})
    assert f"{WEIGHT} holds NaN or infinity" in refused(make_soup, runs, tmp_path / "soup")
    (runs[1] / RESULTS).unlink()
    said = f"{runs[1]}: holds no results.json: name the folder of a finished run"
    assert refused(make_soup, runs, tmp_path / "soup") == said
