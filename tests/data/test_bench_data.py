"""The data benchmark: its figures are there, and the loops it compares with give the same answers."""

import json
import sys

import pytest

from tests.tiny_run import ROOT, execute, squad


@pytest.mark.slow
def test_figures_of_a_small_run(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(squad(6)))
    sizes = ["--questions", "20", "--answers", "10", "--json", str(tmp_path / "figures.json")]
    done = execute(
        [sys.executable, str(ROOT / "scripts/bench_data.py"), "--data", str(tmp_path / "train.json"), *sizes]
    )
    figures = json.loads((tmp_path / "figures.json").read_text())
    made, decoded = figures["preparation"], figures["decoding"]
    assert (made["questions"], made["contexts"], decoded["questions"]) == (20, 20, 10)
    assert made["windows"] >= 20
    assert decoded["same_answers"]
    for one in (
        made["building"],
        made["bare_tokenizer"],
        made["second_start"],
        decoded["vectorised"],
        decoded["loops"],
    ):
        assert one["seconds"] > 0
    assert "decoding" in done.stdout
