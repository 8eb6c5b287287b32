"""Readers of runs' folders meet files of every wrong kind: they leave out what they can, or say in one line what it
is."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from swep_ds.analysis import report, run_facts, runs, words
from swep_ds.analysis.charts import learning_curves, throughput
from swep_ds.analysis.saved_run import SavedRun
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_lines
from swep_ds.evaluation.results import read_predictions
from swep_ds.pipeline.recipe import Recipe
from tests.support import fake_runs
from tests.support.hostile import CONTENTS, NO_FILES, with_every_value_changed

DAMAGE = CONTENTS | NO_FILES
OF_EACH_KIND = ("bytes 2", "value 8", "pipe", "dangling link")
FILES = ["results.json", "ds_config.json", "batch.json", "metrics.jsonl", "health.jsonl", "predictions/squad.json"]
FILES.append("model/model.safetensors")
METRICS = {"update": 3, "loss": 1.5, "samples_per_second": 8.0, "seconds": 2.0, "words_changed": 0.5}
METRICS |= {"words_changed_clean": 0.25}
HEALTH = {"update": 3, "step_seconds": [1.0, 1.0], "data_seconds": [0.5, 0.1], "forward_seconds": [0.25, 0.5]}
HEALTH |= {"memory_mib": [9.0, 9.5], "not_finite": [1]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    fake_runs.data_set(folder, "squad", 3)
    tree = fake_runs.RECIPE | {"data": {"train": "t", "eval": {"squad": str(folder / "squad.json")}}}
    run = folder / "run"
    fake_runs.finish(run, Recipe.model_validate(tree), {"squad": 2})
    (run / "batch.json").write_text('{"windows": 8, "micro_batch_size": 4, "gradient_accumulation_steps": 2}')
    (run / "model").mkdir()
    save_file({"weight": torch.ones(3)}, run / "model" / "model.safetensors")
    (run / "metrics.jsonl").write_text(json.dumps(METRICS) + "\n")
    (run / "health.jsonl").write_text(json.dumps(HEALTH) + "\n")
    return run


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def one_line(step) -> str | None:
    """What it says it cannot do, None where it can."""
    try:
        step()
    except InputError as error:
        said = str(error)
    else:
        return None
    assert "\n" not in said
    assert len(said) < 2000
    return said


def read_everything(run: Path) -> list[str | None]:
    steps = [
        lambda: report.make_report(run),
        lambda: runs.read_results(run / "results.json"),
        lambda: runs.conditions(run),
        lambda: runs.read_runs(runs.find_runs([run])),
        lambda: words.curves([run]),
        lambda: words.share_of_samples(run / "results.json"),
        lambda: read_predictions(run, "squad"),
        lambda: SavedRun.load(run),
    ]
    return [one_line(step) for step in steps]


@pytest.mark.parametrize("file", FILES)
def test_files_of_every_wrong_kind(run, file):
    before = (run / file).read_bytes()
    for name in OF_EACH_KIND:
        DAMAGE[name](run / file)
        assert len(read_everything(run)) == 8
        if (run / file).is_dir():
            (run / file).rmdir()
        (run / file).unlink(missing_ok=True)
    (run / file).write_bytes(before)
    assert one_line(lambda: report.make_report(run)) is None


def test_every_value_of_what_a_run_logged_may_be_wrong(tmp_path):
    """As far as something is drawn of it: that takes long."""
    file = tmp_path / "lines.jsonl"
    for line in (METRICS, HEALTH):
        for changed in with_every_value_changed(line):
            file.write_text(json.dumps(changed) + "\n" + json.dumps(line) + "\n")
            lines, (health, unread) = read_lines(file), run_facts.read_health(file)
            learning_curves(lines)
            throughput(lines)
            assert len(health) + unread == len(lines)
            run_facts.ranks(health, local_forward=True)
            assert lines[-1] == line


def test_every_value_of_results_and_conditions_may_be_wrong(run):
    for name in ("results.json", "ds_config.json"):
        before = (run / name).read_text()
        for changed in with_every_value_changed(json.loads(before)):
            (run / name).write_text(json.dumps(changed))
            one_line(lambda: run_facts.cost(runs.read_results(run / "results.json")))
            one_line(lambda: run_facts.zero_stage(report._read_object(run / "ds_config.json")))
            one_line(lambda: runs.read_runs(runs.find_runs([run])))
        (run / name).write_text(before)


def test_a_sweeps_description_of_any_kind(tmp_path):
    file = tmp_path / "sweep.json"
    whole = {"runs": {"a": {"variant": "A", "seed": 0, "model": "m", "labels": {"x": "y"}}}}
    for damage in DAMAGE.values():
        damage(file)
        one_line(lambda: runs.find_runs([tmp_path]))
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
    for changed in [
        *with_every_value_changed(whole),
        *({"runs": {name: whole["runs"]["a"]}} for name in ("", "..", "/a")),
    ]:
        file.unlink(missing_ok=True)
        file.write_text(json.dumps(changed))
        one_line(lambda: runs.read_runs(runs.find_runs([tmp_path])))
    with pytest.raises(InputError, match=r"sweep\.json: damaged .*runs\.'/a' is not a folder name"):
        runs.find_runs([tmp_path])
