"""`swep-ds sweep`: a single cell, and a real sweep of a tiny model in which one cell fails."""

import json
import sys

import pytest

from swep_ds.commands.sweep import sweep
from swep_ds.common.files import ds_config_path
from swep_ds.sweeps.sweep import SWEEPS, read_sweep
from tests.support import tiny_run
from tests.support.bad_input import refused
from tests.support.fork_server import run_script
from tests.support.sweep_files import MINIMAL, finish, write


@pytest.fixture
def ends(tmp_path, monkeypatch):
    def call(*options: str) -> int:
        words = ["swep-ds sweep", str(tmp_path / "mine.yaml"), "--output_dir", str(tmp_path / "runs"), *options]
        monkeypatch.setattr(sys, "argv", words)
        try:
            sweep()
        except SystemExit as end:
            return end.code
        return 0

    return call


def test_a_cell_alone_ends_as_its_run_did_and_makes_no_table(ends, tmp_path, monkeypatch):
    write(tmp_path, **MINIMAL | {"seeds": [0, 1]}, ds_config=str(tiny_run.ds_config(tmp_path, 0)))
    asked, codes = [], [2, 137, 75, None, 0]  # None: the queue itself was stopped

    def run_queue(cells, command, *, jobs, ranks, sharing):
        [cell], code = cells, codes.pop(0)
        asked.append((cell.seed, jobs, ranks))
        cell.log.write_text(f"$ run\n# exit code {code}\n")
        if code == 0:
            finish(cell)
        return [], code is None

    monkeypatch.setattr("swep_ds.sweeps.queue.run_queue", run_queue)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert [ends("--cell", "1", "--srun") for _ in list(codes)] == [2, 137, 75, 75, 0]
    assert set(asked) == {(1, 1, None)}
    monkeypatch.setattr("swep_ds.sweeps.queue.run_queue", lambda *_, **__: ([], True))
    assert ends() == 75  # a sweep that was asked to stop makes no table either
    assert not list(tmp_path.glob("runs/table.*"))
    for options, said in (
        (["--runs_per_device", "0"], "--runs_per_device: 0 must be at least 1"),
        (["--cell", "2"], "--cell 2: the sweep has 2, from 0 to 1"),
        (["--srun", "--jobs", "2"], "--srun takes all tasks of the Slurm job"),
    ):
        assert said in refused(ends, *options)
    monkeypatch.delenv("SLURM_JOB_ID")
    assert refused(ends, "--srun").startswith("--srun: this is no Slurm job: use --jobs and --ranks")


def test_the_table_of_a_sweep_needs_its_folder_and_no_ds_config(ends, tmp_path, capsys):
    write(tmp_path, **MINIMAL)
    said = refused(ends, "--ds_config", "none.json")
    assert said.startswith("--ds_config none.json: no such file: give a path, or a shipped one: zero")
    assert refused(ends, "--table").endswith("/runs: no such folder: name the one that the sweep ran in")
    (tmp_path / "runs").mkdir()
    assert ends("--table") == 1
    assert "missing: MLE, seed 0: not run" in capsys.readouterr().out


@pytest.mark.slow
def test_a_seed_of_each_registered_experiment_runs_to_its_table(tmp_path, capsys, ends):
    tiny_run.prepare(tmp_path, dropout=0.1, num_hidden_layers=1)
    sources = [f"data.train={tmp_path}/train.json"]
    sources += [f"data.eval.{name}={tmp_path}/test.json" for name in ("new_wiki", "amazon", "bioasq")]
    small = ["data.max_length=48", "data.doc_stride=16", "data.max_query_length=16", "train.max_updates=1"]
    options = [f"model.name={tmp_path}/model", *sources, *small]
    planned, runs = {}, []
    for name in sorted(file.stem for file in SWEEPS.glob("science_*.yaml")):
        sweep, cells = read_sweep(write(tmp_path, extends=name, seeds=[100]), tmp_path / name, options)
        planned[name] = sweep, cells
        for cell in cells:
            run = {"recipe": sweep.recipe, "set": cell.overrides, "ds_config": str(ds_config_path(sweep.ds_config))}
            runs.append(run | {"output_dir": str(cell.folder)})
    tiny_run.make_runs(tmp_path, runs)
    words = [word for option in options for word in ("--set", option)]
    for name, (sweep, cells) in planned.items():
        write(tmp_path, extends=name, seeds=[100])
        where = ["--output_dir", str(tmp_path / name), *words]
        assert ends(*where, "--table") == 0
        made = json.loads((tmp_path / name / "table.json").read_text())
        assert made["missing"] == []
        for field, comparisons in (("primary", [sweep.primary]), ("secondary", sweep.secondary or [])):
            shown = [(entry["method"], entry["against"], entry["metric"]) for entry in made[field]]
            assert shown == [comparison[:3] for comparison in comparisons]
        capsys.readouterr()
        assert ends(*where, "--plan") == 0
        rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
        shown = {row.strip(): [number.strip() for number in numbers[:3]] for row, *numbers in rows}
        assert shown == {cell.variant: ["1", "1", "1"] for cell in cells} | {"all": [str(len(cells)), "", ""]}


@pytest.mark.slow
def test_a_sweep_survives_a_failed_cell(tmp_path):
    recipe = tiny_run.prepare(tmp_path)
    output = tmp_path / "runs"
    variants = {"MLE": {"method.name": "mle"}, "SWEP [long]": {"data.max_query_length": 48}}
    path = write(tmp_path, recipe=str(recipe), set={"train.max_updates": 2}, variants=variants, seeds=[0])
    options = ["--output_dir", str(output), "--ds_config", str(tiny_run.ds_config(tmp_path, 0)), "--jobs", "2"]
    ended = run_script("swep_ds", "sweep", path, *options, check=False)
    assert ended.returncode == 1
    assert "swep-long-seed0: FAILED, exit code 2: error: " in ended.stdout
    assert "mle-seed0: done in" in ended.stdout
    table = json.loads((output / "table.json").read_text())
    scores = json.loads((output / "mle-seed0" / "results.json").read_text())["eval"]["test"]
    assert {cell["method"]: cell["runs"] for cell in table["cells"]} == {"MLE": 1, "SWEP [long]": 0}
    [f1] = [cell["mean"] for cell in table["cells"] if cell["metric"] == "f1"]
    assert f1 == scores["f1"]
    [missing] = table["missing"]
    assert missing["reason"].startswith("exit code 2: error: data.train: ")
    assert f"missing: SWEP [long], seed 0: {missing['reason']} ({output}/swep-long-seed0.log)" in ended.stdout
    assert "| SWEP \\[long\\] | - | 0 |\n" in (output / "table.md").read_text()
