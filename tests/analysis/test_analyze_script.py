"""`swep-ds analyze` on a finished run: its commands, and what it refuses."""

import json
import re
import sys

import pandas as pd
import pytest

from swep_ds.analysis.word_analyses import chosen_windows
from swep_ds.commands import analyze as command
from swep_ds.pipeline.recipe import Recipe
from tests.support.bad_input import change_json, refused
from tests.support.finished import finished
from tests.support.tiny_run import squad


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = finished(tmp_path_factory.mktemp("run"))
    lines = [json.dumps({"update": n, "words_changed": n / 100, "words_changed_clean": 0.01}) for n in (1, 5)]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"update": 6, "loss": 1.0}']))
    return folder


@pytest.fixture
def analyze(monkeypatch, capsys):
    def call(*words) -> str:
        monkeypatch.setattr(sys, "argv", ["analyze", *map(str, words)])
        command.analyze()
        return capsys.readouterr().out

    return call


def test_words(run, tmp_path, analyze):
    samples = tmp_path / "samples.json"
    samples.write_text(json.dumps({"data": [], "ssmba": {"tokens": 200, "corrupted": 50, "changed": 30}}))
    output = tmp_path / "out"
    assert analyze("words", run, "--augmented", samples, "--output", output) == (
        f"{run}: 5.00% of the tokens at update 5, 1.00% before perturbation\nSSMBA's texts: 15.00%\n"
        f"written to {output}\n"
    )
    assert (output / "words.png").read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(output / "words.csv")
    assert table[["method", "update", "words_changed"]].to_numpy().tolist() == [["swep", 1, 0.01], ["swep", 5, 0.05]]
    drawn = (output / "words.svg").read_text()
    labels = ("update", "tokens nearest to another word (%)", f"swep, {run}", f"swep, {run}, before perturbation")
    for label in (*labels, "SSMBA's texts"):
        assert f"<!-- {label} -->" in drawn
    samples.write_text('{"data": []}')
    assert "not written by `swep-ds augment`" in refused(analyze, "words", run, "--augmented", samples)


def test_heatmap(run, analyze):
    said = analyze("heatmap", run, "--questions", "q1-3", "q1-0")
    table = pd.read_csv(run / "analysis" / "changed_words.csv", keep_default_na=False)
    assert (table["token"] != table["nearest_after"]).all()
    first, second, last = said.splitlines()
    for line, question in ((first, "q1-3"), (second, "q1-0")):
        count = (table["question_id"] == question).sum()
        assert re.fullmatch(rf"{question}: {count} of \d+ tokens are nearest to another word", line)
    assert last == f"written to {run / 'analysis'}"
    page = (run / "analysis" / "heatmap.html").read_text()
    assert page.count('class="heatmap"') == 2
    assert page.index("<h2>q1-3</h2>") < page.index("<h2>q1-0</h2>")
    assert f"<h1>swep, {run / 'model'}, seed 0</h1>" in page


def test_the_first_questions_are_those_that_have_an_answer(tmp_path):
    folder = finished(tmp_path)
    document = squad(9, seed=1)
    asked = [paragraph["qas"][0] for article in document["data"] for paragraph in article["paragraphs"]]
    change_json(folder / "results.json", inputs={})  # files without a checksum
    (folder / "recipe.yaml").write_text(Recipe.load(str(folder / "recipe.yaml"), ["data.unanswerable=train"]).dump())
    for qa in asked[::2]:
        qa |= {"answers": [], "is_impossible": True}
    (folder / "test.json").write_text(json.dumps(document))
    assert [window.example.id for window in chosen_windows(folder, None, None, 3)[1]] == [
        qa["id"] for qa in asked[1:6:2]
    ]
    for qa in asked:
        qa |= {"answers": []}
    (folder / "test.json").write_text(json.dumps(document))
    assert "no question of its source domain has an answer" in refused(chosen_windows, folder, None, None, 3)


def test_frequency(run, tmp_path, analyze):
    said = analyze("frequency", run, "--windows", "5", "--output", tmp_path)
    text = (tmp_path / "frequency.md").read_text()
    assert said == f"{text.rstrip()}\nwritten to {tmp_path}\n"
    assert text.startswith("# By word frequency: swep, ")
    assert json.loads((tmp_path / "frequency.json").read_text())["windows"] == 5


def test_bad_input(run, tmp_path, analyze):
    (tmp_path / "recipe.yaml").write_text(Recipe.load(str(run / "recipe.yaml"), ["method.name=mle"]).dump())
    for words, said in (
        (["heatmap", run, "--data", "news"], "was not tested on a data set 'news'; known are test"),
        (["heatmap", run, "--questions", "q7"], "--questions q7: no such question"),
        (["words", run / "model"], "holds no recipe.yaml, so no run"),
        (["words", tmp_path], "metrics.jsonl: holds no words_changed: mle changes no embeddings"),
    ):
        assert said in refused(analyze, *words)
