"""The leaderboard of two sources: means, differences and costs against NumPy, and what it leaves out."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from swep_ds.analysis import leaderboard, table
from swep_ds.analysis.runs import Run, find_runs
from swep_ds.commands import table as table_command
from swep_ds.evaluation.results import Results
from swep_ds.pipeline.recipe import Recipe
from tests.support import fake_runs
from tests.support.bad_input import refused

SIZES = {"squad": 30, "nyt": 30, "bio": 20}
RIGHT = {  # right answers to 30 and 20 shifted questions, by source, method and seed
    ("first", "MLE"): [(10, 8), (12, 9), (14, 8)],
    ("first", "SWEP"): [(15, 9), (15, 11), (18, 10)],
    ("second", "MLE"): [(20, 4)],
}
SECONDS = {"first": 10.0, "second": 7.0}
GPU = "1 x NVIDIA H200, 139 GiB each"


@pytest.fixture(scope="module")
def archived(tmp_path_factory):
    """Two sweeps; SWEP's runs of the second one are not there."""
    folder = tmp_path_factory.mktemp("leaderboard")
    variants = {"MLE": {}, "SWEP": {"method.name": "swep"}}
    for source in ("first", "second"):
        (folder / source).mkdir()
        fields = {"set": {"data.train": f"data/{source}.json"}, "variants": variants, "seeds": [0, 1, 2]}
        for cell in fake_runs.sweep(folder / source, SIZES, **fields):
            of_row = RIGHT.get((source, cell.variant), [])
            if cell.seed < len(of_row):
                right = {"squad": 30} | dict(zip(("nyt", "bio"), of_row[cell.seed], strict=True))
                train = {"updates": 50, "cpu_seconds": SECONDS[source] + cell.seed}
                if cell.name == "swep-seed2":
                    train = {"updates": 50, "device_seconds": 1.0}
                machine = {"machine": GPU} if cell.name == "swep-seed2" else {}
                fake_runs.finish(cell.folder, cell.recipe, right, train=train, provenance=machine)
    return [folder / source / "runs" for source in ("first", "second")]


def test_means_differences_and_costs(archived):
    board = leaderboard.make(find_runs(archived))
    entries = board.cells.set_index(["source", "method"])
    assert board.against == "MLE"
    assert [*entries.index] == [("first", "SWEP"), ("first", "MLE"), ("second", "MLE")]  # the best of a source first
    f1 = {}
    for key, of_row in RIGHT.items():
        f1[key] = np.array([50 * (nyt / 30 + bio / 20) for nyt, bio in of_row])  # an answer is right or 0
        assert entries.loc[key, "mean"] == pytest.approx(f1[key].mean())
        assert entries.loc[key, "runs"] == len(of_row)
    difference = entries.loc[("first", "SWEP"), "difference"]
    assert difference == pytest.approx(np.mean(f1["first", "SWEP"] - f1["first", "MLE"]))
    assert entries.loc[("first", "SWEP"), "difference_low"] < difference
    assert pd.isna(entries.loc[("second", "MLE"), "difference"])
    assert entries.loc[("first", "MLE"), "cpu_seconds"] == pytest.approx(11)
    assert entries.loc[("second", "MLE"), "cpu_seconds"] == pytest.approx(7)
    assert entries["updates"].tolist() == [50, 50, 50]
    assert entries["device_seconds"].isna().all()
    assert pd.isna(entries.loc[("first", "SWEP"), "cpu_seconds"])  # one of its runs had a GPU
    assert any(note.endswith(f"Machines: not known; {GPU}.") for note in board.notes)


def test_costs_are_means_over_runs_and_count_a_first_stage():
    recipe = Recipe.model_validate(fake_runs.RECIPE | {"data": {"train": "t", "eval": {}}})

    def costs(*runs: dict) -> list[float]:
        row = []
        for seed, run in enumerate(runs):
            results = Results.model_validate(fake_runs.results(recipe, {"squad": {"exact_match": 1.0}}) | run)
            row.append(Run(Path("none"), "SWEP", seed, "m", recipe=recipe, results=results))
        [cell] = table.score_cells({"SWEP": row}, None)
        return [cell[name] for name in table.COST]

    first, second = {"updates": 50, "cpu_seconds": 10.0}, {"updates": 60, "cpu_seconds": 20.0}
    unknown = pytest.approx(np.nan, nan_ok=True)
    assert costs({"train": first}, {"train": second}) == [55, 15, unknown]
    assert costs({"train": first, "pretraining": {"data": "x"} | second}) == [110, 30, unknown]
    assert costs({"train": {"updates": 50, "device_seconds": 3.0}}) == [50, unknown, 3]
    old = {"updates": 50, "seconds": 9.0}  # as an earlier version wrote it
    assert costs({"train": first}, {"train": old}) == [50, unknown, unknown]
    assert costs({"train": first, "pretraining": {"data": "x"} | old}) == [100, unknown, unknown]


def test_the_command_prints_and_writes_it(archived, tmp_path, monkeypatch, capsys):
    words = ["table", *map(str, archived), "--leaderboard", "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", words)
    table_command.table()
    printed = capsys.readouterr().out
    page = (tmp_path / "out" / "leaderboard.md").read_text()
    assert "| F1 on shifted text / less MLE | first | second |" in page
    assert re.search(r"\| MLE \| [\d.]+ ± [\d.]+ \(n = 3\) \| [\d.]+ \(n = 1\) \|", page)
    assert re.search(r"\| SWEP \| .* \(n = 3\) / \+[\d.]+ \\\[.*\\\] \(3 of 3 seeds\) \| - \|", page)
    assert "| cost of a run: updates / CPU s per run | first | second |" in page
    assert "| MLE | 50 / 11 | 50 / 7 |" in page
    assert "| SWEP | 50 / - | - |" in page
    assert "CPU s per run" in printed
    assert len(pd.read_csv(tmp_path / "out" / "leaderboard.csv")) == 3
    [forest] = (tmp_path / "out").glob("leaderboard-*.svg")
    drawn = forest.read_text()
    for text in ("F1 on shifted text less MLE (points), 95 % intervals", "SWEP (n = 3)", "first"):
        assert f"<!-- {text} -->" in drawn
    (archived[0] / "mle-seed2" / "results.json").unlink()
    shown = leaderboard.publish(find_runs(archived), tmp_path / "fewer")
    assert "(2 of 3 seeds)" in (tmp_path / "fewer" / "leaderboard.md").read_text()
    assert shown.cells["seeds"].dropna().tolist() == [3]
    monkeypatch.setattr("sys.argv", [*words, "--line", "squadshifts"])
    assert "--leaderboard has no --line" in refused(lambda *_: table_command.table())
