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
    assert (figures["questions"], figures["answers"]) == (20, 10)
    assert figures["windows"] >= 20
    assert figures["same_answers"]
    assert len(figures["seconds"]) == 8
    for name, taken in figures["seconds"].items():
        assert math.isfinite(taken["seconds"])
        assert name in done.stdout


def test_a_missing_folder_is_reported_before_the_work(tmp_path):
    done = run_script(*BENCH, "--json", str(tmp_path / "none/figures.json"), check=False)
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
