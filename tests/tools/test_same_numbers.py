"""tools/same_numbers.py sees every number that differs, and no time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support import scripts
from tests.support.fork_server import ROOT

COMMAND = [sys.executable, "tools/same_numbers.py"]

script = scripts.load("tools/same_numbers.py")


def write_run(folder: Path, loss=1.5, answer="Palder", weight=0.1, f1=50.0, **more) -> Path:
    """What a case with one run leaves; `more` are columns of metrics.jsonl."""
    run = folder / "run"
    (run / "predictions").mkdir(parents=True)
    (run / "model").mkdir()
    lines = [{"update": 1, "loss": 2.0, "seconds": 0.1}, {"update": 2, "loss": loss, "seconds": 0.2, **more}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "predictions" / "news.json").write_text(json.dumps({"q1": answer}))
    results = {"train": {"updates": 2, "seconds": 3.0}, "eval": {"news": {"f1": f1}}, "versions": {"torch": "2"}}
    results["provenance"] = {"date": str(folder)}  # another for each run
    (run / "results.json").write_text(json.dumps(results))
    save_file({"weight": torch.tensor([1.0, weight])}, run / "model" / "model.safetensors")
    (folder / "outcome.json").write_text("null")
    return folder


def test_the_first_difference_is_named(tmp_path):
    before = write_run(tmp_path / "a")
    for name, value, where in (
        ("loss", 1.5000000000000002, "run/metrics.jsonl: update 2, loss: 1.5 -> 1.5000000000000002"),
        ("answer", "palder", "run/predictions/news.json: q1: 'Palder' -> 'palder'"),
        ("f1", 50.1, "run/results.json: eval, news, f1: 50.0 -> 50.1"),
        ("weight", 0.10000001, "run/model/model.safetensors: weight: norm"),
        ("grad_norm", 1.0, "run/metrics.jsonl: update 2, grad_norm: '(missing)' -> 1.0"),
    ):
        alike, text = script.compare(before, write_run(tmp_path / name, **{name: value}), 0.0)
        assert not alike
        assert text.startswith("DIFFERS (1 of ")
        assert where in text


def test_a_tolerance_admits_rounding_and_no_more_and_time_and_memory_do_not_count(tmp_path):
    times = {"samples_per_second": 7.0, "peak_memory_bytes": 5, "data_seconds": [1.0, 2.0]}
    before = write_run(tmp_path / "a")
    assert script.compare(before, write_run(tmp_path / "same", **times), 0.0) == (True, "equal (8 values)")
    assert script.compare(before, write_run(tmp_path / "rounded", loss=1.5 + 1e-9, weight=0.1 + 1e-8), 1e-6)[0]
    assert not script.compare(before, write_run(tmp_path / "loss", loss=1.5001), 1e-6)[0]
    assert not script.compare(before, write_run(tmp_path / "weight", weight=0.1001), 1e-6)[0]
    # a run that fails in both revisions is not equal
    (before / "outcome.json").write_text(json.dumps("start 1 ended with [1]"))
    assert script.compare(before, before, 0.0) == (False, "FAILED before: start 1 ended with [1]")


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout of git")
def test_a_revision_equals_itself():
    command = [*COMMAND, "HEAD", "HEAD", "--only", "neftune-zero2-on1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "neftune-zero2-on1  equal" in done.stdout


def test_bad_input_is_one_line():
    done = subprocess.run([*COMMAND, "no-such-commit"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no such commit" in done.stderr.splitlines()[-1]
