"""The data benchmark: it prints its figures, and the loops that it compares with give the same answers."""

import json
import math

import pytest

from tests.support.fork_server import ROOT, run_script

BENCH = [ROOT / "scripts" / "bench_data.py", "--questions", "20", "--answers", "10"]


@pytest.mark.slow
def test_figures_of_a_small_run(tmp_path):
    done = run_script(*BENCH, "--json", str(tmp_path / "figures.json"))  # of the quick start's data and encoder
    figures = json.loads((tmp_path / "figures.json").read_text())
    prepared, decoded = figures["preparation"], figures["decoding"]
    assert (prepared["questions"], decoded["questions"]) == (20, 10)
    assert prepared["windows"] >= 20
    assert decoded["same_answers"]
    assert decoded["exact_match"] >= 80  # the logits favour the right answers
    for figure in (
        prepared["building"],
        prepared["bare_tokenizer"],
        prepared["second_start"],
        decoded["vectorised"],
        decoded["vectorised_n_best"],
        decoded["loops"],
    ):
        assert math.isfinite(figure["seconds"])
    assert "decoding" in done.stdout


def test_a_missing_folder_is_reported_before_the_work(tmp_path):
    done = run_script(*BENCH, "--json", str(tmp_path / "none/figures.json"), check=False)
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
    assert "Traceback" not in done.stderr
