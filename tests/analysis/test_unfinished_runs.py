"""What people meet besides finished runs: one in progress, one killed while it wrote, one of an older version."""

import json

import pytest

from swep_ds.analysis import report, runs, words
from swep_ds.common.errors import InputError
from swep_ds.pipeline.recipe import Recipe
from tests.support import fake_runs
from tests.support.report_runs import Page, metrics

HEALTH = {"update": 3, "step_seconds": [1.0, 1.0], "data_seconds": [0.5, 0.1], "forward_seconds": [0.25, 0.5]}
HEALTH |= {"memory_mib": [9.0, 9.5], "not_finite": [1]}


@pytest.fixture
def run(tmp_path):
    fake_runs.data_set(tmp_path, "squad", 3)
    tree = fake_runs.RECIPE | {"data": {"train": "t", "eval": {"squad": str(tmp_path / "squad.json")}}}
    run = tmp_path / "run"
    fake_runs.finish(run, Recipe.model_validate(tree), {"squad": 2})
    return run


def reason(run) -> str:
    _, [missing] = runs.read_runs(runs.find_runs([run]))
    return missing.reason


def test_a_run_in_progress(run):
    (run / "results.json").unlink()
    assert reason(run) == "not finished"
    with pytest.raises(InputError, match=r"metrics\.jsonl: holds no words_changed: mle changes no embeddings"):
        words.curves([run])


def test_lines_that_a_killed_run_has_half_written_are_left_out(run):
    (run / "metrics.jsonl").write_text(metrics([1, 3]) + '{"update": 4, "lo')
    (run / "health.jsonl").write_text(json.dumps(HEALTH) + '\n{"upd')
    page = Page(report.make_report(run).html)
    assert "Up to update 3." in page.texts["curves"]
    assert "waits for data" in page.texts["cost"]
    assert words.curves([run])["update"].tolist() == [1, 3]


def test_results_that_are_half_written_or_of_another_version_are_one_line(run):
    good = json.loads((run / "results.json").read_text())
    for content, said in (
        (json.dumps(good)[:50], "not JSON: "),
        (json.dumps(good | {"eval": {"squad": {"exact_match": 1.0}}}), "not of this version (eval.squad.f1: field"),
    ):
        (run / "results.json").write_text(content)
        assert reason(run).startswith(f"{run / 'results.json'}: {said}")
