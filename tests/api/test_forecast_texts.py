"""The command `swep-ds forecast` and `sd.forecast` on runs of random models, whose answers are known by asking them."""

import csv
import io
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import swep_ds as sd
from swep_ds.analysis.labelled import estimate, read_labelled
from swep_ds.api import answerer
from swep_ds.commands.forecast import forecast as forecast_command
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.predictions import write_predictions
from swep_ds.evaluation.scores import Scorer
from tests.support.bad_input import change_json, refused
from tests.support.finished import finished
from tests.support.tiny_run import squad

QUESTIONS = 60


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """Two finished runs, seed0 and seed1, tested on test.json; there.json, whose answers have been taken, as well as
    truth.json with them."""
    folder = tmp_path_factory.mktemp("forecast")
    finished(folder / "seed0", "mle")
    shutil.copytree(folder / "seed0", folder / "seed1")
    weights = load_file(folder / "seed1" / "model" / "model.safetensors")
    torch.manual_seed(0)
    changed = {name: weight + 0.02 * torch.randn_like(weight) for name, weight in weights.items()}
    save_file(changed, folder / "seed1" / "model" / "model.safetensors", metadata={"format": "pt"})
    asked = read_examples(str(folder / "seed0" / "test.json"), training=False)
    for run in (folder / "seed0", folder / "seed1"):
        [replies] = zip(*sd.QuestionAnswerer(run / "model").answer_together(asked), strict=True)
        given = {example.id: reply for example, reply in zip(asked, replies, strict=True)}
        contents = {"predictions": {id_: reply.text for id_, reply in given.items()}}
        contents["confidence"] = {id_: reply.probability for id_, reply in given.items()}
        write_predictions(run, "test", contents)
    rows = []
    for article in squad(QUESTIONS, seed=2)["data"]:
        for paragraph in article["paragraphs"]:
            [qa] = paragraph["qas"]
            texts = [answer["text"] for answer in qa["answers"]]
            rows.append({"id": qa["id"], "question": qa["question"], "context": paragraph["context"], "answers": texts})
    (folder / "truth.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for row in rows:
        del row["answers"]
    (folder / "there.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def command(monkeypatch, capsys):
    """Calls `swep-ds forecast` and returns what it printed."""

    def call(*words: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["swep-ds forecast", *map(str, words)])
        forecast_command()
        return capsys.readouterr().out

    return call


def test_a_forecast_is_printed_suggests_labels_and_is_corrected_by_them(base, command, tmp_path, monkeypatch):
    monkeypatch.setattr(answerer, "QUESTIONS_AT_A_TIME", 512)
    runs = [base / "seed0", base / "seed1"]
    labels, folder = tmp_path / "label.csv", base / "seed0" / "forecast"
    asked = ["--text", base / "there.jsonl"]
    said = command(*runs, *asked, "--suggest", "30", "--output", labels)
    assert f"seed0 answers {QUESTIONS} questions\n" in said
    assert f"there.jsonl, {QUESTIONS} questions, with 95 % intervals:\n    forecast: EM " in said
    assert "    agreement: " in said
    assert "its answers give" not in said
    assert f"30 questions to label in {labels}\n" in said
    assert f"--output {labels}: exists already, and may hold labels" in refused(
        command, *runs, *asked, "--suggest", "30", "--output", labels
    )
    truth = {example.id: example for example in read_examples(str(base / "truth.jsonl"), training=False)}
    rows = list(csv.DictReader(io.StringIO(labels.read_bytes().decode("utf-8-sig"), newline="")))
    assert len(rows) == 30
    for row in rows:
        [row["answer"]] = truth[row["id"]].answers
    with labels.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)

    # nothing is answered again: what has the answers gives the same forecast and says what it should have been
    monkeypatch.setattr(answerer.QuestionAnswerer, "__init__", None)
    said = command(*runs, "--text", base / "truth.jsonl", "--labelled", labels)
    values = json.loads((folder / "truth.jsonl.json").read_text())
    assert values["runs"] == list(map(str, runs))
    [made] = sd.forecast(runs, str(base / "truth.jsonl"), labelled=labels).values()
    known = read_labelled(labels, list(truth.values()))
    assert len(set(known.strata)) == 5
    for number, metric in enumerate(("exact_match", "f1")):
        by_run = []
        by_label = []
        for file in (folder / "answers").glob("*.json"):
            given = {id_: text for id_, (text, _) in json.loads(file.read_text()).items()}
            golds = {id_: example.answers for id_, example in truth.items()}
            by_run.append(Scorer().score(given, golds)[metric])
            by_label.append([100 * Scorer().by_question(given, golds)[row["id"]][number] for row in rows])
        assert len(by_run) == 2
        assert values["truth"][number] == pytest.approx(sum(by_run) / 2)
        expected = estimate(np.mean(by_label, 0), made.by_question[:, number], known.rows, known.strata)
        corrected = values["with_labels"][metric]
        assert corrected == pytest.approx(asdict(expected))
        assert corrected["low"] <= values["truth"][number] <= corrected["high"]
        assert f"{('EM', 'F1')[number]} {corrected['mean']:.1f} ({corrected['low']:.1f} to " in said
    assert values["labelled"] == 30
    assert f"{values['with_labels']['f1']['more_labels']} more such labels would give F1 within" in said
    assert "its answers give: EM " in said


def test_one_run_from_python(base, tmp_path, capsys):
    run = shutil.copytree(base / "seed1", tmp_path / "run")
    [made] = sd.forecast([run], str(base / "truth.jsonl")).values()
    [other] = sd.forecast([run], str(base / "there.jsonl")).values()
    assert len(list((run / "forecast" / "answers").iterdir())) == 1
    assert (made.rests_on, made.f1) == ("confidence", other.f1)
    assert other.truth is None
    rows = list(map(json.loads, (base / "truth.jsonl").read_text().splitlines()))
    rows[0]["answers"] = ""
    (tmp_path / "partly.jsonl").write_text("\n".join(map(json.dumps, rows)))
    capsys.readouterr()
    [other] = sd.forecast([run], str(tmp_path / "partly.jsonl")).values()
    assert other.truth is None
    assert "partly.jsonl: not all questions have an answer: the forecast is not compared" in capsys.readouterr().out
    rows[0]["answers"] = []  # which says that there is none
    (tmp_path / "partly.jsonl").write_text("\n".join(map(json.dumps, rows)))
    [other] = sd.forecast([run], str(tmp_path / "partly.jsonl")).values()
    assert other.truth is not None
    assert len(list((run / "forecast" / "answers").iterdir())) == 1
    rows[0]["context"] = "An abbot, " + rows[0]["context"]  # other questions are answered
    (tmp_path / "partly.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sd.forecast([run], str(tmp_path / "partly.jsonl"))
    assert len(list((run / "forecast" / "answers").iterdir())) == 2
    asked = read_examples(str(base / "there.jsonl"), training=False, labels=False)
    replies = sd.QuestionAnswerer(run / "model").answer_together(asked)
    assert made.by_question[:, 1] == pytest.approx([reply.probability for [reply] in replies], rel=1e-4)


def test_bad_input_is_one_line(base, command, tmp_path):
    run, there = base / "seed0", base / "there.jsonl"
    (tmp_path / "bare.jsonl").write_text(json.dumps({"id": "q0", "question": "Who?"}))
    (tmp_path / "label.csv").write_text("id,question,answer\nq9,Who?,abbot\n")
    other = shutil.copytree(base / "seed1", tmp_path / "other")
    (other / "recipe.yaml").write_text((other / "recipe.yaml").read_text().replace("train.json", "test.json"))
    change_json(other / "results.json", inputs={})
    unfinished = shutil.copytree(base / "seed1", tmp_path / "unfinished")
    (unfinished / "results.json").unlink()
    for words, message in (
        (["--text", there], "the following arguments are required: RUN"),
        ([tmp_path, "--text", there], "holds no recipe.yaml, so no run"),
        ([unfinished, "--text", there], "holds no results.json: name the folder of a finished run"),
        ([run, other, "--text", there], "has another model, another method or other data at home than"),
        ([run, "--text", tmp_path / "bare.jsonl"], "bare.jsonl: question 'q0' has no context: give the"),
        (
            [run, "--text", there, "--labelled", tmp_path / "label.csv"],
            "row 2: the id 'q9' is no such question of this",
        ),
        ([run, "--labelled", tmp_path / "label.csv"], "are about questions of a text: give --text"),
        ([run, "--text", there, "--suggest", "30"], "--suggest: give it with --output"),
        ([run, "--text", there, "--suggest", "5", "--output", tmp_path / "new.csv"], "--suggest 5: give 25 to 60, the"),
        ([run, run, "--text", there], "are the same run: name runs that differ in their seed"),
    ):
        said = refused(command, *words)
        assert message in said
        assert "\n" not in said
