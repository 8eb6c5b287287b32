"""`swep-ds evaluate` and `swep-ds answer` on the exported model of a run."""

import json
import re
import shutil
from pathlib import Path

import pytest

from swep_ds.data.readers import read_examples
from swep_ds.evaluation.calibration import CALIBRATION
from swep_ds.evaluation.scores import Scorer
from tests.support.bad_input import change_json
from tests.support.finished import write_reading
from tests.support.fork_server import run_script
from tests.support.tiny_run import prepare


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Holds model/ and test.json."""
    path = tmp_path_factory.mktemp("scripts")
    prepare(path)
    write_reading(path / "model")
    return path


def test_scores_and_predictions_are_written_once(folder):
    model, source, output = str(folder / "model"), str(folder / "test.json"), folder / "scores"
    command = ["evaluate", model, "--data", f"test={source}", "--output_dir", str(output)]
    ended = run_script("swep_ds", *command, "--doc_stride", "20", "--max_answer_tokens", "1", ranks=2)
    assert "questions have only answers of more than 1 tokens, which are never given: raise max_answer" in ended.stdout
    assert "windows of 64 tokens, 20 apart" in ended.stdout  # as the run cut them, and as the option says
    predictions = json.loads((output / "predictions" / "test.json").read_text())
    golds = {example.id: example.answers for example in read_examples(source, training=False)}
    assert list(predictions) == list(golds)
    results = json.loads((output / "results.json").read_text())
    assert list(results) == ["model", "world_size", "eval", "scorers", "versions"]
    assert (results["model"], results["world_size"]) == (model, 2)
    assert results["eval"]["test"].items() >= Scorer().score(predictions, golds).items()
    assert set(results["eval"]["test"]) == {"exact_match", "f1", "total", *CALIBRATION}
    assert list(json.loads((output / "confidence" / "test.json").read_text())) == list(golds)
    assert f"{results['eval']['test']['f1']:.2f}" in ended.stdout
    again = run_script("swep_ds", *command, check=False)
    said = f"error: --output_dir {output}: is not empty: name a new or empty folder\n"
    assert (again.returncode, again.stderr) == (2, said)


def test_scoring_rules_are_those_of_the_run(folder, tmp_path):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    change_json(model / "reading.json", "eval", scorer={"zh": "mlqa", "ja": "jglue"}, language={"zh": "zh"})
    document = json.loads((folder / "test.json").read_text())
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["context"] += " 서울"
            for qa in paragraph["qas"]:
                qa["answers"] = [{"text": "서울", "answer_start": len(paragraph["context"]) - 2}]
    (tmp_path / "ko.json").write_text(json.dumps(document))
    sources = {"zh": folder / "test.json", "ja": folder / "test.json", "ko": tmp_path / "ko.json"}
    data = [word for name, source in sources.items() for word in ("--data", f"{name}={source}")]
    ended = run_script("swep_ds", "evaluate", str(model), *data, "--output_dir", str(tmp_path / "scores"))
    assert "scoring rules: zh MLQA (zh), ja JGLUE, ko SQuAD v1.1" in ended.stdout
    assert ended.stderr.count("ko: answers are Korean, which SQuAD v1.1 has no rules for: set eval.scorer to") == 1
    rules = json.loads((tmp_path / "scores" / "results.json").read_text())["scorers"]
    assert rules == {"zh": "MLQA (zh)", "ja": "JGLUE", "ko": "SQuAD v1.1"}
    options = ["--output_dir", str(tmp_path / "no"), "--scorer", "squad", "--language", "de"]
    refused = run_script("swep_ds", "evaluate", str(model), *data, *options, check=False)
    assert (refused.returncode, "give --scorer mlqa as well" in refused.stderr) == (2, True)


def test_answers_are_printed_with_their_place_in_the_text(folder):
    text = "It was founded\nin 1204 by an abbot."
    (folder / "text.txt").write_text(text)
    asked = ["--question", "Who founded it?", "--text_file", str(folder / "text.txt"), "--n_best", "3"]
    ended = run_script("swep_ds", "answer", str(folder / "model"), *asked)
    lines = [re.fullmatch(r" *\d+\.\d%  (.+?)    \.\.\.(.+)\.\.\.", line) for line in ended.stdout.splitlines()]
    assert len(lines) == 3
    assert all(match[2] == text.replace("\n", " ") for match in lines)
    assert all(match[1] in text.replace("\n", "\\n") for match in lines)
